"""gpu-lets+, the baseline of iGniter's comparison: p_eff, the batch that just meets the rate, two in a GPU.

What its authors say of it (TPDS 34(3), Sec. 5.1 and 5.3): the share that is most efficient, and larger where
its throughput alone does not carry the rate; five sizes; best fit; of the interference only what a newcomer
suffers, and only in its latency. Workloads come in the order of the spec.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from controlplane.domain.plan import Infeasible
from controlplane.domain.units import MILLIS_PER_SECOND
from controlplane.domain.workload import Workload
from controlplane.papers.gpulet import latency as model
from controlplane.papers.gpulet.sizing import GPULET, Demand, Runs, Sizing, Times
from controlplane.papers.per_type import PerGpuType, alone, own_model
from controlplane.planning.judge.estimates import LARGEST_BATCH
from controlplane.planning.judge.finalise import Draft
from controlplane.planning.judge.placements import gpu_of, memory_with_shadow, refusal
from controlplane.planning.protocol import Device, PlanRequest

MOST_ON_A_GPU = 2


@dataclass(frozen=True, slots=True)
class Placed:
    """A workload's place: its model, share and batch, and the memory it takes."""

    workload: Workload
    runs: Runs
    memory_mb: float


def strategy() -> PerGpuType:
    """gpu-lets+, judged like iGniter's own: half-SLO by iGniter's model."""
    return PerGpuType("gpu-lets+", "igniter", _draft_on)


def _draft_on(device: Device, request: PlanRequest) -> Draft:
    own = own_model(device, model.Gpulet, model.fit)
    largest = min(LARGEST_BATCH, *(p.largest_batch for p in device.profiles.values()))
    times = Times.of(own, largest, margin=1.0)
    sizing = Sizing(times, GPULET, as_coded=True)
    refused: list[Infeasible] = []
    gpus: list[list[Placed]] = []
    for workload in request.workloads:
        why = refusal(workload, device)
        if why is None:
            runs = _sized(workload, own.models.index(workload.model), sizing)
            why = _place(Placed(workload, runs, memory_with_shadow(workload, device)), gpus, device, times)
        if why is not None:
            refused.append(Infeasible(workload.name, why))
    partitions = [[alone(p.workload, float(p.runs[1]), p.runs[2], device) for p in gpu] for gpu in gpus]
    return Draft(tuple(gpu_of(n, device, own) for n, own in enumerate(partitions)), tuple(refused))


def _sized(workload: Workload, index: int, sizing: Sizing) -> Runs:
    """The smallest share from p_eff on that carries the rate alone, and the smallest batch that does."""
    demand = Demand(0, index, math.ceil(workload.rate_rps), workload.slo_ms)
    sizes = sorted(p for p in sizing.scheme.sizes if p >= sizing.efficient(demand))
    for percent in sizes:
        for batch in range(1, sizing.saturated(demand, percent)[0] + 1):
            taken = sizing.times.alone(index, percent, batch)
            if 2.0 * taken <= workload.slo_ms and MILLIS_PER_SECOND * batch / taken >= workload.rate_rps:
                return index, percent, batch
    return index, sizes[-1], sizing.saturated(demand, sizes[-1])[0]


def _place(placed: Placed, gpus: list[list[Placed]], device: Device, times: Times) -> str | None:
    """Put a workload on the GPU that it fits best, else on a new one; the reason where there is none."""
    memory_mb = device.pool.device.memory_mb or math.inf
    percent = placed.runs[1]

    def left(gpu: list[Placed]) -> int:
        return 100 - sum(p.runs[1] for p in gpu)

    fitting = [
        gpu
        for gpu in gpus
        if len(gpu) < MOST_ON_A_GPU
        and left(gpu) >= percent
        and sum(p.memory_mb for p in gpu) + placed.memory_mb <= memory_mb
        and 2.0 * times.beside(placed.runs, [p.runs for p in gpu]) <= placed.workload.slo_ms
    ]
    if fitting:
        min(fitting, key=left).append(placed)
        return None
    if device.pool.count is not None and len(gpus) >= device.pool.count:
        return f"all {device.pool.count} {device.pool.device.name} are taken"
    gpus.append([placed])
    return None
