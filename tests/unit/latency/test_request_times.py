"""Batches of the same inferences in fewer requests, within a quota."""

from dataclasses import replace

import numpy as np
import pytest

from controlplane.domain.device import Device, GpuPool, ShareGrid, ShareKind
from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Rule, ServedModel
from controlplane.domain.profile import Environment, Measurement, Profile
from controlplane.latency import registry
from controlplane.latency.adjusted import RequestTimes
from controlplane.latency.protocol import Slots
from controlplane.planning.judge.evaluate import Terms, evaluate
from controlplane.planning.protocol import Device as PlanningDevice
from controlplane.simulate.engine import Settings, simulate

CPU = Device("cpu", ShareKind.CPU_QUOTA, ShareGrid(50.0, 50.0))
REQUEST_MS, EACH_MS, FIXED_MS = 0.25, 1.0, 2.0


def profile(request_ms: float | None) -> Profile:
    """A model that takes 2 ms a batch and 1.25 ms a request of one inference, of a whole core."""
    points = tuple(
        Measurement(percent, batch, ms, capacity_rps=1000.0 * batch / ms)
        for percent in CPU.grid.percents()
        for batch in (1, 2, 4, 8)
        for ms in [(FIXED_MS + (EACH_MS + REQUEST_MS) * batch) * 100.0 / percent]
    )
    return Profile("m", "cpu", ShareKind.CPU_QUOTA, Environment(), points, request_ms=request_ms, max_batch=8)


def device(request_ms: float | None = REQUEST_MS) -> PlanningDevice:
    profiles = {"m": profile(request_ms)}
    return PlanningDevice(GpuPool(CPU, 1, 0.0), registry.build("ours", CPU, profiles), profiles)


def plan_of(client_batch: int) -> Plan:
    placement = Placement("w", "w", "m", 160.0, 100.0, client_batch=client_batch)
    partition = Partition("w", 50.0, (ServedModel("m", 8),), (placement,))
    return Plan("by-hand", Rule.P99, "ours", (PlannedGpu("cpu-0", "cpu", (partition,)),))


def judged_p99_ms(of: PlanningDevice, client_batch: int) -> float:
    gpus = plan_of(client_batch).gpus
    return float(evaluate(gpus, {"cpu": of}, Terms(Rule.P99, 0.5))["cpu"].p99_ms[0, 0])


@pytest.mark.parametrize("requests", [8, 4, 2, 1])
@pytest.mark.parametrize("percent", [50.0, 100.0])
def test_fewer_requests_take_less_time_of_the_share(requests: int, percent: float) -> None:
    slots = replace(Slots.alone([0], [8], [percent]), requests=np.array([[float(requests)]]))
    answer = device().latency.estimate(slots, 0.5)
    expected = (FIXED_MS + EACH_MS * 8 + REQUEST_MS * requests) * 100.0 / percent
    assert answer.execution_ms[0, 0] == pytest.approx(expected, rel=1e-6)
    assert answer.cycle_ms[0, 0] == pytest.approx(expected, rel=1e-6)


def test_a_batch_takes_at_least_its_requests_handling() -> None:
    slots = replace(Slots.alone([0], [8], [100.0]), requests=np.array([[2.0]]))
    assert device(request_ms=5.0).latency.estimate(slots, 0.5).execution_ms[0, 0] == pytest.approx(10.0)


def test_a_profile_without_the_time_of_a_request_keeps_its_meaning() -> None:
    old = device(request_ms=None)
    assert not isinstance(old.latency, RequestTimes)
    assert judged_p99_ms(old, 8) > judged_p99_ms(device(), 8)
    assert judged_p99_ms(old, 1) == judged_p99_ms(device(), 1)


@pytest.mark.parametrize(("client_batch", "requests"), [(1, 8), (4, 2), (8, 1)])
def test_the_judge_counts_the_requests_of_a_full_batch(client_batch: int, requests: int) -> None:
    gpus = plan_of(client_batch).gpus
    found = evaluate(gpus, {"cpu": device()}, Terms(Rule.P99, 0.5))["cpu"]
    expected = 2.0 * (FIXED_MS + EACH_MS * 8 + REQUEST_MS * requests)
    assert found.times.execution_ms[0, 0] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("client_batch", [1, 4, 8])
def test_the_judge_and_the_simulator_agree(client_batch: int) -> None:
    of = device()
    seen = [
        simulate(plan_of(client_batch), {"cpu": of.latency}, Settings(400.0, seed=seed)).workloads[0].p99_ms
        for seed in range(3)
    ]
    assert judged_p99_ms(of, client_batch) == pytest.approx(np.mean(seen), rel=0.04)
