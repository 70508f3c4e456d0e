"""The test of batch times: sure of a slower server after a few batches, blind to stalls and to traffic."""

import random
from dataclasses import dataclass, field

import pytest

from controlplane.control.guard import baseline, batch_times
from controlplane.control.guard.batch_times import NO_PART, BatchTimes, HostPart, Weighing
from controlplane.domain.observation import Answer

RATE_RPS = 100.0


@dataclass
class Queue:
    """A greedy batcher that takes 4 ms and 2 ms for each request, with 10 % noise, times `slowdown`."""

    chance: random.Random = field(default_factory=lambda: random.Random(1))
    due_s: float = 0.0
    free_s: float = 0.0
    apart_s: float = 0.0
    """The gateway passes the first answer of a batch on, and so much later the others."""
    outside_s: float = 0.0
    """What a request takes outside of queue and batch."""

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
            for n, due in enumerate(batch):
                ended_s = self.free_s + self.outside_s + (self.apart_s if n else 0.0)
                found.append(Answer(ended_s, 1e3 * (ended_s - due), False, "w", "s"))
        return found


PLANNED_S = tuple(0.004 + 0.002 * size for size in range(1, 9))


def look(
    times: BatchTimes, answers: list[Answer], after_s: float = 1.0, part: HostPart = NO_PART
) -> tuple[BatchTimes, list[Answer]]:
    weighing = Weighing(batch_times.height(RATE_RPS), PLANNED_S, part)
    return batch_times.weigh(times, answers, answers[-1].ended_s + after_s, weighing)


def weigh(times: BatchTimes, answers: list[Answer], own: float = 1.0) -> BatchTimes:
    return look(times, answers, part=HostPart(own))[0]


def learned(queue: Queue) -> BatchTimes:
    return weigh(BatchTimes(), queue.answers(3000))


def strength(times: BatchTimes) -> float:
    return batch_times.strength(times, RATE_RPS)


@pytest.mark.parametrize(
    ("requests", "served", "least", "most"),
    [
        (50, {"slowdown": 2.0}, 1.0, 1.0),
        (6000, {"slowdown": 1.6}, 0.0, batch_times.HOLD),  # it broke nothing for so long that it is usual
        (300, {"stall_s": 2.0}, 0.0, 0.5),
        (3000, {"rate_rps": 5 * RATE_RPS}, 0.0, 0.5),
    ],
)
def test_longer_batch_times_are_certain_soon_and_a_stall_or_more_traffic_are_none(
    requests: int, served: dict[str, float], least: float, most: float
) -> None:
    queue = Queue()
    times = learned(queue)
    assert strength(times) < batch_times.HOLD
    assert least <= strength(weigh(times, queue.answers(requests, **served))) <= most


@pytest.mark.parametrize("factor", [0.9, 1.0, 1.2, 2.0])
def test_batches_are_compared_with_the_plan_from_the_first_on(factor: float) -> None:
    times = weigh(BatchTimes(), Queue().answers(200, rate_rps=200.0, slowdown=factor))
    ratio, error = batch_times.beside_plan(times)
    assert ratio == pytest.approx(factor, rel=0.1)
    assert error < 0.1
    assert batch_times.recently_beside_plan(times) == pytest.approx(factor, rel=0.3)


def test_batches_that_all_take_as_long_leave_no_doubt_of_their_time_beside_the_plan() -> None:
    same = [Answer(float(i), 12.0, False, "w", "s") for i in range(100)]
    assert batch_times.beside_plan(weigh(BatchTimes(), same)) == pytest.approx((2.0, 0.0), abs=1e-6)


@pytest.mark.parametrize("factor", [0.9, 1.0, 1.5])
@pytest.mark.parametrize("rate_rps", [5.0, 50.0, 200.0])
def test_the_time_outside_of_batches_is_no_part_of_theirs(rate_rps: float, factor: float) -> None:
    answers = Queue(outside_s=0.005).answers(400, rate_rps=rate_rps, slowdown=factor)
    weighing = Weighing(batch_times.height(rate_rps), PLANNED_S, frontend_s=0.005)
    times = batch_times.weigh(BatchTimes(), answers, answers[-1].ended_s + 1.0, weighing)[0]
    assert batch_times.beside_plan(times)[0] == pytest.approx(factor, rel=0.05)


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_batches_whose_answers_come_apart_seem_no_slower_than_they_are(factor: float) -> None:
    """What stands for two batches is planned with two fixed parts."""
    times = weigh(BatchTimes(), Queue(apart_s=0.003).answers(200, rate_rps=200.0, slowdown=factor))
    assert 0.7 * factor < batch_times.beside_plan(times)[0] < 1.05 * factor


def test_an_error_stands_beside_the_plan_though_its_times_have_become_usual() -> None:
    queue = Queue()
    times = learned(queue)
    for _ in range(60):
        times = weigh(times, queue.answers(100, slowdown=2.0))
    ratio, error = batch_times.beside_plan(times)
    assert ratio == pytest.approx(2.0, rel=0.1)
    assert error < 0.1


def test_a_stall_among_the_first_batches_hides_no_slower_server() -> None:
    queue = Queue()
    times = weigh(BatchTimes(), queue.answers(120))
    times = weigh(times, queue.answers(60, stall_s=0.08))
    times = weigh(times, queue.answers(400))
    assert strength(weigh(times, queue.answers(60, slowdown=2.0))) == 1.0


def test_a_server_that_always_waits_for_its_core_is_known_to_be_slower() -> None:
    """Its times has no more of the host's part than its evidence has."""
    queue = Queue()
    times = weigh(BatchTimes(), queue.answers(3000, slowdown=1.25), 0.8)
    assert baseline.usual_s(times.baseline, 1)[0] == pytest.approx(0.006, rel=0.1)
    assert strength(weigh(times, queue.answers(100, slowdown=1.25), 0.8)) < batch_times.HOLD
    assert strength(weigh(times, queue.answers(100, slowdown=1.9), 0.8)) == 1.0


def test_what_is_learned_while_the_gateway_waits_for_longer_than_batches_take_is_no_evidence_later() -> None:
    queue, part = Queue(), HostPart(1.0, 10.0)
    answers = queue.answers(3000)
    times = look(BatchTimes(), answers, part=part)[0]
    assert batch_times.slowdown(times, part) == 0.0
    assert strength(weigh(times, queue.answers(300))) < 1.0
    assert strength(weigh(times, queue.answers(50, slowdown=2.0))) == 1.0


def test_answers_behind_batches_that_the_host_delays_count_without_a_stall_only() -> None:
    queue = Queue()
    times = learned(queue)
    delayed = queue.answers(200, slowdown=2.0)
    _, counted = look(times, delayed, part=HostPart(0.5))
    taken = sum(a.latency_ms - c.latency_ms for a, c in zip(delayed, counted, strict=True))
    assert taken < 0.35 * sum(a.latency_ms for a in delayed)


def test_the_record_stands_still_while_batches_are_slow() -> None:
    queue = Queue()
    before = learned(queue)
    queue_slow = queue.answers(100, slowdown=4.0)
    after = weigh(before, queue_slow)
    after, before = after.baseline, before.baseline
    assert after.tail.tenth < 1.3 * before.tail.tenth
    assert after.tail.hundredth < 1.3 * before.tail.hundredth
    assert after.means[1] < 1.3 * before.means[1]


def test_nothing_is_held_against_a_server_without_a_record() -> None:
    times = weigh(BatchTimes(), Queue().answers(40, slowdown=5.0))
    assert times.chart.score == 0.0


def test_failed_requests_tell_nothing_of_batch_times() -> None:
    failed = [Answer(float(i), 1e6, True, "w", "s") for i in range(50)]
    assert weigh(BatchTimes(), failed) == BatchTimes()


def test_the_answers_behind_a_stall_count_without_it_and_those_of_a_slower_server_as_they_are() -> None:
    for served, least, most in (({"stall_s": 1.0}, 0, 0), ({"slowdown": 4.0}, 101, 400)):
        queue = Queue()
        times = learned(queue)
        answers = queue.answers(400, **served)
        assert sum(a.latency_ms > 60.0 for a in answers) > 50
        _, counted = look(times, answers)
        assert least <= sum(a.latency_ms > 60.0 for a in counted) <= most


def test_a_batch_that_two_looks_share_is_one_batch() -> None:
    queue = Queue()
    answers = queue.answers(3000)
    times = BatchTimes()
    for at in range(0, len(answers), 7):
        times, _ = look(times, answers[at : at + 7], 0.0)
    whole = learned(Queue())
    assert sum(whole.baseline.counts) - sum(times.baseline.counts) < 20
    assert times.baseline.means[1] == pytest.approx(whole.baseline.means[1], rel=0.05)


def test_the_answers_of_a_batch_under_way_wait_for_its_end() -> None:
    under_way = [Answer(1.0 + 0.0002 * i, 10.0, False, "w", "s") for i in range(3)]
    times, counted = look(BatchTimes(), under_way, 0.0)
    assert (times.open, counted) == (tuple(under_way), [])


def test_the_slowdown_is_that_of_the_batches_since_the_suspicion() -> None:
    queue = Queue()
    times = weigh(learned(queue), queue.answers(60, slowdown=2.0))
    assert 1.6 < batch_times.slowdown(times) < 2.4
    assert batch_times.slowdown(BatchTimes()) == 1.0


def test_sizes_without_a_record_take_their_part_of_the_next_smaller_one() -> None:
    counts = [0.0] * 2 * baseline.SIZES
    means = [0.0] * 2 * baseline.SIZES
    counts[2], means[2] = 99.0, 0.010
    times = BatchTimes(baseline.EMPTY._replace(counts=counts, means=means))
    assert baseline.usual_s(times.baseline, 4) == (0.010, 0.010, 0.015, 0.020)
    assert baseline.usual_s(BatchTimes().baseline, 4) == ()
    counts[16], means[16] = 99.0, 0.050
    assert baseline.usual_s(times.baseline, 16)[-1] == 0.050, "the largest with a place of its own"


def test_a_batch_after_a_rest_has_a_record_of_its_own() -> None:
    """At a quota it takes what is left of the period, the next one does not."""
    answers = []
    for i in range(40):
        answers += [Answer(i + 0.003, 3.0, False, "w", "s"), Answer(i + 0.013, 12.0, False, "w", "s")]
    times = weigh(BatchTimes(), answers)
    assert baseline.usual_s(times.baseline, 2) == pytest.approx((0.010, 0.020))
    assert times.baseline.tail.tenth < batch_times.LEAST_SLOWER


def test_a_stall_is_a_block_of_its_own() -> None:
    """A server four times as slow is certain after five batches of one request."""
    usual = [Answer(float(i), 10.0, False, "w", "s") for i in range(200)]
    slow = [Answer(1000.0 + i, 40.0, False, "w", "s") for i in range(5)]
    assert batch_times.strength(weigh(weigh(BatchTimes(), usual), slow), RATE_RPS) == 1.0


def test_a_server_that_stalls_again_and_again_has_no_excuse() -> None:
    queue = Queue()
    times = learned(queue)
    late = []
    for _ in range(30):
        answers = queue.answers(100, stall_s=0.5)
        times, counted = look(times, answers)
        late.append(sum(a.latency_ms > 60.0 for a in counted))
    assert sum(late[:5]) == 0
    assert sum(late[-5:]) > 50


def test_a_batch_size_that_is_new_to_the_record_raises_no_alarm_once_it_is_known() -> None:
    """The usual time of an unknown size is an estimate, too long where batching saves time."""
    chance = random.Random(2)

    def full(batches: int, since_s: float, size: int) -> list[Answer]:
        """Batches of one size, one a second, that take 10 ms whatever their size."""
        ends = [since_s + i + chance.gauss(0.0, 0.0002) for i in range(batches)]
        return [Answer(end, 10.0, False, "w", "s") for end in ends for _ in range(size)]

    times = weigh(BatchTimes(), full(35, 0.0, 1))
    for start in range(100, 1000, 10):
        times = weigh(times, full(10, float(start), 8))
        assert strength(times) < 0.5


def test_a_slower_server_does_not_become_its_own_measure() -> None:
    """A times of eight seconds, and batches that take 1.5 times as long from then on."""
    for seed in range(20):
        queue = Queue(random.Random(seed))
        times = weigh(BatchTimes(), queue.answers(800))
        strengths = []
        for _ in range(20):
            times = weigh(times, queue.answers(15, slowdown=1.5))
            strengths.append(strength(times))
        assert max(strengths) == 1.0


def test_times_with_hardly_any_spread_are_no_evidence() -> None:
    same = [Answer(float(i), 10.0 + 0.001 * (i % 3), False, "w", "s") for i in range(2000)]
    times = weigh(BatchTimes(), same)
    longer = [a._replace(ended_s=a.ended_s + 5000.0, latency_ms=10.5) for a in same[:200]]
    assert weigh(times, longer).chart.score == 0.0


def test_two_slow_batches_of_a_busy_period_are_no_accident() -> None:
    """The second is not taken off the answers."""
    alone = [Answer(float(i), 10.0, False, "w", "s") for i in range(200)]
    behind = [Answer(i + 0.01, 15.0, False, "w", "s") for i in range(200)]
    times = weigh(BatchTimes(), sorted(alone + behind))
    one = [Answer(1000.0, 28.0, False, "w", "s"), Answer(1000.01, 36.0, False, "w", "s")]
    two = [one[0], Answer(1000.028, 54.0, False, "w", "s")]
    taken = []
    for answers in (one, two):
        _, counted = look(times, answers)
        taken.append(answers[-1].latency_ms - counted[-1].latency_ms)
    assert taken == pytest.approx([18.0, 0.0], abs=0.5)


def test_a_busy_start_is_forgotten() -> None:
    """Its thresholds give way to those of the hundred blocks after it; a stall among these is no measure."""
    times_ms = [10.0] * 60 + [20.0, 10.0, 10.0] * 30
    started = weigh(BatchTimes(), [Answer(float(i), ms, False, "w", "s") for i, ms in enumerate(times_ms)])
    quiet = [Answer(1000.0 + i, 200.0 if i == 100 else 10.0, False, "w", "s") for i in range(440)]
    settled = weigh(started, quiet)
    assert started.baseline.tail.tenth > 1.2
    assert settled.baseline.tail.tenth < batch_times.LEAST_SLOWER
    assert settled.baseline.tail.hundredth < 1.3
