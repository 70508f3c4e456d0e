"""Families side by side: which pairs pay, what their parts are prepared for, what a plan makes of them."""

from dataclasses import replace
from functools import cache

import numpy as np
import planning
import pytest

from controlplane.domain.plan import Plan, Rule
from controlplane.domain.workload import ShadowPolicy, ShadowWish, with_covers_demanded
from controlplane.latency.protocol import Slots
from controlplane.planning.capacity.gpu_types import GpuType
from controlplane.planning.capacity.items import Group, families
from controlplane.planning.joint.grouping import groupings
from controlplane.planning.joint.pairs import Side, pair_sides, side_batches


@cache
def v100() -> GpuType:
    return planning.gpu_type("ours")


@cache
def found() -> tuple[list[Group], list[list[Side]], list[float]]:
    asked = families(planning.published(200), Rule.P99)
    return asked, *pair_sides(v100(), asked)


def test_each_pair_has_two_sides_that_share_a_gpu() -> None:
    asked, sides, paid = found()
    percents = v100().percents
    both: dict[int, list[tuple[str, Side]]] = {}
    for family, its in zip(asked, sides, strict=True):
        for side in its:
            both.setdefault(side.pair, []).append((family[0].model, side))
    assert both
    for one, other in both.values():
        assert one[0] != other[0]
        assert percents[one[1].column] + percents[other[1].column] <= 100.0
        # Together the two pay for their GPU, at what a whole one's load is worth to each.
        assert one[1].cost + other[1].cost == pytest.approx(1.0)
    assert min(paid) < 1.0
    assert max(paid) == pytest.approx(1.0)


def test_a_side_is_prepared_for_every_batch_of_the_other() -> None:
    asked, sides, _ = found()
    percents = v100().percents
    number = {f[0].model: v100().number_of(f[0].model) for f in asked}
    side_of = {(s.pair, f[0].model): s for f, its in zip(asked, sides, strict=True) for s in its}
    for (pair, model), side in side_of.items():
        other, theirs = next((m, s) for (p, m), s in side_of.items() if p == pair and m != model)
        for batch in theirs.batches.tolist():
            size = side.batches.astype(np.float64)
            slots = Slots.of(
                [[number[model], number[other]]] * size.size,
                np.column_stack([size, np.full(size.size, float(batch))]),
                [[percents[side.column], percents[theirs.column]]] * size.size,
            )
            execution, _ = v100().ask(slots)
            assert (execution[:, 0] <= side.times.execution[side.batches - 1, 0] + 1e-9).all()


def test_nothing_is_paired_where_it_does_not_pay() -> None:
    asked = families(planning.published(200), Rule.P99)
    for few in (asked[:1], [asked[0][-1:], asked[1][-1:]], asked * 2):
        sides, _ = pair_sides(v100(), few)
        assert not any(sides)


def test_batches_of_a_part_are_known_to_the_table() -> None:
    assert side_batches(4).tolist() == [1, 2, 3, 4]
    assert side_batches(16).tolist() == [4, 5, 6, 8, 10, 12, 16]


def test_less_care_is_tried_too_but_where_shadows_must_cover() -> None:
    asked, types = planning.published(200), {"v100": v100()}
    usual, less = groupings(asked, types)
    assert usual.fixed_gpus
    assert less.fixed_gpus
    assert usual != less
    assert list(groupings(with_covers_demanded(asked, 1.1), types)) == [
        replace(usual, pools=tuple(replace(p, group=with_covers_demanded(p.group, 1.1)) for p in usual.pools))
    ]


@cache
def paired() -> Plan:
    return planning.joint_p99(planning.published(200))


@pytest.mark.slow
def test_a_plan_for_many_stands_pairs_side_by_side() -> None:
    plan = paired()
    assert plan.verified
    assert not plan.infeasible
    beside = [{p.models[0].model for p in gpu.partitions} for gpu in plan.gpus if len(gpu.partitions) == 2]
    assert sum(len(models) == 2 for models in beside) > 20


@pytest.mark.slow
def test_a_workload_that_needs_more_memory_than_a_pair_has_stands_alone() -> None:
    most = planning.v100("ours").pool.device.memory_mb
    assert most is not None
    shadow = ShadowWish(ShadowPolicy.NONE)
    hungry = [replace(w, memory_mb=0.7 * most, shadow=shadow) for w in planning.published(200)[:70]]
    plan = planning.joint_p99(hungry)
    assert plan.verified
    assert not plan.infeasible
    assert all(len(gpu.partitions) == 1 for gpu in plan.gpus)
