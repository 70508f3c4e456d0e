"""Light models of different families that take turns in one partition."""

from dataclasses import replace
from functools import cache

import planning
import pytest
from planning import cores, joint_p99, p99_request

from controlplane.control.order import order_of
from controlplane.domain.errors import InputError
from controlplane.domain.plan import Plan, Rule
from controlplane.domain.workload import ShadowPolicy, ShadowWish, Workload
from controlplane.planning import registry
from controlplane.planning.exact.prove import prove
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


def planned(workloads: tuple[Workload, ...], **more: object) -> Plan:
    return joint_p99(workloads, **{"device": cores(4), **more})


@cache
def ten() -> Plan:
    return planned(light(10))


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
    seen = simulate(plan, {"v100": cores(4).latency}, Settings(seconds=300.0, demands=demands))
    assert all(w.holds for w in seen.workloads)


@pytest.mark.slow
def test_more_than_sixteen_light_models_share_a_gpu_and_are_simulated() -> None:
    none = ShadowWish(ShadowPolicy.NONE)
    names = [f"{model}-{n}" for n in range(8) for model in SLO_MS][:17]
    workloads = tuple(replace(planning.workload(n, n, 2000.0, 0.1), shadow=none) for n in names)
    device = cores(8, 1)
    plan = planned(workloads, device=device)
    assert (plan.verified, plan.infeasible, len(plan.gpus)) == (True, (), 1)
    seen = simulate(plan, {"v100": device.latency}, Settings(seconds=2000.0))
    assert {w.name for w in seen.workloads} == set(names)
    assert all(w.holds for w in seen.workloads)
    (gpu,) = seen.gpus
    each = sum(p.busy_percent for p in gpu.partitions)
    assert gpu.busy_percent <= each <= 1.1 * gpu.busy_percent, "each is counted once, and few run at once"


@pytest.mark.parametrize("rule", Rule)
def test_counted_gpus_serve_more_workloads_in_turns(rule: Rule) -> None:
    device = cores(4, count=1)
    plan = planning.planned("joint", light(9), rule=rule, device=device)
    assert plan.verified
    assert not plan.infeasible
    assert any(p.turns for _, p in plan.partitions())


@pytest.mark.parametrize(
    ("more", "gpus", "in_turns"),
    [
        ({"isolated": True}, 2, False),
        ({"memory_mb": 3000.0}, 2, False),
        ({"shadow": ShadowWish(), "memory_mb": 1000.0}, 2, False),
        ({"client_batch": 2}, 1, True),
    ],
)
def test_turns_need_workloads_that_share_and_memory_for_all(
    more: dict[str, object], gpus: int, in_turns: bool
) -> None:
    """The judge refuses a GPU without the memory, shadows that stand by included, and parts of requests."""
    plan = planned(light(10, **more))
    assert (plan.verified, len(plan.gpus)) == (True, gpus)
    assert any(p.turns for _, p in plan.partitions()) == in_turns


def test_the_same_question_moves_nothing_and_nothing_is_proven_of_turns() -> None:
    assert planned(light(10), previous=ten()).gpus == ten().gpus
    assert prove(ten(), p99_request(light(10), device=cores(4))) == ten()


def test_a_limit_in_seconds_ends_the_search() -> None:
    assert planned(light(10), budget_s=0.0).verified


def test_the_published_workloads_take_no_turns() -> None:
    plan = joint_p99(planning.published(50))
    assert not any(p.turns for _, p in plan.partitions())


@pytest.mark.slow
def test_late_binding_saves_a_gpu_and_its_promises_hold_in_a_simulation() -> None:
    request = p99_request(planning.mixed(12, 5, seed=7), device=cores(5))
    without = registry.strategy("joint").plan(request)
    plan = registry.strategy("joint", late_binding=True).plan(request)
    assert plan.verified
    assert len(plan.gpus) < len(without.gpus)
    assert plan.ordered
    assert not without.ordered
    demands = {w.name: Demand.of(w.arrivals, w.rate_rps) for _, _, w in plan.placements()}
    seen = simulate(
        plan,
        {"v100": cores(5).latency},
        Settings(seconds=300.0, demands=demands),
        Conditions(order=order_of(plan, None)),
    )
    assert all(w.holds for w in seen.workloads)


def test_late_binding_is_joints_option() -> None:
    with pytest.raises(InputError, match="late_binding: is for --strategy joint alone"):
        registry.strategy("igniter", late_binding=True)
