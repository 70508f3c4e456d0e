"""Further servers beside all that runs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from planning import request, workload

from controlplane.domain.plan import Plan, Rule
from controlplane.planning import registry
from controlplane.planning.protocol import PlanRequest
from controlplane.planning.replan.reuse import reused
from controlplane.planning.replan.smallest_change import late_of, pressure_of, with_more_servers

WORKLOADS = (workload("A", "alexnet", 15.0, 500.0), workload("R", "resnet50", 40.0, 200.0))


def asked(times: float) -> PlanRequest:
    workloads = tuple(replace(w, rate_rps=times * w.rate_rps) for w in WORKLOADS)
    return request(workloads, latency="ours", rule=Rule.P99)


@pytest.fixture(scope="module")
def running() -> Plan:
    return registry.strategy("joint").plan(asked(1.0))


def test_all_that_runs_stays_and_the_late_get_servers(running: Plan) -> None:
    question = asked(2.5)
    gpus = reused(running, question)
    assert gpus is not None
    assert late_of(pressure_of(gpus, question))
    more = with_more_servers(gpus, question, math.inf)
    assert more is not None
    assert not late_of(pressure_of(more, question))
    now = {p.id: (g.id, p.percent, p.models) for g in more for p in g.partitions}
    was = {p.id: (g.id, p.percent, p.models) for g, p in running.partitions()}
    assert was.items() < now.items()
    rates: dict[str, float] = {}
    for w in (w for g in more for p in g.partitions for w in p.workloads):
        rates[w.name] = rates.get(w.name, 0.0) + w.rate_rps
    assert rates == pytest.approx({w.name: w.rate_rps for w in question.workloads})


def test_more_than_a_fresh_plan_costs_is_not_spent(running: Plan) -> None:
    question = asked(2.5)
    gpus = reused(running, question)
    assert gpus is not None
    assert with_more_servers(gpus, question, 0.0) is None


def test_nothing_late_changes_nothing(running: Plan) -> None:
    gpus = reused(running, asked(1.0))
    assert gpus is not None
    assert with_more_servers(gpus, asked(1.0), math.inf) == gpus
