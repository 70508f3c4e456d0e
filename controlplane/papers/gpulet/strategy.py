"""The family's strategies: from a question to a draft that the judge sees like any other.

Each plans with its own times (measured tables, gpulet's linear factor, a margin of a tenth) and its own rule:
a batch is collected and executed within the SLO. By default the plan is judged by the same model and
half-SLO, which is what the rule comes to.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from controlplane.domain.plan import Infeasible, Partition, PlannedGpu, ServedModel
from controlplane.domain.workload import Workload
from controlplane.papers.gpulet import coded, elastic
from controlplane.papers.gpulet import latency as model
from controlplane.papers.gpulet.gpulets import Cluster, Gpu, Gpulet
from controlplane.papers.gpulet.sizing import IDEAL, SCHEMES, Demand, Sizing, Times
from controlplane.papers.per_type import PerGpuType, own_model, split
from controlplane.planning.judge.estimates import LARGEST_BATCH
from controlplane.planning.judge.finalise import Draft
from controlplane.planning.judge.placements import (
    PROCESS,
    gpu_of,
    memory_of,
    memory_together,
    placement_of,
    refusal,
)
from controlplane.planning.protocol import Device, PlanRequest

NORMAL_FROM_RPS = 550
"""Above this rate the authors take a tenth more in place of the 99th percentile."""


def strategy(name: str, as_coded: bool = False, as_printed: bool = False) -> PerGpuType:
    """One of `SCHEMES`; for the options see `Sizing`."""
    sized = partial(Sizing, scheme=SCHEMES[name], as_coded=as_coded, as_printed=as_printed)
    return PerGpuType(name, model.NAME, partial(_draft_on, sized=sized))


def _draft_on(device: Device, request: PlanRequest, sized: Callable[[Times], Sizing]) -> Draft:
    left, refused = split(request.workloads, lambda w: refusal(w, device))
    own = own_model(device, model.Gpulet, model.fit)
    largest = min(LARGEST_BATCH, *(p.largest_batch for p in device.profiles.values()))
    sizing = sized(Times.of(own, largest))
    before = request.previous.gpus if request.previous else ()
    used = sum(gpu.type == device.pool.device.name for gpu in before)
    while left:
        demands = demands_of(left, device, own.models)
        found = scaled(demands, device, sizing, used)
        if found is not None:
            return Draft(_planned(found, left, device), tuple(refused))
        # The model that takes most is left out, until the others have a place.
        largest_one = max(demands, key=lambda d: (d.rate * d.slo_ms, d.key))
        gone = left.pop(largest_one.key)
        count = device.pool.count or len(request.workloads)
        refused.append(Infeasible(gone.name, f"{sizing.scheme.name} finds no gpulet for it on {count} GPUs"))
    return Draft((), tuple(refused))


def scaled(demands: Sequence[Demand], device: Device, sizing: Sizing, used: int) -> Cluster | None:
    """Alg 2: from the GPUs of the period before, one more until the demands have a place."""
    # Beyond one GPU for each saturated gpulet, and two more a model, no more help.
    rates = [(d.rate, sizing.saturated(d, sizing.efficient(d))[1]) for d in demands]
    most = device.pool.count or sum(int(rate / largest) + 2 for rate, largest in rates if largest)
    memory_mb = device.pool.device.memory_mb or math.inf
    process_mb = device.pool.device.hardware.get(PROCESS, 0.0)
    scheme, place = sizing.scheme, coded.partition if sizing.as_coded else elastic.partition
    for count in range(min(max(used, 1), most), most + 1):
        gpus = [Gpu(memory_mb, process_mb) for _ in range(count)]
        cluster = Cluster(gpus, sizing.times, scheme.interference)
        if scheme is IDEAL:
            fixed = elastic.on_fixed(demands, cluster, sizing, place)
            if fixed is not None:
                return fixed
        elif place(demands, cluster, sizing) is None:
            return cluster
    return None


def demands_of(workloads: Sequence[Workload], device: Device, models: Sequence[str]) -> list[Demand]:
    """What each workload asks for; `models` are the tables' in order."""
    process_mb = device.pool.device.hardware.get(PROCESS, 0.0)
    return [
        Demand(
            n,
            models.index(w.model),
            reserved(w.rate_rps),
            w.slo_ms,
            max((memory_of(w, device) or 0.0) - process_mb, 0.0),
        )
        for n, w in enumerate(workloads)
    ]


def reserved(rate_rps: float) -> int:
    """The rate to plan for: the 99th percentile of the requests of a second, and one.

    As in the authors' code, which does not count the seconds without a request.
    """
    rate = max(int(rate_rps), 1)
    if rate > NORMAL_FROM_RPS:
        return int(rate * 1.1)
    total, count = 0.0, 1
    while total < 0.99 * (1.0 - math.exp(-rate)):
        total += math.exp(count * math.log(rate) - rate - math.lgamma(count + 1))
        count += 1
    return count


def _planned(cluster: Cluster, workloads: Sequence[Workload], device: Device) -> tuple[PlannedGpu, ...]:
    """The GPUs in use, each gpulet a partition; a workload's rate is split by what its gpulets serve."""
    total = {n: 0.0 for n in range(len(workloads))}
    for _, piece in cluster.pieces():
        for resident in piece.residents:
            total[resident.demand.key] += resident.throughput
    used = [[piece for piece in gpu.pieces if piece.residents] for gpu in cluster.gpus]
    return tuple(
        gpu_of(number, device, [_partition(piece, workloads, total, device) for piece in pieces])
        for number, pieces in enumerate(filter(None, used))
    )


def _partition(
    piece: Gpulet, workloads: Sequence[Workload], total: dict[int, float], device: Device
) -> Partition:
    served: Counter[str] = Counter()
    placements = []
    for resident in piece.residents:
        workload = workloads[resident.demand.key]
        part = resident.throughput / total[resident.demand.key]
        placements.append(placement_of(workload, workload.rate_rps * part))
        served[workload.model] += resident.batch
    models = tuple(ServedModel(name, min(batch, LARGEST_BATCH)) for name, batch in served.items())
    memory_mb = memory_together([workloads[r.demand.key] for r in piece.residents], models, device)
    name = placements[0].name
    return Partition(name, float(piece.percent), models, tuple(placements), memory_mb=memory_mb)
