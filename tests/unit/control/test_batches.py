"""A larger batch for a server that nothing cures: which one, when, and when the plan's again."""

import random
from dataclasses import dataclass, field, replace

import pytest
from guard_invariants import validate_state

from controlplane.control import batches
from controlplane.control.converge.desired import Desired
from controlplane.control.guard import decide
from controlplane.control.guard.effects import Cause, Effect, Redirect, SetBatch
from controlplane.control.guard.promise import Promise
from controlplane.control.guard.state import (
    GuardedPartition,
    GuardState,
    Limits,
    PlacedServer,
    Rebatched,
    Share,
    guarded_partitions,
)
from controlplane.domain.observation import Answer, FleetSeen, Health, ServerSeen
from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Rule, ServedModel
from controlplane.domain.workload import ShadowPolicy

FIXED_S, EACH_S = 0.020, 0.001
NO_SPREAD = (1.0, 1.0)
TICK_S = 0.25


def times_s(limit: int, slower: float = 1.0) -> list[float]:
    return [slower * (FIXED_S + EACH_S * size) for size in range(1, limit + 1)]


@pytest.mark.parametrize(
    ("taken_s", "rate_rps", "present", "best"),
    [
        (times_s(16), 10.0, 4, 4),  # none is clearly better
        (times_s(16, 2.0), 90.0, 4, 10),
        (times_s(16, 10.0), 1000.0, 4, 16),  # none holds the rate
        ([0.01, 0.02, 0.08, 0.4], 1000.0, 3, 3),  # only a smaller one would
    ],
)
def test_the_batch_of_the_least_p99_or_else_of_the_largest_capacity_is_taken_and_never_a_smaller_one(
    taken_s: list[float], rate_rps: float, present: int, best: int
) -> None:
    assert batches.best(taken_s, rate_rps, NO_SPREAD, present) == best


@pytest.mark.parametrize(
    ("gpu", "limit_mb", "largest"), [("cpu", None, 8), ("cpu", 900.0, 0), ("v100", None, 0)]
)
def test_where_memory_is_limited_the_batch_stays(gpu: str, limit_mb: float | None, largest: int) -> None:
    placement = Placement("W", "w", "m", 10.0, 100.0)
    partition = Partition("P", 50.0, (ServedModel("m", 2),), (placement,), memory_limit_mb=limit_mb)
    plan = Plan("by-hand", Rule.P99, "ours", (PlannedGpu("g0", gpu, (partition,)),))
    (found,) = guarded_partitions(plan, Desired({}, {}, largest={"P": (("w", 8),)}))
    assert found.promises[0].largest == largest


@dataclass
class Server:
    """A server and the guard that sets its batch; requests arrive as Poisson's do.

    `policy` is that of a larger shadow, whose health is `shadow`; `turns`: another model takes turns with it.
    """

    rate_rps: float = 90.0
    largest: int = 16
    policy: ShadowPolicy = ShadowPolicy.NONE
    shadow: Health = Health.READY
    turns: bool = False
    each_s: float = EACH_S
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    state: GuardState = field(init=False)
    batch: int = 4
    now_s: float = 0.0
    due_s: float = 0.0
    free_s: float = 0.0
    changes: list[tuple[float, int]] = field(default_factory=list)
    late: int = 0
    took_s: float = 0.0
    effects: list[Effect] = field(default_factory=list)

    def __post_init__(self) -> None:
        planned_ms = tuple(1000.0 * (FIXED_S + self.each_s * size) for size in range(1, 5))
        promise = Promise(
            "w", 200.0, self.rate_rps, planned_ms[-1], batch=4, batch_ms=planned_ms, p99_ms=60.0
        )
        promise = replace(promise, utilisation=0.5, largest=self.largest)
        promises = (promise, Promise("other", 200.0, 1.0)) if self.turns else (promise,)
        one = GuardedPartition("w", "cpu-0", 50.0, promises, self.policy, "cpu-0", 0.0)
        placed = [PlacedServer("s", "cpu-0", 50.0, 0.0)]
        if self.policy is not ShadowPolicy.NONE:
            placed.append(PlacedServer("sh", "cpu-0", 70.0, 0.0))
        self.state = decide.begin((one,), {"w": tuple(placed)}, Limits())

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
            compute_ms, counted = 1000.0 * self.took_s, {"w": 1.0, "other": 1.0}
            server = ServerSeen(Health.READY, 1, inferences=counted, compute_ms=compute_ms)
            servers = {"s": server, "sh": ServerSeen(self.shadow)}
            self.state, effects = decide.tick(self.state, FleetSeen(self.now_s, answers, servers))
            validate_state(self.state)
            self.effects += effects
            for effect in effects:
                if isinstance(effect, SetBatch):
                    self.batch = 4 if effect.batch is None else effect.batch
                    self.changes.append((self.now_s, self.batch))

    def _execute(self, slower: float) -> list[Answer]:
        start_s, due = max(self.due_s, self.free_s), []
        while self.due_s <= start_s and len(due) < self.batch:
            due.append(self.due_s)
            self.due_s += self.chance.expovariate(self.rate_rps)
        spread = self.chance.lognormvariate(0.0, 0.05)
        self.took_s = slower * (FIXED_S + self.each_s * len(due)) * spread
        self.free_s = start_s + self.took_s
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


@pytest.mark.parametrize(
    "server",
    [
        Server(largest=0),
        Server(turns=True),
        Server(policy=ShadowPolicy.WARM, shadow=Health.UNLOADED),
        Server(policy=ShadowPolicy.WARM, shadow=Health.STARTING),
    ],
    ids=["fixed", "models take turns", "its shadow loads", "its shadow starts"],
)
def test_the_plans_batch_stays(server: Server) -> None:
    server.run(60.0)
    server.run(10.0, slower=2.2)
    assert server.changes == []
    assert server.late > 0


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
    for _ in range(8):
        server.run(60.0, slower=2.2)
        server.run(240.0)
    assert len(server.changes) <= 8
    assert server.changes[-1][0] < server.now_s - 600.0


def test_a_healthy_server_is_not_left_for_the_longer_batches_that_more_traffic_has() -> None:
    server = Server(policy=ShadowPolicy.HOT, each_s=0.010, rate_rps=40.0)
    server.run(60.0)
    server.rate_rps = 130.0
    server.run(60.0)
    assert server.changes
    assert not any(isinstance(effect, Redirect) for effect in server.effects)
    server.rate_rps = 40.0
    server.run(600.0)
    assert server.batch == 4, "what was predicted of the plan's batch holds again"


def test_what_no_batch_holds_gets_only_larger_ones_that_take_no_longer_than_the_slo() -> None:
    for each_s in (0.010, 0.020):
        server = Server(largest=64, each_s=each_s, rate_rps=20.0)
        server.run(30.0)
        server.rate_rps = 100.0
        server.run(60.0)
        sizes = [4, *(batch for _, batch in server.changes)]
        assert 1 < len(sizes) <= 4
        assert sizes == sorted(sizes)
        assert FIXED_S + each_s * sizes[-1] < 1.1 * 0.200


def test_sizes_without_a_usual_time_of_their_own_are_not_taken() -> None:
    server = Server(largest=64)
    server.run(60.0)
    server.rate_rps = 2000.0
    server.run(60.0)
    assert server.batch == 16


def test_a_shadow_that_gives_its_share_back_has_the_plans_batch_again() -> None:
    server = Server(policy=ShadowPolicy.HOT)
    watch = server.state.watches["w"]
    assert watch.standby is not None
    queue = watch.queues[0]._replace(promise=replace(watch.queues[0].promise, batch=8))
    lends = replace(
        watch,
        active=watch.standby,
        standby=watch.active,
        owned=Share("cpu-0", 50.0),
        queues=(queue,),
        rebatched=Rebatched(1, 0.0),
    )
    server.state, server.batch = replace(server.state, watches={"w": lends}), 8
    server.rate_rps = 1.0
    server.run(1.0)
    redirect = next(effect for effect in server.effects if isinstance(effect, Redirect))
    (back,) = (effect for effect in server.effects if isinstance(effect, SetBatch))
    assert redirect.cause is Cause.SHARE
    assert (back.server, back.batch) == ("sh", None)
