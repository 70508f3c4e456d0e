"""GSLICE+, a baseline of iGniter's comparison: iGniter's placement, shares and batches tuned one by one.

As in the authors' code (TPDS 34(3), Sec. 5.1): every workload starts with batch 1 on 30 %. In a round the
batches follow the mean latency until they stay, then each share follows latency and throughput; five rounds,
and the batches once more. What is less than a tenth too good stays. Observed is what Eq 1-11 say of the
workloads on their GPU. No share looks at what the GPU has left, so their sum may exceed it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from controlplane.domain.plan import Partition, PlannedGpu, ServedModel
from controlplane.domain.units import MILLIS_PER_SECOND
from controlplane.latency.protocol import BoolArray, FloatArray, IntArray, Slots
from controlplane.papers.igniter import latency as model
from controlplane.papers.igniter.latency import Igniter
from controlplane.papers.igniter.strategy import draft_on
from controlplane.papers.per_type import PerGpuType, own_model
from controlplane.planning.judge.estimates import ask
from controlplane.planning.judge.finalise import Draft
from controlplane.planning.judge.placements import largest_batch
from controlplane.planning.protocol import Device, PlanRequest

FIRST_PERCENT = 30.0
ROUNDS = 5
"""Rounds, and the most changes of batches in each."""
THRESHOLD = 0.1


def strategy() -> PerGpuType:
    """GSLICE+, judged like iGniter's own."""
    return PerGpuType("gslice+", model.NAME, _draft_on)


def _draft_on(device: Device, request: PlanRequest) -> Draft:
    placed = draft_on(device, request)
    eq = own_model(device, Igniter, model.fit)
    return replace(placed, gpus=tuple(_tuned(gpu, eq, device) for gpu in placed.gpus))


@dataclass(slots=True)
class Tuning:
    """The workloads of one GPU, arrays (workloads,).

    `allowed_ms` is half of the SLO, `rate` counts inferences per second. Batches are multiples of `step`,
    up to `largest`.
    """

    eq: Igniter
    model: IntArray
    allowed_ms: FloatArray
    rate: FloatArray
    step: FloatArray
    largest: FloatArray
    batch: FloatArray
    percent: FloatArray

    def run(self) -> None:
        """Tune as often as the authors do before they count."""
        for _ in range(ROUNDS):
            self.tune_batches()
            if not self.tune_shares():
                break
        self.tune_batches()

    def observed(self) -> tuple[FloatArray, FloatArray]:
        """Latency in ms and throughput in inferences/s of all, side by side."""
        there = np.ones((1, self.batch.size), dtype=np.bool_)
        slots = Slots.of(self.model[None], self.batch[None], self.percent[None], there)
        latency_ms, cycle_ms = (times[0] for times in ask(self.eq, slots, None))
        return latency_ms, MILLIS_PER_SECOND * self.batch / cycle_ms

    def tune_batches(self) -> None:
        """Let the batches follow the latency until they stay."""
        for _ in range(ROUNDS):
            latency_ms, _ = self.observed()
            left = self.allowed_ms - latency_ms
            batch = np.ceil(np.clip(self.batch * (1.0 + left / latency_ms), 1.0, self.largest))
            batch = np.minimum(np.ceil(batch / self.step) * self.step, self.largest)
            batch = np.where(_little(left / self.allowed_ms), self.batch, batch)
            if np.array_equal(batch, self.batch):
                return
            self.batch = batch

    def tune_shares(self) -> bool:
        """Grow and shrink the shares once; whether any changed."""
        latency_ms, throughput = self.observed()
        left, spare = self.allowed_ms - latency_ms, throughput - self.rate
        by = np.maximum(np.abs(left) / latency_ms, np.abs(spare) / throughput)
        change = np.where((left < 0) | (spare < 0), by, np.where((left > 0) & (spare > 0), -by, 0.0))
        percent = np.clip(self.percent * (1.0 + change), 1.0, 100.0)
        stays = _little(left / self.allowed_ms) & _little(spare / self.rate)
        percent = np.where(stays, self.percent, percent)
        changed = not np.array_equal(percent, self.percent)
        self.percent = percent
        return changed


def _little(part: FloatArray) -> BoolArray:
    """Where something is too good by less than the threshold."""
    return np.asarray((part > 0) & (part < THRESHOLD), dtype=np.bool_)


def _tuned(gpu: PlannedGpu, eq: Igniter, device: Device) -> PlannedGpu:
    served = [p.workloads[0] for p in gpu.partitions]
    client_batch = np.array([w.client_batch for w in served], dtype=np.float64)
    tuning = Tuning(
        eq,
        model=np.array([eq.models.index(w.model) for w in served], dtype=np.int64),
        allowed_ms=np.array([w.slo_ms / 2.0 for w in served]),
        rate=np.array([w.rate_rps for w in served]),
        step=client_batch,
        largest=np.array([float(largest_batch(device, w.model, w.client_batch)) for w in served]),
        batch=client_batch,
        percent=np.full(len(served), FIRST_PERCENT),
    )
    tuning.run()
    grid = device.pool.device.grid

    def made(n: int, partition: Partition) -> Partition:
        steps = max(math.ceil((tuning.percent[n] - grid.minimum_percent) / grid.step_percent - 1e-9), 0)
        percent = min(grid.minimum_percent + steps * grid.step_percent, 100.0)
        models = (ServedModel(partition.workloads[0].model, int(tuning.batch[n])),)
        return replace(partition, percent=percent, models=models)

    return replace(gpu, partitions=tuple(made(n, p) for n, p in enumerate(gpu.partitions)))
