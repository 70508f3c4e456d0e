"""What a new controller takes a server that it finds for."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import build
import pytest

from controlplane.control.converge.desired import Desired, NamedRoute
from controlplane.control.guard import decide
from controlplane.control.guard.effects import Cause, Effect, Ending, Launch, Redirect
from controlplane.control.guard.promise import Promise
from controlplane.control.guard.state import (
    GuardedPartition,
    Launches,
    Limits,
    PlacedServer,
    Share,
    Watch,
    guarded_partitions,
)
from controlplane.domain.fleet import Role, Server, ServerSpec, ServerState
from controlplane.domain.observation import FleetSeen, Guarding, Health, ServerSeen
from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Rule, ServedModel
from controlplane.domain.workload import ShadowPolicy
from controlplane.files.fleets import FleetSettings, read_guarding
from controlplane.ports import Clock
from controlplane.runtime import SystemClock
from controlplane.runtime.controller.adopt import Adoption, adoption
from controlplane.runtime.controller.executor import changed_routes, found_dead
from controlplane.runtime.controller.recorder import StatusFile
from controlplane.runtime.controller.workers import spec_for


def spec(role: Role, percent: float, revision: str) -> ServerSpec:
    return build.spec("W1", models=("w1",), role=role, revision=revision, percent=percent)


def server(made: ServerSpec, state: ServerState = ServerState.RUNNING) -> Server:
    return build.server(made, made.name, state)


ACTIVE, SHADOW, LARGER = spec(Role.ACTIVE, 50, "a"), spec(Role.SHADOW, 60, "b"), spec(Role.SHADOW, 70, "a-c")
SMALL = spec(Role.SHADOW, 50, "a-d")
OTHER = spec(Role.SHADOW, 70, "o")
"""Of another plan."""
DESIRED = Desired({ACTIVE.name: ACTIVE, SHADOW.name: SHADOW}, {"w1": NamedRoute((ACTIVE.name,), SHADOW.name)})
SETTINGS = FleetSettings("process", "/m", "/o", {"cpu-0": "cpu-0"})
GUARDED = GuardedPartition(
    "W1", "cpu-0", 50.0, (Promise("w1", 100.0, 10.0),), ShadowPolicy.HOT, "cpu-0", 10.0
)


def adopt(
    running: Iterable[ServerSpec], route: NamedRoute, *before: Guarding, dead: tuple[Server, ...] = ()
) -> Adoption:
    """What a controller adopts of these servers on W1's route, with what the one before wrote."""
    servers = (*map(server, running), *dead)
    return adoption((GUARDED,), DESIRED, SETTINGS, servers, {"w1": route}, Limits(), 0, before)


def standby_of(watch: Watch) -> str | None:
    return watch.standby.server if watch.standby else None


@pytest.mark.parametrize(
    ("running", "route", "active", "standby", "surplus"),
    [
        ((ACTIVE, SHADOW), NamedRoute((ACTIVE.name,), SHADOW.name), ACTIVE, SHADOW, ()),
        # Killed after the redirect, before the old server was stopped: that is finished.
        ((ACTIVE, SHADOW), NamedRoute((SHADOW.name,)), SHADOW, None, (ACTIVE,)),
        # Killed while the next shadow started.
        ((SHADOW, LARGER), NamedRoute((SHADOW.name,)), SHADOW, LARGER, ()),
        # An apply of another plan was killed before its routes moved: what it started is no shadow here.
        ((ACTIVE, OTHER), NamedRoute((ACTIVE.name,)), ACTIVE, None, (OTHER,)),
        # Turned over by hand: the planned server is the way back.
        ((ACTIVE, SHADOW), NamedRoute((SHADOW.name,), ACTIVE.name), SHADOW, ACTIVE, ()),
        # The active one died while no controller ran.
        ((SHADOW,), NamedRoute((ACTIVE.name,), SHADOW.name), SHADOW, None, ()),
        ((OTHER,), NamedRoute((ACTIVE.name,)), ACTIVE, None, (OTHER,)),
        # Nothing lives: the planned server's placed is kept for its successor.
        ((), NamedRoute((ACTIVE.name,), SHADOW.name), ACTIVE, None, ()),
    ],
)
def test_who_sits_where_after_a_restart(
    running: tuple[ServerSpec, ...],
    route: NamedRoute,
    active: ServerSpec,
    standby: ServerSpec | None,
    surplus: tuple[ServerSpec, ...],
) -> None:
    dead = server(spec(Role.SHADOW, 80, "d"), ServerState.EXITED)
    adopted = adopt(running, route, dead=(dead,))
    watch = adopted.state.watches["W1"]
    assert watch.active.server == active.name
    assert standby_of(watch) == (standby.name if standby else None)
    assert {s.name for s in adopted.surplus} == {s.name for s in (*surplus, dead.spec)}
    assert adopted.endings == {dead.name: Ending.AT_ONCE}, "it leaves nothing in the list of servers"
    assert {s.name for s in adopted.kept} == {s.name for s in running} - {s.name for s in surplus}


LENT = Guarding("W1", "settling", 0.0, None, False, 1, False, None, "cpu-0", 50.0)
GROWN = replace(LENT, owned_gpu=None, owned_percent=None)
TO_SHADOW = NamedRoute((SHADOW.name,))


@pytest.mark.parametrize(
    ("running", "route", "before", "percent", "standby"),
    [
        ((SHADOW,), TO_SHADOW, LENT, 50.0, None),
        ((SHADOW, SMALL), TO_SHADOW, LENT, 50.0, SMALL),
        ((SHADOW,), TO_SHADOW, GROWN, 60.0, None),
        # What gave the share back died with its controller: the second time is no other than the first.
        ((SHADOW,), NamedRoute((SMALL.name,), SHADOW.name), replace(LENT, active=SMALL.name), 50.0, None),
        # So did one that was larger for its slowness.
        (
            (LARGER,),
            NamedRoute((SHADOW.name,), LARGER.name),
            replace(LENT, active=SHADOW.name, owned_percent=60.0),
            60.0,
            None,
        ),
        # It died and was left, but the controller died before it wrote that.
        ((SHADOW,), TO_SHADOW, replace(LENT, active=SMALL.name), 50.0, None),
        ((SHADOW,), TO_SHADOW, replace(LENT, owned_percent=40.0), 60.0, None),  # of another plan
        ((LARGER,), NamedRoute((LARGER.name,)), replace(LENT, owned_percent=60.0), 60.0, None),
        ((ACTIVE,), NamedRoute((ACTIVE.name,)), LENT, 50.0, None),
        # The active one died while no controller ran.
        ((SHADOW,), NamedRoute((ACTIVE.name,), SHADOW.name), GROWN, 50.0, None),
        # Turned over by hand: it stays so.
        ((ACTIVE, SHADOW), NamedRoute((SHADOW.name,), ACTIVE.name), GROWN, 60.0, ACTIVE),
        (
            (ACTIVE, SHADOW),
            NamedRoute((SHADOW.name,), ACTIVE.name),
            replace(LENT, active=ACTIVE.name),
            60.0,
            ACTIVE,
        ),
    ],
)
def test_a_share_that_is_lent_is_still_lent_after_a_restart(
    running: tuple[ServerSpec, ...],
    route: NamedRoute,
    before: Guarding,
    percent: float,
    standby: ServerSpec | None,
) -> None:
    watch = adopt(running, route, before).state.watches["W1"]
    assert watch.share.percent == percent
    assert standby_of(watch) == (standby.name if standby else None)


@pytest.mark.parametrize("how", [Ending.HUNG, Ending.DRAINED])
def test_a_server_that_drains_is_no_shadow_after_a_restart(how: Ending) -> None:
    before = replace(LENT, active=SHADOW.name, ending={ACTIVE.name: how.name})
    adopted = adopt((ACTIVE, SHADOW, SMALL), TO_SHADOW, before)
    watch = adopted.state.watches["W1"]
    assert (watch.active.server, standby_of(watch)) == (SHADOW.name, SMALL.name)
    assert [(s.name, adopted.endings[s.name]) for s in adopted.surplus] == [(ACTIVE.name, how)]


def test_a_backup_stays_the_shadow_after_a_restart() -> None:
    adopted = adopt((ACTIVE, SHADOW, SMALL), NamedRoute((SHADOW.name,), SMALL.name), LENT)
    assert [s.name for s in adopted.kept] == [SHADOW.name, SMALL.name]


def test_what_is_lent_and_what_ends_is_in_the_file_for_the_next_controller(tmp_path: Path) -> None:
    placed = (PlacedServer(SHADOW.name, "cpu-0", 60.0),)
    state = decide.begin((GUARDED,), {"W1": placed}, Limits(), 0, {"W1": Share("cpu-0", 50.0)})
    file = StatusFile(tmp_path / "guard.json", SystemClock())
    for ending in ({ACTIVE.name: "HUNG"}, {}):
        file.show(replace(state, now_s=1.0), {"W1": ending}, changed=True)
        (found,) = read_guarding(tmp_path / "guard.json")
        assert (found.owned_gpu, found.owned_percent) == ("cpu-0", 50.0)
        assert (found.active, found.ending) == (SHADOW.name, ending)


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ("active", PlacedServer(SMALL.name, "cpu-0", 50.0), {"active": SMALL.name}),
        ("standby", PlacedServer(SMALL.name, "cpu-0", 50.0), {"standby": SMALL.name}),
        ("launches", Launches(failures=2), {"failed_starts": 2}),
        ("owned", Share("cpu-0", 40.0), {"owned_percent": 40.0}),
        ("down", True, {"phase": "down"}),
        ("looked_s", 2.0, {"since_s": 1e9}),
    ],
)
def test_what_changes_of_a_partition_is_in_the_file(
    tmp_path: Path, field: str, value: object, shown: dict[str, object]
) -> None:
    clock = SimpleNamespace(wall=lambda: 1e9)
    placed = (PlacedServer(ACTIVE.name, "cpu-0", 50.0), PlacedServer(SHADOW.name, "cpu-0", 60.0))
    state = replace(decide.begin((GUARDED,), {"W1": placed}, Limits()), now_s=1.0)
    file = StatusFile(tmp_path / "guard.json", cast(Clock, clock))
    file.show(state, {}, changed=True)
    clock.wall = lambda: 1e9 + 5.0
    changed: dict[str, Any] = {field: value}
    watches = {"W1": replace(state.watches["W1"], **changed)}
    file.show(replace(state, watches=watches), {}, changed=True)
    (found,) = read_guarding(tmp_path / "guard.json")
    assert {name: getattr(found, name) for name in shown} == shown


def test_each_launch_is_a_server_of_its_own() -> None:
    first = spec_for(Launch("W1", "W1.1", "cpu-0", 60.0, 1), ACTIVE, "cpu-0")
    second = spec_for(Launch("W1", "W1.2", "cpu-0", 60.0, 2), ACTIVE, "cpu-0")
    assert first.name != second.name
    assert (first.labels.partition, first.labels.role, first.percent) == ("W1", Role.SHADOW, 60.0)


@pytest.mark.parametrize("role", [Role.ACTIVE, Role.SHARED])
def test_a_launched_server_has_the_name_that_the_guard_gave_it(role: Role) -> None:
    planned = replace(ACTIVE, labels=replace(ACTIVE.labels, role=role))
    partition = Partition("W1", 50.0, (ServedModel("m", 1),), (Placement("W1", "w1", "m", 1.0, 100.0),))
    plan = Plan("joint", Rule.P99, "ours", (PlannedGpu("cpu-0", "cpu", (partition,)),))
    (guarded,) = guarded_partitions(plan, Desired({planned.name: planned}, {}))
    launch = Launch("W1", guarded.launched(7), "cpu-0", 60.0, 1)
    assert spec_for(launch, planned, "cpu-0").name == launch.server


def test_a_server_found_dead_at_the_take_over_is_told_as_a_redirect() -> None:
    before = {"w1": NamedRoute((ACTIVE.name,), SHADOW.name)}
    adopted = adopt((SHADOW,), before["w1"])
    ((partition, reason),) = found_dead(adopted.state, before, ())
    assert (partition, reason) == (
        "W1",
        f"{ACTIVE.name} -> {SHADOW.name}: found dead when the fleet was adopted",
    )
    told = Redirect("W1", ACTIVE.name, SHADOW.name, Cause.CRASH)
    assert found_dead(adopted.state, before, (told,)) == [], "one report for each death"
    assert found_dead(adopted.state, {"w1": NamedRoute((SHADOW.name,))}, ()) == []
    assert changed_routes(before, {"w1": NamedRoute((SHADOW.name,))}) == f"w1 -> {SHADOW.name}"
    assert changed_routes(before, {"w1": NamedRoute((ACTIVE.name,))}) == "", "another backup is no news"
    together = dict.fromkeys(("w2", "w1"), NamedRoute((SHADOW.name,)))
    assert changed_routes(before, together) == f"w1, w2 -> {SHADOW.name}"


def test_a_server_that_was_routed_to_did_not_fail_to_start_when_it_dies_after_the_adoption() -> None:
    found = adopt((ACTIVE, SHADOW), NamedRoute((ACTIVE.name,), SHADOW.name))
    ready = ServerSeen(Health.READY)
    state, effects = found.state, tuple[Effect, ...]()
    for now_s, servers in enumerate(({ACTIVE.name, SHADOW.name}, {ACTIVE.name}, set[str]())):
        state, effects = decide.tick(state, FleetSeen(now_s, (), dict.fromkeys(servers, ready)))
    assert [type(effect) for effect in effects if isinstance(effect, Launch)] == [Launch], "at once"


def test_a_shared_shadow_is_adopted_once_where_it_serves_one_partition_and_stands_by_for_others() -> None:
    found, standby, actives = adopted()
    watches = found.state.watches
    assert watches["a"].active.server == standby.name
    assert watches["a"].active.shared
    assert [w.standby.server for w in watches.values() if w.standby] == [standby.name] * 2
    assert {s.name for s in found.kept} == {standby.name, actives["b"].name, actives["c"].name}
    assert found.surplus == ()
    _, effects = decide.tick(found.state, ready(standby.name, actives["b"].name, actives["c"].name))
    assert [e.partition for e in effects if isinstance(e, Launch)] == ["a"], "a server of its own again"


def test_a_partition_that_had_more_than_the_shadow_that_it_borrows_gets_that_again() -> None:
    found, standby, actives = adopted(
        Guarding("a", "guarded", 0.0, None, False, 0, False, None, "cpu-0", 70.0, "a.grown")
    )
    _, effects = decide.tick(found.state, ready(standby.name, actives["b"].name, actives["c"].name))
    assert [(e.partition, e.percent) for e in effects if isinstance(e, Launch)] == [("a", 70.0)]
    assert found.state.watches["a"].share.percent == 70.0


def adopted(*guarding: Guarding) -> tuple[Adoption, ServerSpec, dict[str, ServerSpec]]:
    """Of three partitions that share a shadow one is served by it."""
    standby = build.spec("standby", models=("a", "b", "c"), role=Role.SHARED, percent=60.0)
    actives = {one: build.spec(one, models=(one,), percent=15.0) for one in "abc"}
    partitions = tuple(
        replace(
            GUARDED, id=one, percent=15.0, promises=(Promise(one, 100.0, 10.0),), shared=("standby", 60.0)
        )
        for one in actives
    )
    desired = Desired({s.name: s for s in (*actives.values(), standby)}, {})
    routes = {one: NamedRoute((actives[one].name,), standby.name) for one in "bc"}
    found = adoption(
        partitions,
        desired,
        SETTINGS,
        tuple(server(s) for s in (actives["b"], actives["c"], standby)),
        {**routes, "a": NamedRoute((standby.name,))},
        Limits(),
        0,
        guarding,
    )
    return found, standby, actives


def ready(*servers: str) -> FleetSeen:
    return FleetSeen(1.0, (), dict.fromkeys(servers, ServerSeen(Health.READY)))
