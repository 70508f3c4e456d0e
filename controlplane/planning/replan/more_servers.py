"""Further servers for the pools whose promises break, beside all that runs. Values in, values out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from controlplane.domain.plan import MOST_SERVERS, Partition, PlannedGpu
from controlplane.planning.judge.placements import gpu_of
from controlplane.planning.protocol import PlanRequest
from controlplane.planning.replan.pressure import late_of, pressure_of
from controlplane.planning.replan.reuse import cost_of

Gpus = tuple[PlannedGpu, ...]


def with_more_servers(gpus: Gpus, request: PlanRequest, most_cost: float) -> Gpus | None:
    """The GPUs with as many further servers as late pools need, each like those of its pool.

    A server goes to the fullest GPU that has room for it and whose other promises it does not break, else to
    one GPU more. None where that is not enough, or costs more than `most_cost`.
    """
    present, pressure = gpus, pressure_of(gpus, request)
    while late := late_of(pressure):
        for other in _with_one_more(present, min(late), request):
            after = pressure_of(other, request)
            if late_of(after) & pressure.keys() <= late:
                present, pressure = other, after
                break
        else:
            return None
        if cost_of(present) > most_cost:
            return None
    return present


def _with_one_more(gpus: Gpus, late: str, request: PlanRequest) -> Iterator[Gpus]:
    """The GPUs with one server more in the pool of a partition, on each GPU with room and on one more."""
    home, like = next((g, p) for g in gpus for p in g.partitions if p.id == late)
    names = {w.name for w in like.workloads}
    servers = sum({w.name for w in p.workloads} == names for g in gpus for p in g.partitions)
    if servers == MOST_SERVERS or len(like.models) > 1:
        return

    def fewer(partition: Partition) -> Partition:
        if {w.name for w in partition.workloads} != names:
            return partition
        part = servers / (servers + 1)
        return replace(
            partition,
            workloads=tuple(replace(w, rate_rps=part * w.rate_rps) for w in partition.workloads),
        )

    spread = tuple(replace(g, partitions=tuple(map(fewer, g.partitions))) for g in gpus)
    further = replace(fewer(like), id=f"{late}+{servers}")
    for at, gpu in sorted(enumerate(spread), key=lambda one: -one[1].percent):
        if gpu.type == home.type and gpu.percent + further.percent <= 100.0:
            fuller = replace(gpu, partitions=(*gpu.partitions, further))
            yield (*spread[:at], fuller, *spread[at + 1 :])
    device = request.devices[home.type]
    used = sum(g.type == home.type for g in gpus)
    if device.pool.count is None or used < device.pool.count:
        yield (*spread, replace(gpu_of(0, device, [further]), id=f"more-{used}"))
