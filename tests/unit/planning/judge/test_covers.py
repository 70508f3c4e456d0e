"""What shadows get and cover and what survives a lost GPU, compared with plans judged in that state."""

from collections.abc import Sequence
from dataclasses import replace

import planning
import pytest
from planning import v100, workload
from slower import Slower, redirected, served_by

from controlplane.domain.device import ShareGrid
from controlplane.domain.plan import Plan, Rule, Shadow
from controlplane.domain.workload import ShadowPlace, ShadowPolicy, ShadowWish, Workload
from controlplane.planning.judge.covers import with_covers
from controlplane.planning.judge.evaluate import Terms, evaluate, judge
from controlplane.planning.judge.extras import harmless
from controlplane.planning.judge.finalise import Draft, finalise
from controlplane.planning.judge.placements import gpu_of, partition_of, with_partitions
from controlplane.planning.judge.shadows import EXTRA_PERCENT

ELSEWHERE = ShadowWish(place=ShadowPlace.OTHER_GPU)


def broken(plan: Plan, model: str, factor: float) -> set[str]:
    """The GPUs on which a promise breaks where a model is slower and all its shadows are active."""
    device = v100(plan.latency_model)
    slower = replace(device, latency=Slower(device.latency, model, factor))
    active = redirected(plan, served_by(plan, model)).gpus
    verdicts = judge(active, {"v100": slower}, Terms.of(plan))
    return {one.gpu.id for one in verdicts if not one.meets_slo}


@pytest.mark.parametrize(("rule", "latency"), [(Rule.P99, "ours"), (Rule.HALF_SLO, "igniter")])
def test_a_shadow_covers_as_much_as_the_judge_says_of_the_whole_plan(rule: Rule, latency: str) -> None:
    plan = planning.planned("joint", planning.published(12), latency=latency, rule=rule)
    assert plan.verified
    seen = []
    for gpu, partition in plan.partitions():
        assert partition.shadow is not None
        covers, model = partition.shadow.covers, partition.models[0].model
        assert covers is not None
        if covers > 1.0:
            assert gpu.id not in broken(plan, model, covers)
        if covers < 2.0:
            assert gpu.id in broken(plan, model, covers + 0.02)
        seen.append(covers)
    assert min(seen) < 1.1 < max(seen)


def laid_out(gpus: Sequence[Sequence[tuple[Workload, float]]], most_extra: float | None = None) -> Plan:
    """GPUs with a partition of each of these shares; a workload that is listed twice is served by a pool."""
    listed = [own for gpu in gpus for own, _ in gpu]
    drafted = []
    for i, gpu in enumerate(gpus):
        each = [(f"{w.name}-{i}", w, share, 1.0 / listed.count(w)) for w, share in gpu]
        partitions = [partition_of(name, [w], share, 2, None, part) for name, w, share, part in each]
        drafted.append(gpu_of(i, v100("ours"), partitions))
    request = planning.p99_request(list(dict.fromkeys(listed)))
    return finalise("by-hand", request, Draft(tuple(drafted), most_extra=most_extra), 0.0)


def test_a_shared_shadow_that_serves_leaves_the_others_of_its_gpu_theirs() -> None:
    own = [(workload(name, "alexnet", 40.0, 300.0), 20.0) for name in "abc"]
    plan = laid_out([own])
    devices, terms = {"v100": v100("ours")}, Terms.of(plan)
    found = evaluate(plan.gpus, devices, terms)

    def covers(policy: ShadowPolicy, extras: Sequence[float]) -> list[float | None]:
        """Of all three, where two shadows have this policy and the last one is hot."""
        (gpu,) = plan.gpus
        parts = tuple(
            replace(p, shadow=Shadow(kind, gpu.id, extra, p.percent + extra))
            for p, kind, extra in zip(gpu.partitions, (policy, policy, ShadowPolicy.HOT), extras, strict=True)
        )
        (judged,) = with_covers([replace(gpu, partitions=parts)], found, devices, terms)
        return [p.shadow.covers for p in judged.partitions if p.shadow]

    assert covers(ShadowPolicy.SHARED, (10.0, 10.0, 10.0)) == covers(ShadowPolicy.HOT, (10.0, 0.0, 10.0))


def survivors(plan: Plan) -> list[bool | None]:
    assert plan.verified
    return [p.survives_gpu_loss for _, p in plan.partitions()]


def test_a_lost_gpu_is_survived_by_a_shadow_elsewhere_not_by_one_beside() -> None:
    here = workload("a", "alexnet", 500.0, 10.0)
    assert survivors(laid_out([[(here, 50.0)]])) == [False]
    assert survivors(laid_out([[(replace(here, shadow=ELSEWHERE), 50.0)]])) == [True]


def test_shadows_of_one_gpu_need_room_together() -> None:
    """Each of them has room by itself; where the GPU is lost, both are active."""
    a, b = (workload(name, "alexnet", 500.0, 10.0) for name in "ab")
    elsewhere = [(replace(w, shadow=ELSEWHERE), 50.0) for w in (a, b)]
    plan = laid_out([elsewhere])
    assert {p.shadow.gpu for _, p in plan.partitions() if p.shadow is not None} == {"v100-1"}
    assert survivors(plan) == [True, False]


@pytest.mark.parametrize(("rate", "survives"), [(20.0, True), (2500.0, False)])
def test_a_pool_survives_where_its_rest_carries_the_rate(rate: float, survives: bool) -> None:
    pool = workload("a", "alexnet", 40.0, rate)
    assert survivors(laid_out([[(pool, 50.0)], [(pool, 50.0)]])) == [survives] * 2


def test_a_plan_with_a_broken_promise_says_nothing() -> None:
    plan = laid_out([[(workload("a", "vgg19", 20.0, 900.0), 50.0)]])
    assert not plan.verified
    (partition,) = (p for _, p in plan.partitions())
    assert partition.survives_gpu_loss is None
    assert partition.shadow is not None
    assert partition.shadow.covers is None


@pytest.mark.parametrize(("demanded", "said"), [(1.0, []), (2.0, ["not 2: v100-0 has 0 % left"])])
def test_a_shadow_that_covers_less_than_is_demanded_is_a_violation(demanded: float, said: list[str]) -> None:
    asked = replace(workload("v", "vgg19", 60.0, 100.0), shadow=ShadowWish(covers=demanded))
    plan = laid_out([[(asked, 30.0), (workload("a", "alexnet", 60.0, 10.0), 70.0)]])
    assert [v.reason.split("times, ")[-1] for v in plan.violations] == said


# -- what a shadow gets on top of its partition's share --------------------------------------------------


def extras(plan: Plan) -> list[float]:
    return [p.shadow.extra_percent for _, p in plan.partitions() if p.shadow is not None]


def covers(plan: Plan) -> list[float]:
    return [p.shadow.covers or 0.0 for _, p in plan.partitions() if p.shadow is not None]


A, B = workload("a", "alexnet", 12.0, 900.0), workload("b", "alexnet", 12.0, 900.0)
V = workload("v", "vgg19", 60.0, 100.0)


def test_one_gets_more_than_a_tenth_where_that_covers_more() -> None:
    tenth, free = laid_out([[(V, 30.0)]], EXTRA_PERCENT), laid_out([[(V, 30.0)]])
    assert extras(tenth) == [EXTRA_PERCENT]
    assert extras(free)[0] > EXTRA_PERCENT
    assert covers(free) > covers(tenth)


def test_those_of_one_model_share_what_is_free() -> None:
    """Each with ten leaves the second none while both are active."""
    shares = [(A, 45.0), (B, 42.5)]
    plan = laid_out([shares])
    assert sum(extras(plan)) <= 12.5
    assert min(extras(plan)) > 0.0
    assert min(covers(plan)) > min(covers(laid_out([shares], EXTRA_PERCENT)))


def test_those_of_different_models_may_each_have_all_of_it() -> None:
    plan = laid_out([[(A, 40.0), (V, 45.0)]])
    assert sum(extras(plan)) > 15.0


@pytest.mark.parametrize(("rule", "latency"), [(Rule.P99, "ours"), (Rule.HALF_SLO, "igniter")])
def test_none_covers_less_than_with_a_tenth(rule: Rule, latency: str) -> None:
    plan = planning.planned("joint", planning.published(12), latency=latency, rule=rule)
    request = planning.request(planning.published(12), latency=latency, rule=rule)
    bare = with_partitions(plan.gpus, lambda p: replace(p, shadow=None))
    tenth = finalise("joint", request, Draft(bare, most_extra=EXTRA_PERCENT), 0.0)
    assert all(now >= then for now, then in zip(covers(plan), covers(tenth), strict=True))
    assert sum(covers(plan)) > sum(covers(tenth))


def test_igniter_gives_a_tenth_or_what_is_left() -> None:
    """Less only where that breaks a neighbour's promise."""
    plan = planning.planned("igniter", planning.published(12))
    rest = [min(EXTRA_PERCENT, 100.0 - gpu.percent) for gpu, _ in plan.partitions()]
    given = extras(plan)
    assert all(extra <= most for extra, most in zip(given, rest, strict=True))
    assert sum(extra == most for extra, most in zip(given, rest, strict=True)) > len(rest) / 2


def test_an_extra_that_breaks_a_neighbour_shrinks_by_steps_of_the_grid_down_to_none() -> None:
    device, terms = planning.on_grid(v100(), ShareGrid(2.5, 0.5)), Terms(Rule.HALF_SLO)
    workloads = [workload("a", "alexnet", 500.0, 10.0), workload("v", "vgg19", 500.0, 10.0)]
    gpu = gpu_of(0, device, [partition_of(w.name, [w], 40.0, 2, None) for w in workloads])
    found = evaluate([gpu], {"v100": device}, terms)["v100"]
    # It holds by nothing: any extra of its neighbour breaks it.
    tight = replace(workloads[1], slo_ms=2.0 * float(found.times.round_ms[0, 1]))
    gpu = replace(gpu, partitions=(gpu.partitions[0], partition_of("v", [tight], 40.0, 2, None)))
    base = evaluate([gpu], {"v100": device}, terms)["v100"]
    assert base.meets_slo.all()
    assert harmless(base, {"a": 1.5}, device, terms) == {"a": 0.0}
