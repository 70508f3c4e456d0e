"""Shadows whose policy the plan decides: hot where that costs no GPU more, else warm."""

from dataclasses import replace

import planning
import turing

from controlplane.domain.plan import Plan, Rule, memory_used_mb
from controlplane.domain.workload import ShadowPolicy, ShadowWish
from controlplane.planning import registry
from controlplane.planning.protocol import PlanRequest

LOAD_S = {"vgg16": 3.0, "resnet50": 0.8}


def asked(wish: ShadowWish, count: int | None = None) -> PlanRequest:
    """The six with such shadows; of two it is known how long they take to load."""
    workloads = tuple(replace(w, shadow=wish) for w in turing.asked(turing.SIX))
    request = turing.question(workloads, count, Rule.P99, "ours")
    device = request.devices["rtx2080ti"]
    profiles = {name: replace(p, load_s=LOAD_S.get(name)) for name, p in device.profiles.items()}
    return replace(request, devices={"rtx2080ti": replace(device, profiles=profiles)})


def planned(request: PlanRequest) -> Plan:
    plan = registry.strategy("joint").plan(request)
    for gpu in plan.gpus:
        assert sum(memory_used_mb(plan.gpus)[gpu.id].values()) <= (gpu.memory_mb or 0.0)
    return plan


def policies(plan: Plan) -> dict[str, ShadowPolicy]:
    return {p.id: p.shadow.policy for _, p in plan.partitions() if p.shadow is not None}


def test_memory_for_hot_shadows_costs_gpus_that_warm_ones_save() -> None:
    bare, hot, auto = (
        planned(asked(ShadowWish(policy)))
        for policy in (ShadowPolicy.NONE, ShadowPolicy.HOT, ShadowPolicy.AUTO)
    )
    assert [len(p.gpus) for p in (bare, auto)] == [2, 2]
    assert len(hot.gpus) >= 4
    assert auto.verified
    decided = policies(auto)
    assert len(decided) == len(turing.SIX), "each has one"
    assert set(decided.values()) == {ShadowPolicy.HOT, ShadowPolicy.WARM}, "hot where memory is left"


def test_all_are_hot_where_that_costs_no_more() -> None:
    few = asked(ShadowWish())
    few = replace(few, workloads=tuple(w for w in few.workloads if w.model in ("googlenet", "mobilenet_v2")))
    plan = planned(few)
    assert len(plan.gpus) == 1
    assert set(policies(plan).values()) == {ShadowPolicy.HOT}


def test_a_limit_in_seconds_makes_hot_what_loads_longer_or_is_unknown() -> None:
    free, plan = planned(asked(ShadowWish())), planned(asked(ShadowWish(within_s=1.0)))
    assert plan.verified
    assert planning.totals(plan).gpus_for_demands == len(plan.gpus) - len(free.gpus)
    decided = policies(plan)
    assert {name for name, policy in decided.items() if policy is ShadowPolicy.WARM} <= {"resnet50"}
    assert len(plan.gpus) > 2


def test_a_limit_in_seconds_is_met_by_a_shared_shadow_where_hot_ones_cost_a_gpu() -> None:
    """A process takes 1,230 MB: the two need 9,840 MB with a shadow each, 8,610 with one for both."""

    def on_9_gb(wish: ShadowWish) -> Plan:
        request = asked(wish)
        device = request.devices["rtx2080ti"]
        small = replace(device.pool, device=replace(device.pool.device, memory_mb=9000.0))
        profiles = {name: replace(profile, load_s=None) for name, profile in device.profiles.items()}
        device = replace(device, pool=small, profiles=profiles)
        pair = turing.asked({"resnet50": 100.0, "ssd-mobilenetv1": 100.0})
        workloads = tuple(replace(w, shadow=wish) for w in pair)
        return planned(replace(request, workloads=workloads, devices={"rtx2080ti": device}))

    hot, plan = on_9_gb(ShadowWish(ShadowPolicy.HOT)), on_9_gb(ShadowWish(within_s=1.0))
    assert [len(p.gpus) for p in (hot, plan)] == [2, 1]
    assert plan.verified, plan.violations
    assert set(policies(plan).values()) == {ShadowPolicy.SHARED}


def test_a_warm_shadow_that_loads_too_long_is_a_violation() -> None:
    request = asked(ShadowWish(ShadowPolicy.WARM, within_s=1.0))
    plan = planned(request)
    late = {v.subject for v in plan.violations}
    assert late == turing.SIX.keys() - {"resnet50"}


def test_where_gpus_are_limited_memory_is_named_as_what_runs_out() -> None:
    plan = planned(asked(ShadowWish(ShadowPolicy.HOT), count=2))
    assert plan.infeasible
    assert all(i.reason.startswith("memory runs out: ") for i in plan.infeasible)


def test_a_batch_that_a_gpu_has_no_memory_for_takes_no_gpu_more() -> None:
    """The best batch of this model does not fit beside its shadow; a smaller one does and holds the SLO."""
    hot = replace(planning.workload("r", "resnet50", 120.0, 300.0), shadow=ShadowWish(ShadowPolicy.HOT))
    device = planning.v100_with_memory()
    kind = replace(device.pool.device, memory_mb=3000.0)
    device = replace(device, pool=replace(device.pool, device=kind))
    plan = planned(planning.p99_request([hot], device=device))
    assert plan.verified
    assert len(plan.gpus) == 1
