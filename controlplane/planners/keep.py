"""The plan that runs now, asked to serve what is asked for now."""

from __future__ import annotations

from dataclasses import replace

from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu
from controlplane.domain.workload import Workload
from controlplane.planners.finish import gpu_of, memory_of
from controlplane.planners.protocol import PlanRequest


def kept(previous: Plan, request: PlanRequest) -> tuple[PlannedGpu, ...] | None:
    """The GPUs of `previous` with today's rates and SLOs, without workloads that are gone.

    None where it does not serve every workload asked for, or uses GPUs that are not offered. Whether it still
    keeps its promises is the judge's to say.
    """
    asked = {w.name: w for w in request.workloads}
    served = {w.name: 0.0 for w in request.workloads}
    for _, _, w in previous.placements():
        if w.name in served:
            served[w.name] += w.rate_rps
    if any(total <= 0.0 for total in served.values()):
        return None
    gpus = []
    for gpu in previous.gpus:
        if gpu.type not in request.devices:
            return None
        device = request.devices[gpu.type]
        partitions = []
        for partition in gpu.partitions:
            placements = [_today(w, asked[w.name], served) for w in partition.workloads if w.name in asked]
            if not placements:
                continue
            model = placements[0].model
            if len(partition.models) != 1 or partition.models[0].model != model:
                return None
            if model not in device.profiles:
                return None
            if any(partition.models[0].batch % w.client_batch for w in placements):
                return None
            memory = memory_of(asked[placements[0].name], device)
            partitions.append(
                Partition(partition.id, partition.percent, partition.models, tuple(placements), memory)
            )
        if partitions:
            gpus.append(replace(gpu_of(0, device, partitions), id=gpu.id))
    return tuple(gpus)


def _today(before: Placement, now: Workload, served: dict[str, float]) -> Placement:
    return Placement(
        now.name,
        now.endpoint,
        now.model,
        now.rate_rps * before.rate_rps / served[now.name],
        now.slo_ms,
        now.arrivals,
        client_batch=now.client_batch,
        isolated=now.isolated,
    )
