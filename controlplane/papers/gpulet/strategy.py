"""The family's strategies: from a question to a draft that the judge sees like any other.

Each plans with its own times (measured tables, gpulet's linear factor, a margin of a tenth) and its own rule:
a batch is collected and executed within the SLO. The plan is judged by the latency model and rule of the
request, by default the same model and half-SLO, which is what the rule comes to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from controlplane.domain.plan import Infeasible, Partition, Plan, PlannedGpu, Rule, ServedModel
from controlplane.domain.workload import Workload
from controlplane.latency.models import gpulet as model
from controlplane.latency.models.gpulet import Gpulet as GpuletModel
from controlplane.papers.gpulet import elastic, scheme
from controlplane.papers.gpulet.gpulets import Cluster, Demand, Gpu, Gpulet
from controlplane.papers.gpulet.scheme import CODE, PAPER, Reading, Scheme
from controlplane.papers.gpulet.sizing import Sizing
from controlplane.papers.gpulet.times import Times
from controlplane.planning.capacity.client_batches import refusal
from controlplane.planning.judge.estimates import LARGEST_BATCH
from controlplane.planning.judge.finalise import Draft, finalise_cheapest
from controlplane.planning.judge.placements import (
    PROCESS,
    gpu_of,
    memory_of,
    memory_together,
    placement_of,
)
from controlplane.planning.protocol import Device, PlanRequest

NORMAL_FROM_RPS = 550
"""Above this rate the authors take a tenth more in place of the 99th percentile."""

Place = Callable[[Sequence[Demand], Cluster, Sizing], Cluster | None]
"""Places demands; None where one has no place."""


@dataclass(frozen=True, slots=True)
class Elastic:
    """One scheduler of gpulet's paper, with Alg 2 around it: one GPU more until the demands have a place."""

    name: str
    scheme: Scheme
    reading: Reading = PAPER
    ideal: bool = False
    rule: Rule = Rule.HALF_SLO
    latency_model: str = model.NAME

    def plan(self, request: PlanRequest) -> Plan:
        """The cheapest of the plans on one GPU type each."""
        return finalise_cheapest(self.name, request, self._on)

    def _on(self, device: Device, workloads: Sequence[Workload]) -> Draft:
        refused = [Infeasible(w.name, why) for w in workloads if (why := refusal(w, device)) is not None]
        left = [w for w in workloads if w.name not in {i.workload for i in refused}]
        own = device.latency
        if not isinstance(own, GpuletModel):
            own = model.fit(device.profiles, device.pool.device)
        largest = min(LARGEST_BATCH, *(p.largest_batch for p in device.profiles.values()))
        sizing = Sizing(Times.of(own, largest), self.scheme, self.reading)
        while left:
            demands = demands_of(left, device, own.models)
            found = self._scaled(demands, device, sizing)
            if found is not None:
                return Draft(_planned(found, left, device), tuple(refused))
            # The model that takes most is left out, until the others have a place.
            largest_one = max(demands, key=lambda d: (d.rate * d.slo_ms, d.key))
            gone = left.pop(largest_one.key)
            count = device.pool.count or len(workloads)
            refused.append(Infeasible(gone.name, f"{self.name} finds no gpulet for it on {count} GPUs"))
        return Draft((), tuple(refused))

    def _scaled(self, demands: Sequence[Demand], device: Device, sizing: Sizing) -> Cluster | None:
        """Alg 2: the fewest GPUs on which the demands have a place."""
        most = device.pool.count or _enough(demands, sizing)
        memory_mb = device.pool.device.memory_mb or math.inf
        process_mb = device.pool.device.hardware.get(PROCESS, 0.0)
        for count in range(1, most + 1):
            gpus = [Gpu(memory_mb, process_mb) for _ in range(count)]
            if self.ideal:
                fixed = elastic.on_fixed(demands, gpus, sizing, self.scheme.interference)
                if fixed is not None:
                    return fixed
            else:
                cluster = Cluster(gpus, sizing.times, self.scheme.interference)
                if elastic.partition(demands, cluster, sizing) is None:
                    return cluster
        return None


def sbp(as_coded: bool = False) -> Elastic:
    """Squishy bin packing: whole GPUs in turns."""
    return Elastic("sbp", scheme.SBP, _reading(as_coded))


def greedy_best_fit(as_coded: bool = False) -> Elastic:
    """The smallest share that carries the rate, without turns."""
    return Elastic("greedy-best-fit", scheme.GREEDY, _reading(as_coded))


def gpulet(as_coded: bool = False) -> Elastic:
    """Elastic partitioning that knows no interference."""
    return Elastic("gpulet", scheme.GPULET, _reading(as_coded))


def gpulet_int(as_coded: bool = False) -> Elastic:
    """Elastic partitioning that knows interference."""
    return Elastic("gpulet+int", scheme.GPULET_INT, _reading(as_coded))


def gpulet_ideal(as_coded: bool = False) -> Elastic:
    """The same on every fixed partitioning in turn. No upper bound: each is filled greedily."""
    fixed = replace(scheme.GPULET_INT, name="gpulet-ideal", cuts=False)
    return Elastic("gpulet-ideal", fixed, _reading(as_coded), ideal=True)


def _reading(as_coded: bool) -> Reading:
    return CODE if as_coded else PAPER


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


def _enough(demands: Sequence[Demand], sizing: Sizing) -> int:
    """A number of GPUs beyond which no more help: every gpulet wanted on one of its own."""
    return sum(len(sizing.wanted(d, d.rate) or [None]) + 1 for d in demands)


def _planned(cluster: Cluster, workloads: Sequence[Workload], device: Device) -> tuple[PlannedGpu, ...]:
    """The GPUs in use, each gpulet a partition; a workload's rate is split by what its gpulets serve."""
    total = {n: sum(_part(p, n) for _, p in cluster.pieces()) for n in range(len(workloads))}
    used = [gpu for gpu in cluster.gpus if any(piece.residents for piece in gpu.pieces)]
    return tuple(
        gpu_of(
            number,
            device,
            [_partition(piece, workloads, total, device) for piece in gpu.pieces if piece.residents],
        )
        for number, gpu in enumerate(used)
    )


def _part(piece: Gpulet, key: int) -> float:
    return sum(r.throughput for r in piece.residents if r.demand.key == key)


def _partition(
    piece: Gpulet, workloads: Sequence[Workload], total: dict[int, float], device: Device
) -> Partition:
    served: dict[str, int] = {}
    placements = []
    for resident in piece.residents:
        workload = workloads[resident.demand.key]
        part = resident.throughput / total[resident.demand.key]
        placements.append(placement_of(workload, workload.rate_rps * part))
        served[workload.model] = max(served.get(workload.model, 0), resident.batch)
    memory_mb = memory_together([workloads[r.demand.key] for r in piece.residents], device)
    models = tuple(ServedModel(name, batch) for name, batch in served.items())
    name = placements[0].name
    return Partition(name, float(piece.percent), models, tuple(placements), memory_mb=memory_mb)
