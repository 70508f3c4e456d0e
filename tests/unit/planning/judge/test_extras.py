"""What shadows get on top of their partitions' shares, of layouts made by hand and of whole plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import planning
import pytest
from planning import v100, workload

from controlplane.domain.plan import Plan, Rule
from controlplane.domain.workload import Workload
from controlplane.planning.judge.finalise import Draft, finalise
from controlplane.planning.judge.placements import gpu_of, partition_of
from controlplane.planning.judge.shadows import EXTRA_PERCENT


def laid_out(shares: Sequence[tuple[Workload, float]], most_extra: float | None = None) -> Plan:
    """One GPU with a partition of each of these shares."""
    workloads = [own for own, _ in shares]
    gpu = gpu_of(0, v100("ours"), [partition_of(w.name, [w], share, 2, None) for w, share in shares])
    request = planning.request(workloads, latency="ours", rule=Rule.P99)
    plan = finalise("by-hand", request, Draft((gpu,), most_extra=most_extra), 0.0)
    assert plan.verified
    return plan


def extras(plan: Plan) -> list[float]:
    return [p.shadow.extra_percent for _, p in plan.partitions() if p.shadow is not None]


def covers(plan: Plan) -> list[float]:
    return [p.shadow.covers or 0.0 for _, p in plan.partitions() if p.shadow is not None]


A, B = workload("a", "alexnet", 12.0, 900.0), workload("b", "alexnet", 12.0, 900.0)
V = workload("v", "vgg19", 60.0, 100.0)


def test_one_gets_more_than_a_tenth_where_that_covers_more() -> None:
    tenth, free = laid_out([(V, 30.0)], EXTRA_PERCENT), laid_out([(V, 30.0)])
    assert extras(tenth) == [EXTRA_PERCENT]
    assert extras(free)[0] > EXTRA_PERCENT
    assert covers(free) > covers(tenth)


def test_those_of_one_model_share_what_is_free() -> None:
    """Each with ten leaves the second none while both are active."""
    shares = [(A, 45.0), (B, 42.5)]
    plan = laid_out(shares)
    assert sum(extras(plan)) <= 12.5
    assert min(extras(plan)) > 0.0
    assert min(covers(plan)) > min(covers(laid_out(shares, EXTRA_PERCENT)))


def test_those_of_different_models_may_each_have_all_of_it() -> None:
    plan = laid_out([(A, 40.0), (V, 45.0)])
    assert sum(extras(plan)) > 15.0


@pytest.mark.parametrize(("rule", "latency"), [(Rule.P99, "ours"), (Rule.HALF_SLO, "igniter")])
def test_none_covers_less_than_with_a_tenth(rule: Rule, latency: str) -> None:
    plan = planning.planned("joint", planning.published(12), latency=latency, rule=rule)
    request = planning.request(planning.published(12), latency=latency, rule=rule)
    bare = [replace(g, partitions=tuple(replace(p, shadow=None) for p in g.partitions)) for g in plan.gpus]
    tenth = finalise("joint", request, Draft(tuple(bare), most_extra=EXTRA_PERCENT), 0.0)
    assert all(now >= then for now, then in zip(covers(plan), covers(tenth), strict=True))
    assert sum(covers(plan)) > sum(covers(tenth))


def test_igniter_gives_a_tenth_or_what_is_left() -> None:
    """Less only where that breaks a neighbour's promise."""
    plan = planning.planned("igniter", planning.published(12))
    rest = [min(EXTRA_PERCENT, 100.0 - gpu.percent) for gpu, _ in plan.partitions()]
    given = extras(plan)
    assert all(extra <= most for extra, most in zip(given, rest, strict=True))
    assert sum(extra == most for extra, most in zip(given, rest, strict=True)) > len(rest) / 2
