"""Plans for bursty workloads, held against the simulator."""

from __future__ import annotations

from dataclasses import replace

import planning
from planning import planned, workload

from controlplane.domain.plan import Plan, Rule
from controlplane.planning.replan.reuse import reused
from controlplane.simulate.engine import Settings, simulate

POISSON = (workload("R", "resnet50", 40.0, 300.0), workload("V", "vgg19", 60.0, 100.0))
BURSTY = tuple(replace(w, dispersion=4.0) for w in POISSON)


def late_percent(plan: Plan) -> list[float]:
    found = simulate(plan, {"v100": planning.v100("ours").latency}, Settings(seconds=200.0, seed=5))
    return [w.violations_percent for w in found.workloads]


def test_a_plan_for_bursts_holds_them_where_one_for_poisson_arrivals_does_not() -> None:
    plain = planned("joint", POISSON, latency="ours", rule=Rule.P99)
    gpus = reused(plain, planning.request(BURSTY, latency="ours", rule=Rule.P99))
    assert gpus is not None
    assert max(late_percent(replace(plain, gpus=gpus))) > 1.5
    plan = planned("joint", BURSTY, latency="ours", rule=Rule.P99)
    assert (plan.verified, plan.infeasible) == (True, ())
    assert {w.dispersion for _, _, w in plan.placements()} == {4.0}
    assert max(late_percent(plan)) <= 1.1


def test_bursts_that_no_server_holds_are_infeasible_with_a_rate() -> None:
    tight = (replace(POISSON[0], slo_ms=12.0, dispersion=64.0), POISSON[1])
    plan = planned("joint", tight, latency="ours", rule=Rule.P99)
    assert plan.verified
    (refused,) = plan.infeasible
    assert refused.workload == "R"
    assert "bursts" in refused.reason
