"""Another batch for a server that nothing cures: which one, when, and when the plan's again."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from itertools import pairwise

from guard_invariants import validate_state

from controlplane.control import batches
from controlplane.control.guard import decide
from controlplane.control.guard.effects import SetBatch
from controlplane.control.guard.promise import Promise
from controlplane.control.guard.state import GuardedPartition, GuardState, Limits, PlacedServer
from controlplane.domain.observation import Answer, FleetSeen, Health, ServerSeen
from controlplane.domain.workload import ShadowPolicy

FIXED_S, EACH_S = 0.020, 0.001
NO_SPREAD = (1.0, 1.0)
TICK_S = 0.25


def times_s(limit: int, slower: float = 1.0) -> list[float]:
    return [slower * (FIXED_S + EACH_S * size) for size in range(1, limit + 1)]


def test_the_least_p99_is_taken_and_the_present_batch_where_none_is_clearly_better() -> None:
    assert batches.best(times_s(16), 10.0, NO_SPREAD, 4) == 4
    assert batches.best(times_s(16, 2.0), 90.0, NO_SPREAD, 4) > 4


def test_where_no_batch_holds_the_rate_the_one_of_the_largest_capacity_is_taken() -> None:
    assert batches.best(times_s(16, 10.0), 1000.0, NO_SPREAD, 4) == 16
    steep = [0.01, 0.02, 0.08, 0.4]
    assert batches.best(steep, 1000.0, NO_SPREAD, 4) in (1, 2)


@dataclass
class Server:
    """A server without a shadow, and the guard that sets its batch; requests arrive as Poisson's do."""

    rate_rps: float = 90.0
    largest: int = 16
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    state: GuardState = field(init=False)
    batch: int = 4
    now_s: float = 0.0
    due_s: float = 0.0
    free_s: float = 0.0
    changes: list[tuple[float, int]] = field(default_factory=list)
    late: int = 0

    def __post_init__(self) -> None:
        planned_ms = tuple(1000.0 * time_s for time_s in times_s(4))
        promise = Promise("w", 200.0, 90.0, planned_ms[-1], batch=4, batch_ms=planned_ms, p99_ms=60.0)
        promise = replace(promise, utilisation=0.5, largest=self.largest)
        one = GuardedPartition("w", "cpu-0", 100.0, (promise,), ShadowPolicy.NONE, "cpu-0", 0.0)
        self.state = decide.begin((one,), {"w": (PlacedServer("s", "cpu-0", 100.0, 0.0),)}, Limits())

    def run(self, seconds: float, slower: float = 1.0) -> None:
        """Serve for so long, with batches that take `slower` times as long as planned."""
        ends_s = self.now_s + seconds
        waiting: list[Answer] = []
        while self.now_s < ends_s:
            self.now_s += TICK_S
            while max(self.free_s, self.due_s) < self.now_s:
                waiting += self._execute(slower)
            answers = tuple(a for a in waiting if a.ended_s <= self.now_s)
            waiting = waiting[len(answers) :]
            self.late += sum(a.latency_ms > 200.0 for a in answers)
            seen = FleetSeen(self.now_s, answers, {"s": ServerSeen(Health.READY, 1, inferences={"w": 1.0})})
            self.state, effects = decide.tick(self.state, seen)
            validate_state(self.state)
            for effect in effects:
                if isinstance(effect, SetBatch):
                    self.batch = 4 if effect.batch is None else effect.batch
                    self.changes.append((self.now_s, self.batch))

    def _execute(self, slower: float) -> list[Answer]:
        start_s, due = max(self.due_s, self.free_s), []
        while self.due_s <= start_s and len(due) < self.batch:
            due.append(self.due_s)
            self.due_s += self.chance.expovariate(self.rate_rps)
        took_s = slower * (FIXED_S + EACH_S * len(due)) * self.chance.lognormvariate(0.0, 0.05)
        self.free_s = start_s + took_s
        return [Answer(self.free_s, 1000.0 * (self.free_s - one), False, "w", "s") for one in due]


def test_a_slow_server_gets_a_larger_batch_at_once_and_the_plans_when_it_is_fast_again() -> None:
    server = Server()
    server.run(60.0)
    assert server.changes == []
    server.run(20.0, slower=2.2)
    assert len(server.changes) == 1
    changed_s, batch = server.changes[0]
    assert changed_s < 65.0
    assert batch > 4
    server.run(60.0, slower=2.2)
    late = server.late
    server.run(30.0, slower=2.2)
    assert server.late - late < 0.01 * 30.0 * 90.0
    server.run(240.0)
    assert [one for _, one in server.changes] == [batch, 4]


def test_without_another_batch_it_stays_late() -> None:
    fixed, free = Server(largest=0), Server()
    for server in (fixed, free):
        server.run(60.0)
        server.run(30.0, slower=2.2)
    assert fixed.changes == []
    assert fixed.late > 3 * free.late


def test_more_traffic_than_planned_gets_the_batch_that_holds_it() -> None:
    server = Server()
    server.run(60.0)
    server.rate_rps = 220.0
    server.run(60.0)
    assert server.changes
    late = server.late
    server.run(20.0)
    assert server.late - late < 0.01 * 20.0 * 220.0


def test_a_server_that_is_slow_now_and_then_is_changed_more_and_more_rarely() -> None:
    server = Server()
    server.run(60.0)
    for _ in range(12):
        server.run(60.0, slower=2.2)
        server.run(240.0)
    gaps = [later - earlier for (earlier, _), (later, _) in pairwise(server.changes)]
    assert len(server.changes) <= 10
    assert gaps[-1] > 2 * gaps[0]
