"""Shadows that must cover what the spec demands."""

from dataclasses import replace

import planning
import pytest
from planning import v100

from controlplane.domain.plan import Plan
from controlplane.domain.workload import ShadowPlace, ShadowWish, Workload, with_covers_demanded

FOUR = planning.published(12)[:4]
"""One GPU serves them, and two where each shadow covers a quarter more."""


def planned(workloads: tuple[Workload, ...], count: int | None = None, **more: object) -> Plan:
    return planning.joint_p99(workloads, device=v100("ours", count), **more)


def covers(plan: Plan) -> list[float]:
    return [p.shadow.covers or 0.0 for _, p in plan.partitions() if p.shadow is not None]


@pytest.mark.parametrize(("factor", "gpus"), [(1.1, 9), (1.25, 9)])
def test_a_demand_is_met_and_the_plan_says_what_it_costs(factor: float, gpus: int) -> None:
    plan = planned(with_covers_demanded(planning.published(12), factor))
    assert plan.verified
    assert not plan.infeasible
    assert min(covers(plan)) >= factor
    assert len(plan.gpus) <= gpus
    assert planning.totals(plan).gpus_for_demands == len(plan.gpus) - 7


def test_what_shadows_on_other_gpus_cost_is_said_too() -> None:
    elsewhere = ShadowWish(place=ShadowPlace.OTHER_GPU)
    plan = planned(tuple(replace(w, shadow=elsewhere) for w in planning.published(12)))
    assert all(p.survives_gpu_loss is not None for _, p in plan.partitions())
    assert planning.totals(plan).gpus_for_demands == len(plan.gpus) - 7 > 0


def test_one_workload_that_demands_costs_no_more_than_all_of_them() -> None:
    first, *others = planning.published(12)
    plan = planned((*with_covers_demanded([first], 1.25), *others))
    assert plan.verified
    own = [p.shadow for _, p in plan.partitions() if any(w.name == first.name for w in p.workloads)]
    assert all(shadow is not None and (shadow.covers or 0.0) >= 1.25 for shadow in own)
    assert len(plan.gpus) == 7


def test_a_demand_that_no_gpu_is_left_for_is_a_violation_of_its_partition() -> None:
    plan = planned(with_covers_demanded(FOUR, 1.25), count=1)
    assert not plan.infeasible, "all are served"
    short = {p.id for _, p in plan.partitions() if p.shadow is not None and (p.shadow.covers or 0.0) < 1.25}
    assert short == {v.subject for v in plan.violations}
    assert short


def test_what_runs_stays_where_it_covers_what_is_demanded() -> None:
    asked = with_covers_demanded(FOUR, 1.25)
    plan = planned(asked)
    assert planning.layout(planned(asked, previous=plan)) == planning.layout(plan)
    bare = planned(FOUR)
    assert min(covers(bare)) < 1.25
    moved = planned(asked, previous=bare)
    assert moved.verified
    assert min(covers(moved)) >= 1.25
