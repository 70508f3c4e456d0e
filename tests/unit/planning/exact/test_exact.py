import functools
import math
import operator
from collections import Counter
from dataclasses import replace

import exhaustive
import planning
import pytest
from planning import published, workload

from controlplane.domain.plan import Plan, Rule
from controlplane.planning import registry
from controlplane.planning.exact.patterns import Services, patterns_of
from controlplane.planning.exact.prove import OPTIMAL, Answer, prove
from controlplane.planning.exact.prove import solve as solved
from controlplane.planning.protocol import PlanRequest
from controlplane.planning.replan.differences import moves

pytestmark = pytest.mark.slow


def solve(request: PlanRequest, to_beat: float = math.inf, stopped: bool = False) -> Answer | None:
    return solved(request.workloads, planning.types_of(request), to_beat, lambda: stopped)


def proven(request: PlanRequest) -> Plan:
    return prove(registry.strategy("joint").plan(request), request)


@pytest.mark.parametrize("seed", [1, 6, 9, 11, 21, 23, 36, 38])
def test_mixed_types_cost_what_trying_everything_costs(seed: int) -> None:
    workloads, devices = exhaustive.small_case(seed), exhaustive.mixed()
    plan = proven(PlanRequest(workloads, devices, Rule.HALF_SLO, planning.StoppedClock()))
    totals, pools = planning.totals(plan), Counter(w.name for _, _, w in plan.placements())
    assert plan.verified
    assert totals.stopped_by == OPTIMAL
    assert totals.lower_bound_cost_per_hour == pytest.approx(totals.cost_per_hour)
    # Trying everything is done for pools of two: larger ones may only be cheaper.
    best = exhaustive.cheapest(workloads, devices, most_servers=2)
    assert totals.cost_per_hour <= best + 1e-9
    if max(pools.values()) <= 2:
        assert totals.cost_per_hour == pytest.approx(best)


def test_up_to_twelve_workloads_are_settled_where_a_proof_is_asked_for() -> None:
    request = planning.p99_request(published(12)[5:12])
    quick = registry.strategy("joint").plan(request)
    assert planning.totals(quick).stopped_by != OPTIMAL
    plan = prove(quick, request)
    assert plan.verified
    assert planning.totals(plan).gpus == planning.totals(plan).lower_bound_gpus == 6
    assert planning.totals(plan).stopped_by == OPTIMAL


def test_a_proof_keeps_a_plan_that_is_best_and_its_ids() -> None:
    asked = published(12)[6:]
    before = proven(planning.request(asked))
    plan = proven(planning.request(asked, previous=before))
    assert planning.totals(plan).stopped_by == OPTIMAL
    assert moves(before, plan) == 0


def test_clients_that_send_several_inferences_are_bounded_as_well() -> None:
    plan = proven(planning.p99_request([replace(w, client_batch=2) for w in published(12)[:4]]))
    assert plan.verified
    assert {w.client_batch for _, _, w in plan.placements()} == {2}
    assert 0 < (planning.totals(plan).lower_bound_gpus or 0) <= len(plan.gpus)


def test_it_finds_the_best_without_a_plan_to_beat_and_proves_one_that_is() -> None:
    request = planning.p99_request(published(12)[9:])
    found = solve(request)
    assert found is not None
    assert found.proven
    assert found.gpus is not None
    cost = sum(g.price_per_hour for g in found.gpus)
    assert found.bound == pytest.approx(cost)
    again = solve(request, cost)
    assert again == Answer(None, cost, True)
    worse = solve(request, cost + 3.06)
    assert worse is not None
    assert worse.gpus == found.gpus


def test_large_cases_are_left_alone_and_a_ceiling_ends_it() -> None:
    request = planning.request(published(50))
    assert solve(request) is None
    small = planning.request(published(12)[:3])
    assert solve(small, stopped=True) == Answer(None, 0.0, False)


def test_patterns_hold_one_service_a_workload_and_no_more_servers_than_a_pool_has() -> None:
    request = planning.request([workload("a", "ssd", 55.0, 300.0), workload("b", "alexnet", 20.0, 100.0)])
    services = Services.of(request.workloads, planning.types_of(request))
    found = patterns_of(services, "v100", 1000)
    assert found is not None
    sets = [[services.services[i] for i in row if i >= 0] for row in found.service.tolist()]
    assert any(len(s) > 2 for s in sets)
    for own in sets:
        distinct = set(own)
        together = functools.reduce(operator.or_, (w.owners for w in distinct))
        assert sum(w.owners for w in distinct) == together
        assert all(own.count(w) <= w.item.servers for w in own)
    assert patterns_of(services, "v100", 3) is None


def test_gpus_count_where_all_are_free() -> None:
    plan = proven(planning.request(published(12)[:4], device=planning.v100(price=0.0)))
    assert planning.totals(plan).lower_bound_cost_per_hour == 0.0
    assert planning.totals(plan).lower_bound_gpus == planning.totals(plan).gpus


def test_few_gpus_hold_all_where_they_can() -> None:
    request = planning.request(published(12)[6:])
    count = len(proven(request).gpus)
    all_placed, some_lost = (
        proven(planning.request(request.workloads, device=planning.v100(count=c))) for c in (count, count - 1)
    )
    assert all_placed.verified
    assert not all_placed.infeasible
    assert len(all_placed.gpus) == count
    assert some_lost.infeasible
    assert planning.totals(some_lost).stopped_by != OPTIMAL
