"""Partitions spread over the GPUs that a plan has anyhow."""

from collections.abc import Sequence
from dataclasses import replace

import planning
from planning import v100, workload

from controlplane.domain.plan import PlannedGpu, Rule
from controlplane.domain.workload import ShadowPolicy, ShadowWish
from controlplane.planning.joint.spread import spread
from controlplane.planning.judge.evaluate import Terms, judge
from controlplane.planning.judge.placements import gpu_of, partition_of

MODELS = ("alexnet", "resnet50", "vgg19", "ssd")
TERMS = Terms(Rule.P99, 0.95)


def laid_out(shares: Sequence[Sequence[float]]) -> tuple[PlannedGpu, ...]:
    """GPUs with partitions of these shares, each of a workload that asks for little."""
    return tuple(
        gpu_of(
            i,
            v100("ours"),
            [
                partition_of(f"w{i}-{j}", [workload(f"w{i}-{j}", MODELS[j], 500.0, 5.0)], share, 2, None)
                for j, share in enumerate(own)
            ],
        )
        for i, own in enumerate(shares)
    )


def spread_out(gpus: tuple[PlannedGpu, ...], wish: ShadowWish) -> list[float]:
    """The percent of each GPU."""
    wishes = {w.name: wish for g in gpus for p in g.partitions for w in p.workloads}
    found = spread(gpus, wishes, {"v100": v100("ours")}, TERMS)
    assert all(one.meets_slo for one in judge(found, {"v100": v100("ours")}, TERMS))
    before, after = (sorted(p.id for g in of for p in g.partitions) for of in (gpus, found))
    assert before == after
    return sorted(g.percent for g in found)


def test_what_is_free_goes_to_the_tightest_gpu() -> None:
    gpus = laid_out([[40.0, 30.0, 30.0], [20.0]])
    assert spread_out(gpus, ShadowWish()) == [50.0, 70.0]


def test_nothing_moves_where_no_shadow_would_gain() -> None:
    gpus = laid_out([[40.0, 30.0, 30.0], [20.0]])
    assert spread_out(gpus, ShadowWish(ShadowPolicy.NONE)) == [20.0, 100.0]
    tight = laid_out([[50.0, 50.0], [50.0, 50.0]])
    assert spread_out(tight, ShadowWish()) == [100.0, 100.0]


def test_memory_bounds_what_may_move() -> None:
    gpus = tuple(
        replace(g, memory_mb=1000.0, partitions=tuple(replace(p, memory_mb=150.0) for p in g.partitions))
        for g in laid_out([[40.0, 30.0, 30.0], [20.0, 20.0, 10.0]])
    )
    changed = spread_out(gpus, ShadowWish())
    assert changed != [50.0, 100.0], "three partitions with their shadows fit each GPU, swaps are possible"


def test_a_plan_with_room_on_its_last_gpu_covers_more() -> None:
    names = ("alexnet", "resnet50", "vgg19", "ssd")
    workloads = [workload(f"{m}-{n}", m, 60.0, 60.0) for m in names for n in range(2)]
    asked = [replace(w, isolated=True) for w in workloads]
    plan = planning.joint_p99(asked)
    assert plan.verified
    rooms = [100.0 - g.percent for g in plan.gpus]
    assert max(rooms) - min(rooms) <= 25.0


def test_nothing_is_spread_over_no_gpu_or_one() -> None:
    for gpus in (laid_out([]), laid_out([[40.0, 30.0]])):
        assert spread_out(gpus, ShadowWish()) == [g.percent for g in gpus]
