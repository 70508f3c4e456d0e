"""Light models of different families that take turns in one partition."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import planning
import pytest

from controlplane.control.order import order_of
from controlplane.domain.errors import InputError
from controlplane.domain.plan import Plan, Rule
from controlplane.domain.workload import ShadowPolicy, ShadowWish, Workload
from controlplane.planning import registry
from controlplane.planning.exact.prove import prove
from controlplane.planning.protocol import Device, PlanRequest
from controlplane.simulate.arrivals import Demand
from controlplane.simulate.engine import Settings, simulate
from controlplane.simulate.network import Conditions

SLO_MS = {"alexnet": 60.0, "resnet50": 160.0, "vgg19": 240.0}


def light(count: int, **more: object) -> tuple[Workload, ...]:
    """So many workloads of a few requests per second, each of another model, without shadows."""
    none = ShadowWish(ShadowPolicy.NONE)
    models = [(model, n) for n in range(4) for model in SLO_MS][:count]
    return tuple(
        replace(planning.workload(f"{m}{n}", f"{m}-{n}", SLO_MS[m], 4.0), **{"shadow": none, **more})
        for m, n in models
    )


def asked(workloads: tuple[Workload, ...], device: Device, rule: Rule = Rule.P99) -> PlanRequest:
    return PlanRequest(workloads, {"v100": device}, rule, planning.StoppedClock())


def plan_of(request: PlanRequest) -> Plan:
    return registry.strategy("joint").plan(request)


@cache
def ten() -> Plan:
    return plan_of(asked(light(10), planning.cores(4)))


def test_ten_light_models_fit_on_one_gpu_of_five_shares() -> None:
    plan = ten()
    assert plan.verified
    assert len(plan.gpus) == 1
    assert sum(len(p.models) for _, p in plan.partitions()) == 10
    assert planning.totals(plan).lower_bound_cost_per_hour is not None
    assert planning.totals(plan).lower_bound_cost_per_hour <= planning.totals(plan).cost_per_hour


def test_their_promises_hold_in_a_simulation() -> None:
    plan = ten()
    demands = {w.name: Demand.of(w.arrivals, w.rate_rps) for _, _, w in plan.placements()}
    seen = simulate(plan, {"v100": planning.cores(4).latency}, Settings(seconds=300.0, demands=demands))
    assert all(w.holds for w in seen.workloads)


@pytest.mark.slow
def test_more_than_sixteen_light_models_share_a_gpu_and_are_simulated() -> None:
    none = ShadowWish(ShadowPolicy.NONE)
    names = [f"{model}-{n}" for n in range(8) for model in SLO_MS][:17]
    workloads = tuple(replace(planning.workload(n, n, 2000.0, 0.1), shadow=none) for n in names)
    device = planning.cores(8, 1)
    plan = plan_of(asked(workloads, device))
    assert (plan.verified, plan.infeasible, len(plan.gpus)) == (True, (), 1)
    seen = simulate(plan, {"v100": device.latency}, Settings(seconds=2000.0))
    assert {w.name for w in seen.workloads} == set(names)
    assert all(w.holds for w in seen.workloads)
    (gpu,) = seen.gpus
    each = sum(p.busy_percent for p in gpu.partitions)
    assert gpu.busy_percent <= each <= 1.1 * gpu.busy_percent, "each is counted once, and few run at once"


@pytest.mark.parametrize("rule", Rule)
def test_counted_gpus_serve_more_workloads_in_turns(rule: Rule) -> None:
    plan = plan_of(asked(light(9), planning.cores(4, count=1), rule))
    assert plan.verified
    assert not plan.infeasible
    assert any(p.turns for _, p in plan.partitions())


def test_isolated_workloads_take_no_turns() -> None:
    plan = plan_of(asked(light(10, isolated=True), planning.cores(4)))
    assert plan.verified
    assert len(plan.gpus) == 2
    assert not any(p.turns for _, p in plan.partitions())


def test_a_gpu_without_memory_for_more_takes_no_guest() -> None:
    plan = plan_of(asked(light(10, memory_mb=3000.0), planning.cores(4)))
    assert plan.verified
    assert len(plan.gpus) == 2


def test_shadows_that_stand_by_count() -> None:
    plan = plan_of(asked(light(10, shadow=ShadowWish(), memory_mb=1000.0), planning.cores(4)))
    assert plan.verified
    assert all(sum(2 * (p.memory_mb or 0.0) for p in g.partitions) <= 16384.0 for g in plan.gpus)


def test_requests_of_several_inferences_stay_whole() -> None:
    plan = plan_of(asked(light(10, client_batch=2), planning.cores(4)))
    assert plan.verified
    assert any(p.turns for _, p in plan.partitions())
    assert all(m.batch % 2 == 0 for _, p in plan.partitions() for m in p.models)


def test_the_same_question_moves_nothing() -> None:
    request = asked(light(10), planning.cores(4))
    again = plan_of(replace(request, previous=ten()))
    assert again.gpus == ten().gpus


def test_nothing_is_proven_of_turns() -> None:
    request = asked(light(10), planning.cores(4))
    assert prove(ten(), request) == ten()


def test_a_limit_in_seconds_ends_the_search() -> None:
    request = replace(asked(light(10), planning.cores(4)), budget_s=0.0)
    assert plan_of(request).verified


def test_the_published_workloads_take_no_turns() -> None:
    plan = planning.joint_p99(planning.published(50))
    assert not any(p.turns for _, p in plan.partitions())


@pytest.mark.slow
def test_late_binding_saves_a_gpu_and_its_promises_hold_in_a_simulation() -> None:
    request = asked(planning.mixed(12, 5, seed=7), planning.cores(5))
    without = plan_of(request)
    plan = registry.strategy("joint", late_binding=True).plan(request)
    assert plan.verified
    assert len(plan.gpus) < len(without.gpus)
    assert plan.ordered
    assert not without.ordered
    demands = {w.name: Demand.of(w.arrivals, w.rate_rps) for _, _, w in plan.placements()}
    seen = simulate(
        plan,
        {"v100": planning.cores(5).latency},
        Settings(seconds=300.0, demands=demands),
        Conditions(order=order_of(plan, None)),
    )
    assert all(w.holds for w in seen.workloads)


def test_late_binding_is_joints_option() -> None:
    with pytest.raises(InputError, match="late_binding: is for --strategy joint alone"):
        registry.strategy("igniter", late_binding=True)
