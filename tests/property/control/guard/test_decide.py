"""Whatever happens to a fleet, in any order: it stays served, shares have one owner, no redirect storm."""

from dataclasses import replace
from itertools import pairwise

import pytest
from guarded_world import GPUS, TICK_S, World, world
from hypothesis import example, given, settings
from hypothesis import strategies as st

from controlplane.control.guard import observe
from controlplane.control.guard.deaths import AFTER_S
from controlplane.control.guard.state import Limits, overdrawn
from controlplane.domain.observation import Answer, Health
from controlplane.domain.workload import ShadowPolicy

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
                fleet.heal()
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
    fleet.silent.clear()
    fleet.heal()
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


MOSTLY = st.sampled_from((True, True, True, False))


@settings(max_examples=25)
@example([(True, False, False, 8)] * 3, 1)
@given(
    st.lists(st.tuples(MOSTLY, st.booleans(), st.booleans(), st.integers(4, 20)), min_size=2, max_size=8),
    st.integers(0, 1),
)
def test_only_an_endpoint_open_at_the_last_deaths_is_refused(
    deaths: list[tuple[bool, bool, bool, int]], which: int
) -> None:
    """The first partition has one endpoint, the second one two."""
    fleet = world((30.0, 30.0), ShadowPolicy.HOT, False)
    partition = fleet.partitions[which]
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
                recently_s = fleet.now_s - Limits().deaths_s - AFTER_S
                assert lost_s[-1] >= recently_s
                assert sum(at >= recently_s for at in died_s) >= (1 if before else 2)
