"""Reuse of the running plan: its GPUs with the rates and SLOs of today."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, ServedModel
from controlplane.planning.judge.placements import gpu_of, memory_together, placement_of
from controlplane.planning.protocol import Device, PlanRequest


def reused(previous: Plan, request: PlanRequest) -> tuple[PlannedGpu, ...] | None:
    """The GPUs of `previous` with today's rates and SLOs, without workloads and models that are gone.

    None where it does not serve every workload asked for, or uses GPUs that are not offered. Whether it still
    keeps its promises is for `verify` to say.
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
            placements = tuple(
                placement_of(now, now.rate_rps * w.rate_rps / served[w.name])
                for w in partition.workloads
                if (now := asked.get(w.name)) is not None
            )
            if not placements:
                continue
            models = _still_called(partition.models, placements)
            today = replace(partition, models=models, workloads=placements, shadow=None)
            if not _still_serves(today, device):
                return None
            memory_mb = memory_together([asked[w.name] for w in placements], device)
            partitions.append(replace(today, memory_mb=memory_mb))
        if partitions:
            gpus.append(replace(gpu_of(0, device, partitions), id=gpu.id))
    return tuple(gpus)


def _still_called(models: Sequence[ServedModel], workloads: Sequence[Placement]) -> tuple[ServedModel, ...]:
    """Those of the models that workloads are left for: the others would run for no request.

    The last one of a partition has no rank, since nothing waits for its turn.
    """
    called = {w.model for w in workloads}
    left = tuple(m for m in models if m.model in called)
    return left if len(left) > 1 else tuple(replace(m, rank=None) for m in left)


def cost_of(gpus: Sequence[PlannedGpu]) -> float:
    """The price per hour, or the number of GPUs where all of them are free."""
    return sum(g.price_per_hour for g in gpus) or float(len(gpus))


def _still_serves(partition: Partition, device: Device) -> bool:
    """Whether its models are those that its workloads ask for, and its batches hold whole requests."""
    batch = {m.model: m.batch for m in partition.models}
    return all(
        w.model in batch and w.model in device.profiles and batch[w.model] % w.client_batch == 0
        for w in partition.workloads
    )
