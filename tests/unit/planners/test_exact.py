from __future__ import annotations

import math
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
from controlplane.planners.kinds import kinds_of
from controlplane.planners.menu import Alone
from controlplane.planners.protocol import PlanRequest

pytestmark = pytest.mark.unit


def options_of(request: PlanRequest) -> Options:
    quantile = request.quantile if request.rule is Rule.P99 else None
    alone = {n: Alone.of(d, quantile) for n, d in request.devices.items()}
    kinds = kinds_of([(w,) for w in request.workloads], request.devices, alone, request.rule, quantile)
    return Options.of(request.workloads, kinds, request, alone, quantile)


def going_on() -> bool:
    return False


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
    # Trying everything is done for pools of two: larger ones may only be cheaper.
    best = exhaustive.cheapest(workloads, devices, most_servers=2)
    if largest_pool(plan) <= 2:
        assert plan.totals.cost_per_hour == pytest.approx(best)
    else:
        assert plan.totals.cost_per_hour <= best + 1e-9
    assert plan.totals.lower_bound_cost_per_hour is not None
    assert plan.totals.lower_bound_cost_per_hour <= plan.totals.cost_per_hour + 1e-9


def test_table_3_under_both_rules() -> None:
    for latency, rule, gpus, bound in (("igniter", Rule.HALF_SLO, 5, 5), ("ours", Rule.P99, 8, 6)):
        plan = planned("joint", published(12), latency=latency, rule=rule)
        assert plan.verified
        assert plan.totals is not None
        assert plan.totals.gpus <= gpus
        assert plan.totals.lower_bound_gpus == bound


def test_it_finds_the_best_without_a_plan_to_beat_and_proves_one_that_is() -> None:
    request = planning.request(published(12)[:6], latency="ours", rule=Rule.P99)
    options = options_of(request)
    found = exact.solve(options, request, math.inf, going_on)
    assert found is not None
    assert found.proven
    assert found.gpus is not None
    cost = sum(g.price_per_hour for g in found.gpus)
    assert found.bound == pytest.approx(cost)
    again = exact.solve(options, request, cost, going_on)
    assert again == exact.Answer(None, cost, True)
    worse = exact.solve(options, request, cost + 3.06, going_on)
    assert worse is not None
    assert worse.gpus == found.gpus


def test_a_limited_number_of_gpus_is_kept() -> None:
    request = planning.request(published(12)[:6])
    plenty = exact.solve(options_of(request), request, math.inf, going_on)
    assert plenty is not None
    assert plenty.gpus is not None
    count = len(plenty.gpus)
    for allowed, fits in ((count, True), (count - 1, False)):
        few = replace(request, devices={"v100": planning.v100(count=allowed)})
        found = exact.solve(options_of(few), few, math.inf, going_on)
        assert found is not None
        assert (found.gpus is not None) is fits


def test_large_cases_are_left_alone_and_a_ceiling_ends_it() -> None:
    request = planning.request(published(50))
    assert exact.solve(options_of(request), request, math.inf, going_on) is None
    small = planning.request(published(12))
    stopped = exact.solve(options_of(small), small, math.inf, lambda: True)
    assert stopped == exact.Answer(None, 0.0, False)


def test_contents_hold_one_way_a_workload_and_no_more_servers_than_a_pool_has() -> None:
    request = planning.request([workload("a", "ssd", 55.0, 300.0), workload("b", "alexnet", 20.0, 100.0)])
    options = options_of(request)
    found = contents_of(options, "v100", 1000)
    assert found is not None
    sets = [[options.ways[i] for i in row if i >= 0] for row in found.item.tolist()]
    assert any(len(s) > 2 for s in sets)
    for ways in sets:
        by_owner = {w.owner: {x.item.servers for x in ways if x.owner == w.owner} for w in ways}
        assert all(len(servers) == 1 for servers in by_owner.values())
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
    request = planning.request(published(12))
    few = {count: replace(request, devices={"v100": planning.v100(count=count)}) for count in (5, 4)}
    all_placed = registry.strategy("joint").plan(few[5])
    assert all_placed.verified
    assert not all_placed.infeasible
    assert len(all_placed.gpus) == 5
    some_lost = registry.strategy("joint").plan(few[4])
    assert some_lost.infeasible
    assert some_lost.totals is not None
    assert some_lost.totals.stopped_by != proof.OPTIMAL
