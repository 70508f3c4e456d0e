"""Requests of several inferences, in the judge's queue and in plans."""

from dataclasses import replace

import numpy as np
import pytest
from planning import planned, v100, workload

from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Rule, ServedModel
from controlplane.domain.workload import Arrivals
from controlplane.planning.explain.explain import explain
from controlplane.planning.judge.evaluate import Terms, evaluate
from controlplane.planning.judge.layout import Layout
from controlplane.planning.judge.verify import verify

SENT = (1, 2, 4, 8)


def plan_of(client_batch: int, batch: int = 8, arrivals: Arrivals = Arrivals.POISSON) -> Plan:
    """One ResNet-50 with 300/s alone on half a V100."""
    placement = Placement("w", "w", "resnet50", 300.0, 60.0, arrivals=arrivals, client_batch=client_batch)
    partition = Partition("w", 50.0, (ServedModel("resnet50", batch),), (placement,))
    gpu = PlannedGpu("v100-0", "v100", (partition,))
    return Plan("by-hand", Rule.P99, "ours", (gpu,), quantile=0.95)


def predicted_p99_ms(plan: Plan) -> float:
    devices = {"v100": v100("ours")}
    return float(evaluate(plan.gpus, devices, Terms(Rule.P99, 0.95))["v100"].p99_ms[0, 0])


def run_p99_ms(service_ms: np.ndarray, rate_rps: float, batch: int, client_batch: int, seed: int) -> float:
    """Inferences that arrive `client_batch` at once, one batch after another: no request is counted."""
    gaps = np.random.default_rng(seed).exponential(1000.0 * client_batch / rate_rps, 30_000)
    arrived = np.repeat(np.cumsum(gaps), client_batch)
    seen = np.empty(arrived.size)
    free, first = 0.0, 0
    while first < arrived.size:
        start = max(free, arrived[first])
        waiting = int(np.searchsorted(arrived, start, side="right")) - first
        size = min(waiting, batch)
        free = start + service_ms[size - 1]
        seen[first : first + size] = free - arrived[first : first + size]
        first += size
    return float(np.quantile(seen, 0.99))


@pytest.mark.parametrize("client_batch", SENT)
def test_the_judge_agrees_with_a_run_inference_by_inference(client_batch: int) -> None:
    plan, device = plan_of(client_batch), v100("ours")
    slots = Layout.of(plan.gpus, device).all_busy
    each = [replace(slots, batch=np.full_like(slots.batch, float(size))) for size in range(1, 9)]
    times = [float(device.latency.estimate(one, 0.95).execution_upper_ms[0, 0]) for one in each]
    jitter = device.profiles["resnet50"].jitter or 0.0
    assert jitter == 0.0, "else the run would have to draw it"
    runs = [run_p99_ms(np.array(times), 300.0, 8, client_batch, seed) for seed in range(3)]
    assert predicted_p99_ms(plan) == pytest.approx(np.mean(runs), rel=0.03)


def test_p99_does_not_fall_with_the_size_of_requests() -> None:
    found = [predicted_p99_ms(plan_of(k)) for k in SENT]
    assert found == sorted(found)
    constant = [predicted_p99_ms(plan_of(k, arrivals=Arrivals.CONSTANT)) for k in SENT]
    assert constant == sorted(constant)


def plan_for(client_batch: int, strategy: str = "joint") -> Plan:
    asked = replace(workload("r", "resnet50", 40.0, 400.0), client_batch=client_batch)
    return planned(strategy, [asked], rule=Rule.P99, device=v100("ours", 2))


def test_requests_of_one_inference_are_planned_as_ever() -> None:
    plan = plan_for(1)
    (partitions,) = (g.partitions for g in plan.gpus)
    assert [(p.percent, p.models[0].batch) for p in partitions] == [(20.0, 5), (20.0, 5)]
    assert partitions[0].workloads[0].predicted.p99_ms == pytest.approx(28.6, abs=0.05)


def test_larger_requests_cost_more() -> None:
    # A model of single inferences takes two partitions, for their shadows.
    found = [plan_for(k) for k in (*SENT[1:], 16, 32)]
    assert all(plan.verified and not plan.infeasible for plan in found)
    taken = [sum(g.percent for g in plan.gpus) for plan in found]
    assert taken == sorted(taken)
    assert len(set(taken)) == len(taken)


@pytest.mark.parametrize("strategy", ["joint", "igniter", "inss"])
def test_a_request_larger_than_any_batch_is_refused_with_the_reason(strategy: str) -> None:
    (refused,) = plan_for(64, strategy).infeasible
    assert refused.reason == (
        "its clients send 64 inferences in a request, and the largest batch of resnet50 on v100 is 32"
    )


@pytest.mark.parametrize(("batch", "client_batch"), [(6, 4), (4, 8)])
def test_a_batch_of_parts_of_requests_breaks_the_plan(batch: int, client_batch: int) -> None:
    (found,) = verify(plan_of(client_batch, batch), {"v100": v100("ours")})
    assert f"batch {batch} is no multiple of the {client_batch} inferences" in found.reason


def test_other_batches_are_explained_in_whole_requests() -> None:
    (told,) = explain(plan_of(4), "w", {"v100": v100("ours")})  # type: ignore[misc]
    assert {a.batch for a in told.alternatives} == {4, 8, 12}
