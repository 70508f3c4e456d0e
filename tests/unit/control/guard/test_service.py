"""The test of batch times: sure of a slower server after a few batches, blind to stalls and to traffic."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from controlplane.control.guard import service
from controlplane.domain.observation import Answer

RATE_RPS = 100.0


@dataclass
class Queue:
    """A greedy batcher that takes 4 ms and 2 ms for each request, with 10 % noise, times `slowdown`."""

    chance: random.Random = field(default_factory=lambda: random.Random(1))
    due_s: float = 0.0
    free_s: float = 0.0

    def answers(
        self, requests: int, *, rate_rps: float = RATE_RPS, slowdown: float = 1.0, stall_s: float = 0.0
    ) -> list[Answer]:
        """The next answers; the first batch is held up by `stall_s`."""
        found: list[Answer] = []
        while len(found) < requests:
            start = max(self.due_s, self.free_s)
            batch = []
            while self.due_s <= start and len(batch) < 8:
                batch.append(self.due_s)
                self.due_s += self.chance.expovariate(rate_rps)
            took_s = (0.004 + 0.002 * len(batch)) * slowdown * self.chance.lognormvariate(0.0, 0.1)
            self.free_s = start + took_s + stall_s
            stall_s = 0.0
            found += [Answer(self.free_s, 1e3 * (self.free_s - due), False, "w", "s") for due in batch]
        return found


def learned(queue: Queue) -> service.Service:
    return service.weigh(service.Service(), queue.answers(3000), RATE_RPS)


def test_doubled_batch_times_are_certain_within_thirty_answers() -> None:
    queue = Queue()
    record = learned(queue)
    assert service.strength(record, RATE_RPS) < service.HOLD
    assert service.strength(service.weigh(record, queue.answers(30, slowdown=2.0), RATE_RPS), RATE_RPS) == 1.0


def test_a_stall_of_the_host_is_one_slow_batch() -> None:
    queue = Queue()
    record = service.weigh(learned(queue), queue.answers(300, stall_s=2.0), RATE_RPS)
    assert service.strength(record, RATE_RPS) < 0.5


def test_more_traffic_than_planned_makes_no_batch_slower() -> None:
    queue = Queue()
    record = service.weigh(learned(queue), queue.answers(3000, rate_rps=5 * RATE_RPS), RATE_RPS)
    assert service.strength(record, RATE_RPS) < 0.5


def test_the_record_stands_still_while_batches_are_slow() -> None:
    queue = Queue()
    before = learned(queue)
    queue_slow = queue.answers(100, slowdown=4.0)
    after = service.weigh(before, queue_slow, RATE_RPS)
    charts = len(service.SHARES)
    known = [i * charts + j for i, n in enumerate(before.counts) for j in range(charts) if n > 100]
    grown = [after.thresholds[i] / before.thresholds[i] for i in known]
    assert max(grown) < 1.3


def test_a_slowdown_that_breaks_nothing_becomes_the_record() -> None:
    queue = Queue()
    record = service.weigh(learned(queue), queue.answers(6000, slowdown=1.6), RATE_RPS)
    assert service.strength(record, RATE_RPS) < service.HOLD


def test_nothing_is_held_against_a_server_without_a_record() -> None:
    record = service.weigh(service.Service(), Queue().answers(40, slowdown=5.0), RATE_RPS)
    assert record.scores == (0.0, 0.0)


def test_failed_requests_tell_nothing_of_batch_times() -> None:
    failed = [Answer(float(i), 1e6, True, "w", "s") for i in range(50)]
    assert service.weigh(service.Service(), failed, RATE_RPS) == service.Service()
