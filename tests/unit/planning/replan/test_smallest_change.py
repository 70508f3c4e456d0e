"""The smallest change of a running plan that holds other rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from planning import StoppedClock, request, v100, workload

from controlplane.domain.plan import Plan, Rule
from controlplane.domain.workload import Workload
from controlplane.planning import registry
from controlplane.planning.protocol import PlanRequest
from controlplane.planning.replan.differences import Change, changes
from controlplane.planning.replan.headroom import with_headroom
from controlplane.planning.replan.reuse import cost_of
from controlplane.planning.replan.smallest_change import Changed, Extent, burden, moved_cost, smallest_change

WORKLOADS = (
    workload("A", "alexnet", 15.0, 500.0),
    workload("R", "resnet50", 40.0, 300.0),
    workload("V", "vgg19", 60.0, 200.0),
    workload("S", "ssd", 60.0, 150.0),
)
JOINT = registry.strategy("joint")


def asked(workloads: Sequence[Workload], **more: object) -> PlanRequest:
    return request(workloads, latency="ours", rule=Rule.P99, **more)


@pytest.fixture(scope="module")
def running() -> Plan:
    plan = JOINT.plan(asked(WORKLOADS))
    assert plan.verified
    return plan


def changed(running: Plan, rates: Mapping[str, float], *, cheaper: bool = False) -> Changed:
    workloads = [replace(w, rate_rps=rates.get(w.name, w.rate_rps)) for w in WORKLOADS]
    return smallest_change(JOINT, asked(workloads, previous=running), cheaper=cheaper)


def test_rates_that_the_servers_hold_change_nothing(running: Plan) -> None:
    found = changed(running, {"R": 301.0})
    assert (found.extent, found.plan.verified) == (Extent.NOTHING, True)
    assert changes(running, found.plan) == ()
    assert {p.name: p.rate_rps for _, _, p in found.plan.placements()}["R"] == 301.0


def test_what_a_batch_alone_holds_changes_no_share() -> None:
    lone = (workload("R", "resnet50", 100.0, 100.0),)
    plan = JOINT.plan(asked(lone))
    ((_, partition, _),) = plan.placements()
    # A batch of one, as an operator may have chosen it for a low rate.
    small = replace(partition, models=tuple(replace(m, batch=1) for m in partition.models), percent=60.0)
    plan = replace(plan, gpus=(replace(plan.gpus[0], partitions=(small,)),))
    more = [replace(lone[0], rate_rps=400.0)]
    found = smallest_change(JOINT, asked(more, previous=plan))
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
    plan = JOINT.plan(asked([replace(w, rate_rps=r) for w, r in zip(WORKLOADS[:3], rates, strict=True)]))
    crowd = [replace(w, rate_rps=2.0 * r) for w, r in zip(WORKLOADS[:3], rates, strict=True)]
    question = asked(crowd, previous=plan)
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
    running = JOINT.plan(asked(crowd))
    fewer = [replace(crowd[0], rate_rps=550.0), crowd[1]]
    found = smallest_change(JOINT, asked(fewer, previous=running), cheaper=True)
    assert (found.extent, found.plan.verified) == (Extent.SERVERS, True)
    assert cost_of(found.plan.gpus) < cost_of(running.gpus)
    assert moved_cost(running, found.plan) == 0.0
    more, _ = with_headroom(JOINT, asked(fewer, previous=running), found, cheaper=True)
    assert moved_cost(running, more.plan) == 0.0, "headroom is no reason to start one"


def test_a_limit_of_gpus_is_kept(running: Plan) -> None:
    device = v100("ours", len(running.gpus))
    workloads = [replace(w, rate_rps=w.rate_rps * 4.0) for w in WORKLOADS]
    wanted = PlanRequest(tuple(workloads), {"v100": device}, Rule.P99, StoppedClock(), previous=running)
    found = smallest_change(JOINT, wanted).plan
    assert len(found.gpus) <= len(running.gpus)
    assert found.infeasible
