"""A model slower than its profile: what a plan's `covers` says, seen in simulated requests."""

from dataclasses import dataclass, replace

import planning
import pytest

from controlplane.domain.plan import Plan, Rule
from controlplane.latency.protocol import Estimate, LatencyModel, Slots
from controlplane.simulate.closed_loop.faults import Fault, Kind, Outcome
from controlplane.simulate.closed_loop.run import run
from controlplane.simulate.engine import Settings
from controlplane.simulate.network import Conditions

pytestmark = pytest.mark.slow

SECONDS, AT_S, SETTLED_S = 40.0, 5.0, 10


@dataclass(frozen=True)
class AsPromised:
    """Batches take what the plan allows for: times at its quantile, above the latency model's means."""

    model: LatencyModel

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def models(self) -> tuple[str, ...]:
        return self.model.models

    def estimate(self, slots: Slots, quantile: float = 0.95) -> Estimate:
        told = self.model.estimate(slots, quantile)
        return replace(told, execution_ms=told.execution_upper_ms, cycle_ms=told.cycle_upper_ms)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planning.planned("joint", planning.published(12), latency="ours", rule=Rule.P99)


def slowed(plan: Plan, model: str, factor: float, *, guard: bool = True) -> Outcome:
    truth = {"v100": AsPromised(planning.v100("ours").latency)}
    fault = Fault(Kind.SLOWER, model, AT_S, factor)
    return run(plan, truth, Settings(SECONDS), Conditions(), [fault], guard=guard)


def late_percent(outcome: Outcome, workload: str) -> float:
    """How many of its requests are late once the redirects are done."""
    (one,) = (w for w in outcome.workloads if w.name == workload)
    return 100.0 * float(one.late[SETTLED_S:].sum() / one.sent[SETTLED_S:].sum())


@pytest.mark.parametrize(("model", "workload"), [("ssd", "W12"), ("vgg19", "W7")])
def test_up_to_what_it_covers_a_shadow_keeps_the_p99_and_not_far_beyond(
    plan: Plan, model: str, workload: str
) -> None:
    own = [p.shadow for _, p in plan.partitions() if any(w.name == workload for w in p.workloads)]
    covers = min(shadow.covers for shadow in own if shadow is not None and shadow.covers is not None)
    assert covers > 1.05
    below = covers - 0.01
    assert late_percent(slowed(plan, model, below, guard=False), workload) > 1.0, "its own share is too small"
    assert late_percent(slowed(plan, model, below), workload) <= 1.0
    assert late_percent(slowed(plan, model, covers + 0.3), workload) > 1.0
