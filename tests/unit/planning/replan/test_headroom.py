"""What the GPUs of a plan hold beyond the rates it was asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planning import request, workload

from controlplane.domain.plan import Plan, Rule
from controlplane.planning import registry
from controlplane.planning.protocol import PlanRequest
from controlplane.planning.replan.differences import changes
from controlplane.planning.replan.headroom import with_headroom
from controlplane.planning.replan.reuse import cost_of
from controlplane.planning.replan.smallest_change import Extent, smallest_change

WORKLOADS = (workload("A", "alexnet", 15.0, 200.0), workload("R", "resnet50", 40.0, 80.0))
JOINT = registry.strategy("joint")


def asked(times: float, previous: Plan | None = None) -> PlanRequest:
    more = tuple(replace(w, rate_rps=times * w.rate_rps) for w in WORKLOADS)
    return request(more, latency="ours", rule=Rule.P99, previous=previous)


@pytest.fixture(scope="module")
def running() -> Plan:
    return JOINT.plan(asked(1.0))


@pytest.mark.parametrize(("times", "extent"), [(1.01, Extent.NOTHING), (6.0, Extent.SERVERS)])
def test_a_plan_is_for_all_that_its_gpus_hold(running: Plan, times: float, extent: Extent) -> None:
    question = asked(times, running)
    found = smallest_change(JOINT, question)
    more, multiple = with_headroom(JOINT, question, found)
    assert (more.extent, more.plan.verified, more.plan.infeasible) == (extent, True, ())
    assert cost_of(more.plan.gpus) <= cost_of(found.plan.gpus)
    assert multiple > 1.0
    planned = sum(p.rate_rps for _, _, p in more.plan.placements())
    assert planned == pytest.approx(multiple * times * 280.0)
    if extent is Extent.NOTHING:
        assert changes(running, more.plan) == ()
