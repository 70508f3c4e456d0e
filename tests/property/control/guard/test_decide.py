"""Whatever happens to a fleet, in any order: it stays served, shares have one owner, no redirect storm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from guard_invariants import validate_state
from hypothesis import example, given, settings
from hypothesis import strategies as st

from controlplane.control.guard import decide, observe
from controlplane.control.guard.effects import (
    Cause,
    DrainAndStop,
    Launch,
    Load,
    OpenBreaker,
    Redirect,
    Refuse,
)
from controlplane.control.guard.promise import Promise
from controlplane.control.guard.state import (
    GuardedPartition,
    GuardState,
    Limits,
    PlacedServer,
    overdrawn,
    percent_in_use,
)
from controlplane.domain.observation import Answer, FleetSeen, Health, ServerSeen
from controlplane.domain.workload import ShadowPolicy

TICK_S = 0.25
DEAD = {Cause.CRASH, Cause.HANG, Cause.FAILING, Cause.IMPAIRED}
GPUS = ("g0", "g1")


@dataclass
class Machine:
    """One server of the fleet the guard is let loose on."""

    gpu: str
    health: Health
    slow: bool = False
    hung: bool = False
    owed: int = 0
    ready_in: int = 0


@dataclass
class World:
    """Servers that do what the effects say, and break when the test says."""

    partitions: tuple[GuardedPartition, ...]
    state: GuardState
    machines: dict[str, Machine]
    thorough: GuardState
    """The state of a guard that looks at every partition in each tick."""
    now_s: float = 0.0
    silent: set[str] = field(default_factory=set)
    crowded: set[str] = field(default_factory=set)
    broken_starts: bool = False
    held: bool = False
    """Another command works on the fleet: what is decided cannot be done."""
    active: dict[str, str] = field(default_factory=dict)
    redirected_s: dict[str, float] = field(default_factory=dict)
    launches_s: list[tuple[str, float]] = field(default_factory=list)
    breakers: list[OpenBreaker] = field(default_factory=list)
    lost: list[Answer] = field(default_factory=list)
    """Requests that failed in a server since the tick before."""
    refused: list[Refuse] = field(default_factory=list)

    def tick(self) -> None:
        self.now_s += TICK_S
        before = self.state
        seen = FleetSeen(self.now_s, (*self.answers(), *self.lost), self.servers())
        self.lost = []
        all_due = replace(self.thorough, due_s={})
        if self.held:
            self.state = observe.observe(before, seen)
            self.thorough = observe.observe(all_due, seen)
            validate_state(self.state)
            return
        self.state, effects = decide.tick(before, seen)
        self.thorough, thoroughly = decide.tick(all_due, seen)
        validate_state(self.state)
        assert effects == thoroughly
        assert decide.routes(self.state, seen) == decide.routes(self.thorough, seen)
        begun = {effect.server for effect in effects if isinstance(effect, Launch)}
        assert not any(isinstance(effect, DrainAndStop) and effect.server in begun for effect in effects)
        # Who leaves a dead server takes its shadow whatever the account says, in the same tick too.
        died = any(isinstance(e, Redirect) and e.cause in DEAD for e in effects)
        for effect in effects:
            match effect:
                case Redirect(partition, source, target, cause):
                    assert self.active[partition] == source
                    assert self.machines[target].health is Health.READY
                    if cause not in DEAD:
                        assert self.now_s >= self.redirected_s.get(partition, -math.inf) + Limits().settle_s
                        assert (
                            died
                            or cause is Cause.SHARE
                            or not overdrawn(self.used, self.state.watches[partition].active.gpu)
                        )
                    self.active[partition] = target
                    self.redirected_s[partition] = self.now_s
                case DrainAndStop(server, _):
                    assert server not in self.active.values(), "stopped a server that is routed to"
                    self.machines.pop(server, None)
                case Launch(partition, server, gpu, percent, _):
                    assert server not in self.machines
                    assert 0 < percent <= 100
                    self.launches_s.append((partition, self.now_s))
                    self.machines[server] = Machine(gpu, Health.STARTING, ready_in=3)
                case Load(server):
                    self.machines[server] = Machine(self.machines[server].gpu, Health.STARTING, ready_in=1)
                case OpenBreaker():
                    self.breakers.append(effect)
                case Refuse():
                    self.refused.append(effect)
        self.check(seen)
        for machine in self.machines.values():
            if machine.health is Health.STARTING:
                machine.ready_in -= 1
                if machine.ready_in <= 0:
                    machine.health = Health.GONE if self.broken_starts else Health.READY

    @property
    def used(self) -> dict[str, float]:
        return percent_in_use(self.state.watches.values())

    def check(self, seen: FleetSeen) -> None:
        routes = decide.routes(self.state, seen)
        for partition in self.partitions:
            watch = self.state.watches[partition.id]
            assert watch.active.server == self.active[partition.id]
            assert routes[partition.id].members == (watch.active.server,)
            assert {routes[endpoint] for endpoint in partition.endpoints} == {routes[partition.id]}, (
                "torn apart"
            )
            standby = watch.standby and self.machines.get(watch.standby.server)
            active = seen.servers.get(watch.active.server)
            if active is None or active.health in (Health.GONE, Health.FAILING, Health.IMPAIRED):
                # Dead and routed to: only because nothing of it lives.
                assert standby is None or standby.health is not Health.READY
                holding = self.machines.items() if partition.shared else ()
                assert not any(n.startswith("g0.shared") and m.health is Health.READY for n, m in holding)
            if standby is not None and standby.health is Health.READY and active is not None:
                assert routes[partition.id].backup is not None
        # What nobody sits on was told to stop: nothing is left behind.
        seated = {s.server for w in self.state.watches.values() for s in (w.active, w.standby) if s}
        alive = {name for name, m in self.machines.items() if m.health is not Health.GONE}
        assert alive <= seated
        for gpu in GPUS:
            if overdrawn(self.used, gpu):
                assert any(
                    self.now_s >= at for p, at in self.redirected_s.items() if self.state.watches[p]
                ), "overdrawn with no redirect ever"

    def servers(self) -> dict[str, ServerSeen]:
        return {
            name: ServerSeen(m.health, in_flight=m.owed)
            for name, m in self.machines.items()
            if m.health is not Health.GONE
        }

    def answers(self) -> Sequence[Answer]:
        ended = []
        for partition in self.partitions:
            machine = self.machines.get(self.active[partition.id])
            if machine is None or machine.health is not Health.READY or partition.id in self.silent:
                continue
            if machine.hung:
                machine.owed += 10
                continue
            machine.owed = 0
            promise = partition.promises[0]
            rate = promise.rate_rps * (2.0 if partition.id in self.crowded else 1.0)
            late = machine.slow or partition.id in self.crowded
            count = int(rate * TICK_S)
            for i in range(count):
                at = self.now_s - TICK_S * (1.0 - (i + 1) / count)
                took = promise.slo_ms * (3.0 if late else 0.4)
                endpoint = promise.endpoints[i % len(promise.endpoints)]
                ended.append(Answer(at, took, False, endpoint, self.active[partition.id]))
        return ended


def world(percents: Sequence[float], policy: ShadowPolicy, elsewhere: bool) -> World:
    spare = min(10.0, 100.0 - sum(percents))
    partitions, placed_servers, machines = [], {}, {}
    for i, percent in enumerate(percents):
        name = f"W{i}"
        is_shared = policy is ShadowPolicy.SHARED
        shadow_gpu = "g1" if elsewhere and not is_shared else "g0"
        # The one server has the same share for all, which fits whichever of them it serves.
        most = max(*percents, 100.0 - sum(percents) + min(percents))
        # Every other one serves two workloads through one queue.
        promise = Promise(name, 50.0, 100.0, aliases=(f"{name}b",) if i % 2 else ())
        partitions.append(
            GuardedPartition(
                name,
                "g0",
                percent,
                (promise,),
                policy,
                shadow_gpu,
                0.0 if policy is ShadowPolicy.NONE else 10.0,
                shared=("g0.shared", most) if is_shared else None,
            )
        )
        active, shadow = (
            PlacedServer(f"{name}.a", "g0", percent),
            PlacedServer("g0.shared", "g0", most, shared=True)
            if is_shared
            else PlacedServer(f"{name}.s", shadow_gpu, percent + spare),
        )
        machines[active.server] = Machine("g0", Health.READY)
        if policy is ShadowPolicy.NONE:
            placed_servers[name] = (active,)
            continue
        placed_servers[name] = (active, shadow)
        loaded = (ShadowPolicy.HOT, ShadowPolicy.SHARED)
        standing = Health.READY if policy in loaded else Health.UNLOADED
        machines[shadow.server] = Machine(shadow_gpu, standing)
    begun = decide.begin(tuple(partitions), placed_servers, Limits())
    made = World(tuple(partitions), begun, machines, begun)
    made.active = {w.id: f"{w.id}.a" for w in partitions}
    return made


EVENTS = (
    *("nothing", "crash", "crash standby", "slow", "heal", "hang", "fail", "impair", "crowd", "gpu"),
    *("bad starts", "held", "standstill", "silence"),
)
events = st.lists(
    st.tuples(st.sampled_from(EVENTS), st.integers(0, 3), st.integers(1, 12)), min_size=1, max_size=25
)
shares = st.sampled_from([(30.0,), (30.0, 30.0), (20.0, 30.0, 40.0), (50.0, 50.0), (25.0, 25.0, 20.0, 20.0)])

GIVEN_BACK_WHILE_ANOTHER_MOVES = [
    *(("crash standby", 3, 11), ("fail", 1, 6), ("crowd", 0, 12), ("crash", 2, 3), ("crowd", 0, 6)),
    *(("held", 3, 7), ("crash", 2, 3), ("heal", 1, 5), ("crash standby", 3, 11), ("crowd", 0, 4)),
    *(("heal", 1, 6), ("gpu", 3, 2), ("crash standby", 3, 5), ("nothing", 1, 9), ("standstill", 2, 10)),
    *(("silence", 0, 12), ("slow", 2, 6)),
]


@settings(max_examples=70)
@example((20.0, 30.0, 40.0), ShadowPolicy.HOT, True, GIVEN_BACK_WHILE_ANOTHER_MOVES)
@given(shares, st.sampled_from(list(ShadowPolicy)), st.booleans(), events)
def test_served_owned_once_and_no_storm(
    percents: tuple[float, ...], policy: ShadowPolicy, elsewhere: bool, script: list[tuple[str, int, int]]
) -> None:
    is_served_after(percents, policy, elsewhere, script)


@pytest.mark.soak
@settings(max_examples=5_000)
@given(shares, st.sampled_from(list(ShadowPolicy)), st.booleans(), events)
def test_served_owned_once_and_no_storm_in_many_histories(
    percents: tuple[float, ...], policy: ShadowPolicy, elsewhere: bool, script: list[tuple[str, int, int]]
) -> None:
    is_served_after(percents, policy, elsewhere, script)


def is_served_after(
    percents: tuple[float, ...], policy: ShadowPolicy, elsewhere: bool, script: list[tuple[str, int, int]]
) -> None:
    fleet = world(percents, policy, elsewhere)
    for event, which, ticks in script:
        partition = fleet.partitions[which % len(fleet.partitions)]
        active = fleet.machines.get(fleet.active[partition.id])
        watch = fleet.state.watches[partition.id]
        standby = fleet.machines.get(watch.standby.server) if watch.standby else None
        match event:
            case "crash" if active:
                active.health = Health.GONE
            case "crash standby" if standby:
                standby.health = Health.GONE
            case "slow" if active:
                active.slow = True
            case "heal":
                fleet.broken_starts = False
                fleet.crowded.clear()
                for machine in fleet.machines.values():
                    machine.slow = machine.hung = False
                    if machine.health in (Health.FAILING, Health.IMPAIRED):
                        machine.health = Health.READY
            case "hang" if active:
                active.hung = True
            case "fail" if active and active.health is Health.READY:
                active.health = Health.FAILING
            case "impair" if active and active.health is Health.READY:
                active.health = Health.IMPAIRED
            case "crowd":
                fleet.crowded.add(partition.id)
            case "silence":
                fleet.silent ^= {partition.id}
            case "gpu":
                for machine in fleet.machines.values():
                    if machine.gpu == "g0":
                        machine.health = Health.GONE
            case "bad starts":
                fleet.broken_starts = True
            case "standstill":
                fleet.now_s += 5.0
        fleet.held = event == "held"
        for _ in range(ticks):
            fleet.tick()
        fleet.held = False
    for partition, watch in fleet.thorough.watches.items():
        present = observe.resumed(fleet.state.watches[partition], fleet.now_s)
        for queue, wanted in zip(present.queues, watch.queues, strict=True):
            assert queue.rates_rps == pytest.approx(wanted.rates_rps, rel=1e-6, abs=1e-9)
            assert queue._replace(rates_rps=wanted.rates_rps) == wanted
        assert replace(present, queues=watch.queues) == watch
    # Left alone with starts that work, every partition is served again: the breaker's next try included.
    fleet.broken_starts = False
    fleet.silent.clear()
    fleet.crowded.clear()
    for machine in fleet.machines.values():
        machine.slow = machine.hung = False
        if machine.health in (Health.FAILING, Health.IMPAIRED):
            machine.health = Health.READY
    served = False
    for _ in range(40):
        for _ in range(40):
            fleet.tick()
        if all(
            (m := fleet.machines.get(fleet.active[w.id])) is not None and m.health is Health.READY
            for w in fleet.partitions
        ) and not any(overdrawn(fleet.used, gpu) for gpu in GPUS):
            served = True
            break
        fleet.now_s += 20.0
    assert served


@settings(max_examples=20)
@given(shares, st.booleans())
def test_what_cannot_start_is_tried_ever_more_rarely(percents: tuple[float, ...], elsewhere: bool) -> None:
    fleet = world(percents, ShadowPolicy.HOT, elsewhere)
    fleet.broken_starts = True
    for machine in fleet.machines.values():
        machine.health = Health.GONE
    for _ in range(400):
        fleet.tick()
    per_ward = [at for p, at in fleet.launches_s if p == fleet.partitions[0].id]
    assert len(per_ward) <= Limits().failures + 1
    gaps = [b - a for a, b in pairwise(per_ward)]
    assert gaps == sorted(gaps)
    assert {b.partition for b in fleet.breakers} == {w.id for w in fleet.partitions}


CRASHES = st.lists(
    st.tuples(
        st.sampled_from(("crash", "crash standby", "both", "hang", "impair", "fail")), st.integers(0, 3)
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=25)
@given(shares, st.sampled_from(list(ShadowPolicy)), st.booleans(), CRASHES, st.integers(1, 30))
def test_a_crash_lends_a_share_for_one_takeover_and_costs_no_neighbour_its_shadow(
    percents: tuple[float, ...],
    policy: ShadowPolicy,
    elsewhere: bool,
    crashes: list[tuple[str, int]],
    apart: int,
) -> None:
    fleet = world(percents, policy, elsewhere)
    lent_s: dict[str, float] = {}
    hit: set[str] = set()
    for event, which in crashes:
        partition = fleet.partitions[which % len(fleet.partitions)]
        hit.add(partition.id)
        watch = fleet.state.watches[partition.id]
        struck = [watch.active] if event != "crash standby" else []
        struck += [watch.standby] if event in ("crash standby", "both") and watch.standby else []
        for placed in struck:
            machine = fleet.machines.get(placed.server)
            if machine is None or machine.health not in (Health.READY, Health.UNLOADED):
                continue
            match event:
                case "hang":
                    machine.hung = True
                case "impair":
                    machine.health = Health.IMPAIRED
                case "fail":
                    machine.health = Health.FAILING
                case _:
                    machine.health = Health.GONE
        for _ in range(apart):
            fleet.tick()
            keeps_to_the_plan(fleet, lent_s, hit)
    planned = {p.id: p.percent for p in fleet.partitions}
    for _ in range(40):  # the breaker's next try included
        for _ in range(40):
            fleet.tick()
            keeps_to_the_plan(fleet, lent_s, hit)
        if {w.partition.id: w.active.percent for w in fleet.state.watches.values()} == planned:
            break
        fleet.now_s += 20.0
    assert {w.partition.id: w.active.percent for w in fleet.state.watches.values()} == planned
    assert not any(overdrawn(fleet.used, gpu) for gpu in GPUS)


def keeps_to_the_plan(fleet: World, lent_s: dict[str, float], hit: set[str]) -> None:
    """Only a shadow that took over has more than planned, until a server as planned is ready."""
    for partition in fleet.partitions:
        watch = fleet.state.watches[partition.id]
        next_one = watch.standby and fleet.machines.get(watch.standby.server)
        if watch.active.percent > partition.percent:
            assert watch.standby is None or watch.standby.percent <= partition.percent
            settled = fleet.now_s >= watch.settled_s
            active = fleet.machines.get(watch.active.server)
            serves = active is not None and active.health is Health.READY and not active.hung
            if serves and settled and next_one is not None and next_one.health is Health.READY:
                lent_s.setdefault(partition.id, fleet.now_s)
                assert fleet.now_s - lent_s[partition.id] <= 2 * TICK_S, "given back at once"
            else:
                lent_s.pop(partition.id, None)
        if partition.id not in hit and partition.policy is ShadowPolicy.SHARED:
            shared = fleet.machines.get("g0.shared")
            lives = shared is not None and shared.health is Health.READY and not shared.hung
            assert not lives or (watch.standby is not None and watch.standby.server == "g0.shared")
        elif partition.id not in hit and partition.policy is not ShadowPolicy.NONE:
            assert watch.standby is not None
            assert watch.standby.server == f"{partition.id}.s", "a neighbour's own shadow"


@settings(max_examples=25)
@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans(), st.integers(1, 20)), max_size=8))
def test_only_an_endpoint_open_at_the_last_deaths_is_refused(
    deaths: list[tuple[bool, bool, bool, int]],
) -> None:
    fleet = world((30.0,), ShadowPolicy.HOT, False)
    partition = fleet.partitions[0]
    poison, other = partition.endpoints[0], "of another partition"
    died_s: list[float] = []
    lost_s: list[float] = []
    for poisoned, foreign, both, ticks in deaths:
        watch = fleet.state.watches[partition.id]
        for placed in (watch.active, watch.standby if both else None):
            machine = placed and fleet.machines.get(placed.server)
            if machine is not None and machine.health is Health.READY:
                machine.health = Health.GONE
                died_s.append(fleet.now_s)
        lost_s += [fleet.now_s] * poisoned
        held = [poison] * poisoned + [other] * foreign
        fleet.lost = [
            Answer(fleet.now_s + 0.1, 9.0, True, endpoint, "", held=True, lost=True) for endpoint in held
        ]
        for _ in range(ticks):
            before = len(fleet.refused)
            fleet.tick()
            for refused in fleet.refused[before:]:
                assert refused.accused.endpoint == poison
                recently_s = fleet.now_s - Limits().deaths_s - deaths.AFTER_S
                assert lost_s[-1] >= recently_s
                assert sum(at >= recently_s for at in died_s) >= (1 if before else 2)
