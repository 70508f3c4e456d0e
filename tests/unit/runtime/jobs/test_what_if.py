from __future__ import annotations

import planning
import pytest

from controlplane.domain.plan import Rule
from controlplane.planning import registry
from controlplane.runtime.jobs.plan import Planned
from controlplane.runtime.jobs.what_if import Point, frontier, what_if

pytestmark = pytest.mark.unit


def test_a_point_is_useless_where_one_that_promises_more_costs_no_more() -> None:
    strict_first = [
        Point(0.8, 8, 24.0, 0),
        Point(0.9, 8, 24.0, 0),
        Point(1.0, 7, 21.0, 0),
        Point(1.1, 7, 22.0, 0),
    ]
    assert [p.best for p in frontier(strict_first)] == [True, False, True, False]


def test_a_stricter_plan_that_leaves_workloads_out_makes_no_other_useless() -> None:
    assert all(p.best for p in frontier([Point(0.8, 6, 18.0, 2), Point(1.0, 7, 21.0, 0)]))


def test_every_point_is_a_plan_of_its_own_and_the_present_one_is_among_them() -> None:
    request = planning.request(planning.published(12), rule=Rule.HALF_SLO, latency="igniter")
    strategy = registry.strategy("igniter")
    planned = Planned(strategy.plan(request), strategy, request)
    found = what_if(planned)
    present = {kind: next(p for p in points if p.factor == 1.0) for kind, points in found.items()}
    assert {p.gpus for p in present.values()} == {len(planned.plan.gpus)}
    slo, rate = ([p.gpus for p in found[kind] if not p.infeasible] for kind in ("slo", "rate"))
    assert slo[-1] < slo[0]
    assert rate[0] < rate[-1]
