"""What a plan means: which servers, which routes, and when two servers are the same."""

from collections.abc import Sequence
from dataclasses import replace

import build
import pytest

from controlplane.control.converge.actions import SetBatches, batches_as_planned
from controlplane.control.converge.desired import (
    Desired,
    NamedRoute,
    Rendered,
    as_moved,
    desired_fleet,
    moved,
    planned_servers,
    successor,
)
from controlplane.control.converge.redirect import companions, redirected
from controlplane.domain.errors import InputError
from controlplane.domain.fleet import Role, ServerSpec
from controlplane.domain.plan import (
    Partition,
    Placement,
    Plan,
    PlannedGpu,
    Rule,
    ServedModel,
    Shadow,
    SharedShadow,
)
from controlplane.domain.workload import ShadowPolicy


def part(name: str, endpoints: str, policy: ShadowPolicy | None = ShadowPolicy.HOT) -> Partition:
    shadow = None if policy is None else Shadow(policy, "v100-0", 10, 40)
    placements = tuple(Placement(endpoint, endpoint, "m", 1, 10) for endpoint in endpoints.split())
    return Partition(name, 30, (ServedModel("m", 4),), placements, shadow=shadow)


SHARED = SharedShadow("standby", 40.0, 900.0)


def fleet(
    *partitions: Partition,
    content: str = "c",
    plan_hash: str = "h",
    shared: SharedShadow | None = None,
    turns: bool = False,
    fleet_wide_calls: bool = False,
) -> Desired:
    gpu = PlannedGpu("v100-0", "v100", partitions, shared=shared)
    plan = Plan("igniter", Rule.P99, "ours", (gpu,))
    rendered = {
        one: Rendered(f"/r/{one}", content, turns) for one in (*(p.id for p in partitions), "standby")
    }
    devices = {"v100-0": "GPU-uuid"}
    return desired_fleet(
        plan,
        fleet="f",
        plan_hash=plan_hash,
        rendered=rendered,
        devices=devices,
        fleet_wide_calls=fleet_wide_calls,
    )


def name(desired: Desired, partition: str, role: Role) -> str:
    return next(
        n for n, s in desired.servers.items() if (s.labels.partition, s.labels.role) == (partition, role)
    )


def test_a_pool_is_one_route_over_its_partitions() -> None:
    desired = fleet(part("W-1", "W"), part("W-2", "W", None))
    active = tuple(name(desired, p, Role.ACTIVE) for p in ("W-1", "W-2"))
    assert desired.routes == {"W": NamedRoute(active, name(desired, "W-1", Role.SHADOW))}
    assert {s.device for s in desired.servers.values()} == {"GPU-uuid"}
    assert tuple(spec.name for spec in planned_servers(desired).values()) == active


@pytest.mark.parametrize("turns", [False, True])
def test_active_and_shadow_take_turns_as_rendered(turns: bool) -> None:
    found = fleet(part("W", "W"), turns=turns)
    assert [spec.turns for spec in found.servers.values()] == [turns, turns]


def test_a_warm_shadow_runs_but_backs_nothing_up() -> None:
    desired = fleet(part("W", "W", ShadowPolicy.WARM))
    assert desired.warm == {name(desired, "W", Role.SHADOW)}
    assert desired.routes["W"].backup is None


def test_only_a_warm_shadow_reloads_and_a_change_of_policy_is_another_server() -> None:
    hot, warm = fleet(part("W", "W")), fleet(part("W", "W", ShadowPolicy.WARM))
    assert [s.reloads for s in warm.servers.values()] == [False, True]
    assert not any(s.reloads or s.fleet_wide_calls for s in hot.servers.values())
    assert name(hot, "W", Role.ACTIVE) == name(warm, "W", Role.ACTIVE)
    assert name(hot, "W", Role.SHADOW) != name(warm, "W", Role.SHADOW)


def test_no_shadow_where_the_policy_says_none() -> None:
    assert [s.labels.role for s in fleet(part("W", "W", ShadowPolicy.NONE)).servers.values()] == [Role.ACTIVE]


def test_the_name_changes_with_all_that_is_fixed_and_nothing_else() -> None:
    same = fleet(part("W", "W"), plan_hash="other")
    assert set(same.servers) == set(fleet(part("W", "W")).servers), "the plan's hash decides nothing"
    for changed in (
        fleet(part("W", "W"), content="d"),
        fleet(replace(part("W", "W"), percent=35)),
        fleet(part("W", "W"), fleet_wide_calls=True),
    ):
        assert name(changed, "W", Role.ACTIVE) not in same.servers


def test_a_partition_is_turned_over_with_all_that_it_serves_and_with_its_pool() -> None:
    desired = fleet(part("AB-1", "A B"), part("AB-2", "B A"), part("BC", "B C"), part("D", "D"))
    assert companions(desired, ["A"]) == ("B", "C"), "B is in the pool of A, C beside B"
    assert companions(desired, ["C", "A", "B"]) == companions(desired, ["D"]) == ()
    there = redirected(desired, desired.routes, ["A", *companions(desired, ["A"])], desired.servers)
    shadows = {n for n, s in desired.servers.items() if s.labels.role is Role.SHADOW}
    assert set(there["A"].members) | set(there["B"].members) | set(there["C"].members) < shadows
    assert there["D"] == desired.routes["D"]


def test_a_redirect_turns_over_and_back() -> None:
    desired = fleet(part("A", "A"), part("B", "B"))
    there = redirected(desired, desired.routes, ["A"], desired.servers)
    shadow, active = name(desired, "A", Role.SHADOW), name(desired, "A", Role.ACTIVE)
    assert there == {**desired.routes, "A": NamedRoute((shadow,), backup=active)}
    assert redirected(desired, there, ["A"], desired.servers) == desired.routes


@pytest.mark.parametrize("policy", [ShadowPolicy.WARM, ShadowPolicy.HOT])
def test_a_redirect_needs_a_hot_shadow_that_runs(policy: ShadowPolicy) -> None:
    desired = fleet(part("A", "A", policy))
    running = {
        n for n, s in desired.servers.items() if policy is ShadowPolicy.WARM or s.labels.role is Role.ACTIVE
    }
    with pytest.raises(InputError, match="no hot shadow"):
        redirected(desired, desired.routes, ["A"], running)


def test_a_redirect_leaves_a_pool_what_of_it_runs() -> None:
    desired = fleet(part("A", "A"), part("W-1", "W", None), part("W-2", "W"))
    dead, alive = (name(desired, p, Role.ACTIVE) for p in ("W-1", "W-2"))
    shadow, running = name(desired, "W-2", Role.SHADOW), desired.servers.keys() - {dead}
    there = redirected(desired, desired.routes, ["A"], running)
    assert there["A"].members == (name(desired, "A", Role.SHADOW),)
    assert there["W"] == NamedRoute((alive,), shadow)
    assert redirected(desired, desired.routes, ["W"], running)["W"] == NamedRoute((shadow,), alive)


def test_a_redirect_leaves_a_dead_server_for_its_shadow_and_stays_there() -> None:
    desired = fleet(part("A", "A"))
    shadow = name(desired, "A", Role.SHADOW)
    there = redirected(desired, desired.routes, ["A"], {shadow})
    assert there == {"A": NamedRoute((shadow,), None)}
    with pytest.raises(InputError, match="no hot shadow"):
        redirected(desired, there, ["A"], {shadow})


def guards_own(desired: Desired, partition: str, percent: float) -> ServerSpec:
    planned = desired.servers[name(desired, partition, Role.ACTIVE)]
    return replace(successor(planned, percent), percent=percent)


def test_a_plan_applied_again_keeps_what_the_guard_went_over_to() -> None:
    desired = fleet(part("A", "A"), part("B", "B"))
    larger, next_one = guards_own(desired, "A", 40), guards_own(desired, "A", 50)
    b = desired.routes["B"]
    running = [larger, next_one, *(desired.servers[n] for n in (b.members[0], b.backup or ""))]
    routes = {"A": NamedRoute((larger.name,), next_one.name), "B": b}
    (one,) = moved(desired, running, routes)
    assert (one.partition, one.planned.percent, one.present.percent) == ("A", 30, 40)
    kept = as_moved(desired, running, routes)
    assert set(kept.servers) == {spec.name for spec in running}
    assert kept.routes == routes


def test_a_shadow_that_was_started_anew_is_kept_too() -> None:
    desired = fleet(part("A", "A"))
    active, another = desired.servers[name(desired, "A", Role.ACTIVE)], guards_own(desired, "A", 40)
    routes = {"A": NamedRoute((active.name,), another.name)}
    kept = as_moved(desired, [active, another], routes)
    assert (set(kept.servers), kept.routes) == ({active.name, another.name}, routes)
    assert moved(desired, [active, another], routes) == [], "it answers where it was planned"
    another_plan = fleet(part("A", "A"), plan_hash="other")
    assert moved(another_plan, [active], routes) == [], "the plan's hash decides nothing"


@pytest.mark.parametrize("larger", [False, True])
def test_a_shadow_cut_for_a_redirected_neighbour_is_as_planned_once_that_is_back(larger: bool) -> None:
    desired = fleet(part("A", "A"), part("B", "B"))
    active = desired.servers[name(desired, "A", Role.ACTIVE)]
    cut = guards_own(desired, "A", 30)
    neighbour = guards_own(desired, "B", 40) if larger else desired.servers[name(desired, "B", Role.ACTIVE)]
    routes = {"A": NamedRoute((active.name,), cut.name), "B": NamedRoute((neighbour.name,))}
    kept = as_moved(desired, [active, cut, neighbour], routes)
    planned = name(desired, "A", Role.SHADOW)
    assert (cut.name in kept.servers, planned in kept.servers) == (larger, not larger)
    assert kept.routes["A"] == NamedRoute((active.name,), cut.name if larger else planned)


def test_a_planned_shadow_that_does_not_run_is_still_wanted() -> None:
    desired = fleet(part("A", "A"))
    active = desired.servers[name(desired, "A", Role.ACTIVE)]
    assert as_moved(desired, [active], {"A": NamedRoute((active.name,))}) == desired


def test_one_half_of_a_pool_moves_alone() -> None:
    desired = fleet(part("W-1", "W"), part("W-2", "W"))
    first, second = desired.routes["W"].members
    larger = guards_own(desired, "W-1", 40)
    backup = name(desired, "W-2", Role.SHADOW)
    routes = {"W": NamedRoute((larger.name, second), backup)}
    running = [larger, desired.servers[second], desired.servers[backup]]
    kept = as_moved(desired, running, routes)
    assert kept.routes == routes
    assert first not in kept.servers


def test_turned_over_by_hand_stays_and_turns_back() -> None:
    desired = fleet(part("A", "A"))
    there = redirected(desired, desired.routes, ["A"], desired.servers)
    kept = as_moved(desired, desired.servers.values(), there)
    assert (dict(kept.servers), kept.routes) == (desired.servers, there)
    assert redirected(kept, there, ["A"], kept.servers) == desired.routes


def test_other_weights_are_not_what_was_planned() -> None:
    old, new = fleet(part("A", "A")), fleet(part("A", "A"), content="d")
    larger = guards_own(old, "A", 40)
    assert moved(new, [larger], {"A": NamedRoute((larger.name,))}) == []


@pytest.mark.parametrize("policy", [ShadowPolicy.HOT, ShadowPolicy.WARM])
def test_what_was_measured_limits_no_server_and_what_the_user_set_limits_both(policy: ShadowPolicy) -> None:
    measured = replace(part("W", "W", policy), memory_mb=34.0)
    assert {s.memory_limit_mb for s in fleet(measured).servers.values()} == {None}
    again = fleet(replace(measured, memory_mb=35.0))
    assert again.servers.keys() == fleet(measured).servers.keys(), "another measurement replaces no server"
    limited = fleet(replace(measured, memory_limit_mb=600.0))
    assert {s.memory_limit_mb for s in limited.servers.values()} == {600.0}
    assert not limited.servers.keys() & again.servers.keys()


def sharing(*names: str, limits_mb: Sequence[float | None] = (None,) * 3) -> Desired:
    alike = [part(one, one, ShadowPolicy.SHARED) for one in names]
    limited = [replace(one, memory_limit_mb=mb) for one, mb in zip(alike, limits_mb, strict=False)]
    return fleet(*limited, shared=SHARED)


def test_a_shared_shadow_is_one_server_that_backs_all_its_partitions_up() -> None:
    desired = sharing("a", "b", "c")
    standby = name(desired, "standby", Role.SHARED)
    assert len(desired.servers) == 4
    assert desired.servers[standby].endpoints == ("a", "b", "c")
    assert (desired.servers[standby].percent, desired.servers[standby].memory_mb) == (40.0, 900.0)
    assert {route.backup for route in desired.routes.values()} == {standby}
    planned = {partition: spec.name for partition, spec in planned_servers(desired).items()}
    assert planned == {"standby": standby, **{p: name(desired, p, Role.ACTIVE) for p in "abc"}}


def test_to_a_shared_shadow_an_endpoint_moves_without_the_others() -> None:
    desired = sharing("a", "b", "c")
    standby = name(desired, "standby", Role.SHARED)
    assert companions(desired, ["a"]) == ()
    routes = redirected(desired, desired.routes, ["a"], set(desired.servers))
    assert routes["a"].members == (standby,)
    assert {e: routes[e] for e in "bc"} == {e: desired.routes[e] for e in "bc"}


def test_a_shared_shadow_that_was_started_since_stays_with_the_same_plan() -> None:
    desired = sharing("a", "b")
    planned = desired.servers[name(desired, "standby", Role.SHARED)]
    later = successor(planned, 1)
    running = [s for s in desired.servers.values() if s.name != planned.name] + [later]
    routes = {e: NamedRoute(r.members, later.name) for e, r in desired.routes.items()}
    running = [replace(one, batches=(("m", 4),)) for one in running]
    kept = as_moved(desired, running, routes)
    assert kept.servers.keys() == {s.name for s in running}
    assert kept.servers[later.name].batches == planned.batches, "the plan's, not what it serves with"
    assert kept.routes == routes


def test_a_shared_shadow_may_take_what_all_its_partitions_may() -> None:
    for limits_mb, together_mb in (((300.0, 500.0), 800.0), ((300.0, None), None)):
        desired = sharing("a", "b", limits_mb=limits_mb)
        assert desired.servers[name(desired, "standby", Role.SHARED)].memory_limit_mb == together_mb


@pytest.mark.parametrize("role", [Role.ACTIVE, Role.SHADOW])
def test_whichever_server_of_a_partition_another_one_replaced_it_gets_the_planned_batches(role: Role) -> None:
    desired, wanted = fleet(part("W", "W")), (("m", 2),)
    servers = {key: replace(one, batches=wanted) for key, one in desired.servers.items()}
    planned = desired.servers[name(desired, "W", role)]
    running = build.server(replace(successor(planned, 1), batches=(("m", 4),)))
    assert batches_as_planned(replace(desired, servers=servers), [running]) == [
        SetBatches(running.name, wanted)
    ]
