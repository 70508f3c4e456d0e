"""What a new controller takes a server that it finds for."""

from __future__ import annotations

from dataclasses import replace

from build import server, spec

from controlplane.control.converge.desired import Desired, NamedRoute
from controlplane.control.guard import decide
from controlplane.control.guard.effects import Effect, Launch
from controlplane.control.guard.promise import Promise
from controlplane.control.guard.state import GuardedPartition, Limits
from controlplane.domain.fleet import Role, ServerSpec
from controlplane.domain.observation import FleetSeen, Guarding, Health, ServerSeen
from controlplane.domain.workload import ShadowPolicy
from controlplane.files.fleets import FleetSettings
from controlplane.runtime.controller.adopt import Adoption, adoption

ACTIVE = spec("W1", models=("w1",))
SHADOW = replace(ACTIVE, labels=replace(ACTIVE.labels, role=Role.SHADOW))
PARTITION = GuardedPartition("W1", "g0", 50.0, (Promise("w1", 100.0, 10.0),), ShadowPolicy.HOT, "g0", 0.0)


def test_a_server_that_was_routed_to_did_not_fail_to_start_when_it_dies_after_the_adoption() -> None:
    desired = Desired({ACTIVE.name: ACTIVE, SHADOW.name: SHADOW}, {})
    routes = {"w1": NamedRoute((ACTIVE.name,), SHADOW.name)}
    found = adoption(
        (PARTITION,),
        desired,
        FleetSettings("process", "/m", "/o", {"g0": "cpu-0"}),
        (server(ACTIVE), server(SHADOW)),
        routes,
        Limits(),
        0,
    )
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
        Guarding("a", "guarded", 0.0, None, False, 0, False, None, "g0", 70.0, "a.grown")
    )
    _, effects = decide.tick(found.state, ready(standby.name, actives["b"].name, actives["c"].name))
    assert [(e.partition, e.percent) for e in effects if isinstance(e, Launch)] == [("a", 70.0)]
    assert found.state.watches["a"].share.percent == 70.0


def adopted(*guarding: Guarding) -> tuple[Adoption, ServerSpec, dict[str, ServerSpec]]:
    """Of three partitions that share a shadow one is served by it."""
    standby = spec("standby", models=("a", "b", "c"), role=Role.SHARED, percent=60.0)
    actives = {one: spec(one, models=(one,), percent=15.0) for one in "abc"}
    partitions = tuple(
        replace(
            PARTITION, id=one, percent=15.0, promises=(Promise(one, 100.0, 10.0),), shared=("standby", 60.0)
        )
        for one in actives
    )
    desired = Desired({s.name: s for s in (*actives.values(), standby)}, {})
    routes = {one: NamedRoute((actives[one].name,), standby.name) for one in "bc"}
    found = adoption(
        partitions,
        desired,
        FleetSettings("process", "/m", "/o", {"g0": "cpu-0"}),
        tuple(server(s) for s in (actives["b"], actives["c"], standby)),
        {**routes, "a": NamedRoute((standby.name,))},
        Limits(),
        0,
        guarding,
    )
    return found, standby, actives


def ready(*servers: str) -> FleetSeen:
    return FleetSeen(1.0, (), dict.fromkeys(servers, ServerSeen(Health.READY)))
