"""The smallest change of a running plan that holds other rates, and what its GPUs hold beyond those."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from planning import joint_p99, p99_request, v100, workload

from controlplane.domain.plan import Plan
from controlplane.planning import registry
from controlplane.planning.replan.differences import Change, changes
from controlplane.planning.replan.reuse import cost_of, reused
from controlplane.planning.replan.smallest_change import (
    Changed,
    Extent,
    burden,
    late_of,
    moved_cost,
    pressure_of,
    smallest_change,
    with_headroom,
    with_more_servers,
)

WORKLOADS = (
    workload("A", "alexnet", 15.0, 500.0),
    workload("R", "resnet50", 40.0, 300.0),
    workload("V", "vgg19", 60.0, 200.0),
    workload("S", "ssd", 60.0, 150.0),
)
JOINT = registry.strategy("joint")


@pytest.fixture(scope="module")
def running() -> Plan:
    plan = joint_p99(WORKLOADS)
    assert plan.verified
    return plan


def changed(running: Plan, rates: Mapping[str, float], *, cheaper: bool = False) -> Changed:
    workloads = [replace(w, rate_rps=rates.get(w.name, w.rate_rps)) for w in WORKLOADS]
    return smallest_change(JOINT, p99_request(workloads, previous=running), cheaper=cheaper)


def test_rates_that_the_servers_hold_change_nothing(running: Plan) -> None:
    found = changed(running, {"R": 301.0})
    assert (found.extent, found.plan.verified) == (Extent.NOTHING, True)
    assert changes(running, found.plan) == ()
    assert {p.name: p.rate_rps for _, _, p in found.plan.placements()}["R"] == 301.0


def test_what_a_batch_alone_holds_changes_no_share() -> None:
    lone = workload("R", "resnet50", 100.0, 100.0)
    plan = joint_p99([lone])
    ((_, partition, _),) = plan.placements()
    # A batch of one, as an operator may have chosen it for a low rate.
    small = replace(partition, models=tuple(replace(m, batch=1) for m in partition.models), percent=60.0)
    plan = replace(plan, gpus=(replace(plan.gpus[0], partitions=(small,)),))
    found = smallest_change(JOINT, p99_request([replace(lone, rate_rps=400.0)], previous=plan))
    ((_, after, _),) = found.plan.placements()
    assert (found.extent, found.plan.verified) == (Extent.BATCHES, True)
    assert after.percent == 60.0
    assert after.models[0].batch > 1


def test_more_than_the_servers_hold_moves_few_partitions(running: Plan) -> None:
    found = changed(running, {"A": 1500.0})
    assert (found.extent, found.plan.verified, found.plan.infeasible) == (Extent.SERVERS, True, ())
    assert 0.0 < moved_cost(running, found.plan) <= cost_of(found.plan.gpus)


def test_a_gpu_more_is_worth_the_moves_of_a_plan_made_anew() -> None:
    rates = (1650.0, 616.0, 560.0)
    plan = joint_p99([replace(w, rate_rps=r) for w, r in zip(WORKLOADS[:3], rates, strict=True)])
    crowd = [replace(w, rate_rps=2.0 * r) for w, r in zip(WORKLOADS[:3], rates, strict=True)]
    question = p99_request(crowd, previous=plan)
    found, fresh = smallest_change(JOINT, question).plan, JOINT.plan(question)
    assert (found.verified, fresh.verified) == (True, True)
    assert len(found.gpus) > len(fresh.gpus)
    assert burden(plan, found, 1.0) < burden(plan, fresh, 1.0)
    assert {c.change for c in changes(plan, found)} == {Change.STARTED}


def test_less_load_is_a_reason_to_change_only_where_a_plan_costs_less(running: Plan) -> None:
    same = changed(running, {"A": 480.0}, cheaper=True)
    assert (same.extent, cost_of(same.plan.gpus)) == (Extent.NOTHING, cost_of(running.gpus))
    less = changed(running, dict.fromkeys("ARVS", 10.0), cheaper=True)
    assert less.extent is Extent.SERVERS
    assert cost_of(less.plan.gpus) < cost_of(running.gpus)


def test_gpus_that_a_pool_can_spare_stop_and_nothing_starts() -> None:
    crowd = (workload("V", "vgg19", 60.0, 900.0), workload("A", "alexnet", 15.0, 300.0))
    running = joint_p99(crowd)
    question = p99_request([replace(crowd[0], rate_rps=550.0), crowd[1]], previous=running)
    found = smallest_change(JOINT, question, cheaper=True)
    assert (found.extent, found.plan.verified) == (Extent.SERVERS, True)
    assert cost_of(found.plan.gpus) < cost_of(running.gpus)
    assert moved_cost(running, found.plan) == 0.0
    more, _ = with_headroom(JOINT, question, found, cheaper=True)
    assert moved_cost(running, more.plan) == 0.0, "headroom is no reason to start one"


def test_a_limit_of_gpus_is_kept(running: Plan) -> None:
    crowd = [replace(w, rate_rps=4.0 * w.rate_rps) for w in WORKLOADS]
    request = p99_request(crowd, device=v100("ours", len(running.gpus)), previous=running)
    found = smallest_change(JOINT, request).plan
    assert len(found.gpus) <= len(running.gpus)
    assert found.infeasible


@pytest.mark.parametrize("times", [1.0, 2.5])
def test_further_servers_join_all_that_runs_where_a_promise_breaks(times: float) -> None:
    pair = (workload("A", "alexnet", 15.0, 500.0), workload("R", "resnet50", 40.0, 200.0))
    running = joint_p99(pair)
    question = p99_request([replace(w, rate_rps=times * w.rate_rps) for w in pair])
    gpus = reused(running, question)
    assert gpus is not None
    assert bool(late_of(pressure_of(gpus, question))) == (times > 1.0)
    more = with_more_servers(gpus, question, math.inf)
    assert more is not None
    assert not late_of(pressure_of(more, question))
    now = {p.id: (g.id, p.percent, p.models) for g in more for p in g.partitions}
    was = {p.id: (g.id, p.percent, p.models) for g, p in running.partitions()}
    assert was.items() <= now.items()
    rates: dict[str, float] = {}
    for w in (w for g in more for p in g.partitions for w in p.workloads):
        rates[w.name] = rates.get(w.name, 0.0) + w.rate_rps
    assert rates == pytest.approx({w.name: w.rate_rps for w in question.workloads})
    assert with_more_servers(gpus, question, 0.0) == (gpus if times == 1.0 else None), "what that costs"


@pytest.mark.parametrize(("times", "extent"), [(1.01, Extent.NOTHING), (6.0, Extent.SERVERS)])
def test_a_plan_is_for_all_that_its_gpus_hold(times: float, extent: Extent) -> None:
    light = (workload("A", "alexnet", 15.0, 200.0), workload("R", "resnet50", 40.0, 80.0))
    running = joint_p99(light)
    question = p99_request([replace(w, rate_rps=times * w.rate_rps) for w in light], previous=running)
    found = smallest_change(JOINT, question)
    more, multiple = with_headroom(JOINT, question, found)
    assert (more.extent, more.plan.verified, more.plan.infeasible) == (extent, True, ())
    assert cost_of(more.plan.gpus) <= cost_of(found.plan.gpus)
    assert multiple > 1.0
    planned = sum(p.rate_rps for _, _, p in more.plan.placements())
    assert planned == pytest.approx(multiple * times * 280.0)
    if extent is Extent.NOTHING:
        assert changes(running, more.plan) == ()
