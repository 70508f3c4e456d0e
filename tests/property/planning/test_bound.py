"""The lower bounds against layouts made to just hold: they may not ask for more GPUs than they use."""

from dataclasses import replace

import numpy as np
import planning
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from controlplane.domain.plan import Partition, PlannedGpu, Rule
from controlplane.domain.workload import Workload
from controlplane.planning.capacity.gpu_types import GpuType
from controlplane.planning.capacity.lower_bound import lower_bound
from controlplane.planning.exact.closer_bound import closer_bound
from controlplane.planning.judge.evaluate import Terms, evaluate
from controlplane.planning.judge.layout import Layout
from controlplane.planning.judge.placements import gpu_of, partition_of

KINDS = [("igniter", Rule.HALF_SLO), ("ours", Rule.P99)]
MARGIN = 0.01
"""What the layouts have to spare: joint's batch at a share is not always the one they have."""


def full_gpus(chance: np.random.Generator, latency: str) -> list[PlannedGpu]:
    """One to four GPUs without an idle percent, of one to four partitions each, with any batches."""
    device = planning.v100(latency)
    gpus = []
    for g in range(int(chance.integers(1, 5))):
        cuts = np.sort(chance.choice(np.arange(2, 39), size=int(chance.integers(0, 4)), replace=False))
        shares = 2.5 * np.diff(np.concatenate([[0], cuts, [40]]))
        partitions = []
        for n, share in enumerate(shares.tolist()):
            model = planning.MODELS[int(chance.integers(4))]
            asked = planning.workload(f"w{g}-{n}", model, 1e4, 1.0)
            partitions.append(partition_of(asked.name, [asked], share, int(chance.integers(1, 33)), None))
        gpus.append(gpu_of(g, device, partitions))
    return gpus


def loaded(gpus: list[PlannedGpu], layout: Layout) -> list[PlannedGpu]:
    """The GPUs, whose partitions serve one workload each, with the rates of a layout."""

    def at(i: int, j: int, partition: Partition) -> Partition:
        (one,) = partition.workloads
        return replace(partition, workloads=(replace(one, rate_rps=float(layout.rate[i, j])),))

    return [
        replace(gpu, partitions=tuple(at(i, j, p) for j, p in enumerate(gpu.partitions)))
        for i, gpu in enumerate(gpus)
    ]


def asked_just_enough(
    gpus: list[PlannedGpu], latency: str, rule: Rule, quantile: float | None, busy: float
) -> list[Workload]:
    """Workloads that these partitions hold with `MARGIN` to spare, at this utilisation under P99."""
    device = {"v100": planning.v100(latency)}
    layout = Layout.of(gpus, device["v100"])
    times = evaluate(gpus, device, Terms(Rule.HALF_SLO, quantile))["v100"].times
    part = busy if rule is Rule.P99 else 1.0 - MARGIN
    layout = replace(layout, rate=times.capacity_rps * part)
    slo = 2.0 * times.execution_ms
    if rule is Rule.P99:
        slo = evaluate(loaded(gpus, layout), device, Terms(rule, quantile))["v100"].p99_ms
        # Where a smaller batch takes longer than the full one, the queue may not settle.
        assume(bool(np.isfinite(slo[layout.mask]).all()))
    return [
        planning.workload(q.partition.id, q.served.model, float(slo[at]) * (1.0 + MARGIN), layout.rate[at])
        for at, q in layout.columns()
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("latency", "rule"), KINDS)
@settings(max_examples=8)
@given(seed=st.integers(0, 10**6), busy=st.floats(0.3, 0.9))
def test_gpus_that_hold_are_no_fewer_than_the_bound(latency: str, rule: Rule, seed: int, busy: float) -> None:
    gpus, asked, types = full_case(latency, rule, seed, busy)
    assert lower_bound(asked, types) <= 3.06 * len(gpus) + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize(("latency", "rule"), KINDS)
@settings(max_examples=2)
@given(seed=st.integers(0, 10**6), busy=st.floats(0.3, 0.9))
def test_nor_than_the_closer_bound(latency: str, rule: Rule, seed: int, busy: float) -> None:
    gpus, asked, types = full_case(latency, rule, seed, busy)
    assert closer_bound(asked, types, lambda: False) <= 3.06 * len(gpus) + 1e-9


def full_case(
    latency: str, rule: Rule, seed: int, busy: float
) -> tuple[list[PlannedGpu], list[Workload], dict[str, GpuType]]:
    gpus = full_gpus(np.random.default_rng(seed), latency)
    quantile = 0.95 if rule is Rule.P99 else None
    asked = asked_just_enough(gpus, latency, rule, quantile, busy)
    return gpus, asked, planning.types_of(planning.request(asked, latency=latency, rule=rule))
