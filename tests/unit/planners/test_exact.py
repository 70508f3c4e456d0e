from __future__ import annotations

import functools
import math
import operator
from collections import Counter
from dataclasses import replace

import exhaustive
import planning
import pytest
from planning import planned, published, workload

from controlplane.domain.plan import Plan, Rule
from controlplane.planners import exact, proof, registry
from controlplane.planners.bound import prices
from controlplane.planners.contents import Options, contents_of
from controlplane.planners.menu import Alone
from controlplane.planners.protocol import PlanRequest

pytestmark = pytest.mark.unit


def told(request: PlanRequest) -> tuple[dict[str, Alone], float | None]:
    quantile = request.quantile if request.rule is Rule.P99 else None
    return {n: Alone.of(d, quantile) for n, d in request.devices.items()}, quantile


def options_of(request: PlanRequest) -> Options:
    return Options.of(request.workloads, request, *told(request))


def solve(request: PlanRequest, to_beat: float = math.inf, stopped: bool = False) -> exact.Answer | None:
    return exact.solve(request.workloads, request, *told(request), to_beat, lambda: stopped)


def largest_pool(plan: Plan) -> int:
    return max(Counter(w.name for _, _, w in plan.placements()).values())


@pytest.mark.parametrize("seed", [1, 6, 9, 11, 21, 23, 36, 38])
def test_mixed_types_cost_what_trying_everything_costs(seed: int) -> None:
    workloads, devices = exhaustive.small_case(seed), exhaustive.mixed()
    plan = registry.strategy("joint").plan(
        PlanRequest(workloads, devices, Rule.HALF_SLO, planning.StoppedClock())
    )
    assert plan.verified
    assert plan.totals is not None
    assert plan.totals.stopped_by == proof.OPTIMAL
    # Trying everything is done for pools of two: larger ones may only be cheaper.
    best = exhaustive.cheapest(workloads, devices, most_servers=2)
    if largest_pool(plan) <= 2:
        assert plan.totals.cost_per_hour == pytest.approx(best)
    else:
        assert plan.totals.cost_per_hour <= best + 1e-9
    assert plan.totals.lower_bound_cost_per_hour == pytest.approx(plan.totals.cost_per_hour)


def test_larger_cases_are_settled_for_who_has_the_time() -> None:
    asked = published(12)[5:12]
    quick = planned("joint", asked, latency="ours", rule=Rule.P99)
    assert quick.totals is not None
    assert quick.totals.stopped_by != proof.OPTIMAL
    plan = planned("joint", asked, latency="ours", rule=Rule.P99, iterations=exact.PATIENT_ITERATIONS)
    assert plan.verified
    assert plan.totals is not None
    assert plan.totals.gpus == plan.totals.lower_bound_gpus == 6
    assert plan.totals.stopped_by == proof.OPTIMAL


def test_who_was_in_a_hurry_is_told_of_the_longer_search() -> None:
    made = planned("joint", published(12))
    assert made.totals is not None
    half = replace(made.totals, lower_bound_cost_per_hour=made.totals.cost_per_hour / 2.0)
    twelve = replace(made, totals=half)
    assert twelve.totals is not None
    assert exact.may_cost_less(twelve, None)
    assert not exact.may_cost_less(twelve, exact.PATIENT_ITERATIONS)
    least = replace(twelve.totals, lower_bound_cost_per_hour=twelve.totals.cost_per_hour)
    assert not exact.may_cost_less(replace(twelve, totals=least), None)
    assert not exact.may_cost_less(replace(twelve, strategy="igniter"), None)
    assert not exact.may_cost_less(planned("joint", published(12)[:5]), None)


def test_it_finds_the_best_without_a_plan_to_beat_and_proves_one_that_is() -> None:
    request = planning.request(published(12)[9:], latency="ours", rule=Rule.P99)
    found = solve(request)
    assert found is not None
    assert found.proven
    assert found.gpus is not None
    cost = sum(g.price_per_hour for g in found.gpus)
    assert found.bound == pytest.approx(cost)
    again = solve(request, cost)
    assert again == exact.Answer(None, cost, True)
    worse = solve(request, cost + 3.06)
    assert worse is not None
    assert worse.gpus == found.gpus


def test_a_limited_number_of_gpus_is_kept() -> None:
    request = planning.request(published(12)[:6])
    plenty = solve(request)
    assert plenty is not None
    assert plenty.gpus is not None
    count = len(plenty.gpus)
    for allowed, fits in ((count, True), (count - 1, False)):
        few = replace(request, devices={"v100": planning.v100(count=allowed)})
        found = solve(few)
        assert found is not None
        assert (found.gpus is not None) is fits


def test_large_cases_are_left_alone_and_a_ceiling_ends_it() -> None:
    request = planning.request(published(50))
    assert solve(request) is None
    small = planning.request(published(12)[:3])
    assert solve(small, stopped=True) == exact.Answer(None, 0.0, False)


def test_contents_hold_one_way_a_workload_and_no_more_servers_than_a_pool_has() -> None:
    request = planning.request([workload("a", "ssd", 55.0, 300.0), workload("b", "alexnet", 20.0, 100.0)])
    options = options_of(request)
    found = contents_of(options, "v100", 1000)
    assert found is not None
    sets = [[options.ways[i] for i in row if i >= 0] for row in found.item.tolist()]
    assert any(len(s) > 2 for s in sets)
    for ways in sets:
        kinds = set(ways)
        assert sum(w.owners for w in kinds) == functools.reduce(operator.or_, (w.owners for w in kinds))
        assert all(ways.count(w) <= w.item.servers for w in ways)
    assert contents_of(options, "v100", 3) is None


def test_gpus_count_where_all_are_free() -> None:
    assert prices({"v100": planning.v100(price=0.0)}) == {"v100": 1.0}
    request = replace(planning.request(published(12)[:4]), devices={"v100": planning.v100(price=0.0)})
    plan = registry.strategy("joint").plan(request)
    assert plan.totals is not None
    assert plan.totals.lower_bound_cost_per_hour == 0.0
    assert plan.totals.lower_bound_gpus == plan.totals.gpus


def test_few_gpus_hold_all_where_they_can() -> None:
    request = planning.request(published(12)[6:])
    plenty = registry.strategy("joint").plan(request)
    count = len(plenty.gpus)
    few = {c: replace(request, devices={"v100": planning.v100(count=c)}) for c in (count, count - 1)}
    all_placed = registry.strategy("joint").plan(few[count])
    assert all_placed.verified
    assert not all_placed.infeasible
    assert len(all_placed.gpus) == count
    some_lost = registry.strategy("joint").plan(few[count - 1])
    assert some_lost.infeasible
    assert some_lost.totals is not None
    assert some_lost.totals.stopped_by != proof.OPTIMAL
