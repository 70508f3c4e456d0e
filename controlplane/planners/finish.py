"""From partitions on GPUs to a plan: predictions, shadows, totals and the judge's word."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from controlplane.domain.plan import (
    Infeasible,
    Partition,
    Placement,
    Plan,
    PlannedGpu,
    Prediction,
    Rule,
    ServedModel,
    Totals,
    Violation,
)
from controlplane.domain.workload import ShadowPlace, ShadowPolicy, ShadowWish, Workload
from controlplane.planners.board import Board, Loads, Queues, loads
from controlplane.planners.protocol import Device, PlanRequest
from controlplane.planners.shadows import with_shadows
from controlplane.planners.verify import verify


@dataclass(frozen=True, slots=True)
class Draft:
    """What a strategy decided: GPUs with bare partitions, and whom it had to refuse."""

    gpus: tuple[PlannedGpu, ...]
    infeasible: tuple[Infeasible, ...] = ()
    stopped_by: str = "converged"
    bound_cost_per_hour: float | None = None
    bound_gpus: int | None = None
    queues: Queues = field(default_factory=Queues)
    """Solved on the way."""
    phases_ms: tuple[tuple[str, float], ...] = ()
    """What its parts took; the judge's is added."""


def partition_of(
    name: str, workloads: Sequence[Workload], percent: float, batch: int, memory_mb: float | None,
    part: float = 1.0,
) -> Partition:  # fmt: skip
    """A partition that serves this part of these workloads' rates."""
    return Partition(
        id=name,
        percent=percent,
        models=(ServedModel(workloads[0].model, batch),),
        workloads=tuple(
            Placement(
                w.name, w.endpoint, w.model, w.rate_rps * part, w.slo_ms, w.arrivals,
                client_batch=w.client_batch, isolated=w.isolated,
            )
            for w in workloads
        ),
        memory_mb=memory_mb,
    )  # fmt: skip


def gpu_of(number: int, device: Device, partitions: Sequence[Partition]) -> PlannedGpu:
    """The `number`-th GPU of a type, as a plan names it."""
    kind = device.pool.device
    return PlannedGpu(
        f"{kind.name}-{number}", kind.name, tuple(partitions), device.pool.price_per_hour, kind.memory_mb
    )


def memory_of(workload: Workload, device: Device) -> float | None:
    """What a partition for a workload takes, in MB: as told, else as measured, else unknown."""
    if workload.memory_mb is not None:
        return workload.memory_mb
    return device.profiles[workload.model].memory_mb


def memory_with_shadow(workload: Workload, device: Device) -> float:
    """The same with what stands by beside it, loaded; 0 where unknown."""
    here = workload.shadow == ShadowWish(ShadowPolicy.HOT, ShadowPlace.SAME_GPU)
    return (memory_of(workload, device) or 0.0) * (2.0 if here else 1.0)


def too_large(workload: Workload, device: Device) -> str | None:
    """That a server of a workload does not fit into a GPU's memory, and the way out; None where it does."""
    there, needed = device.pool.device.memory_mb, memory_with_shadow(workload, device)
    if there is None or needed <= there:
        return None
    alone = memory_of(workload, device) or 0.0
    told = f"it takes {alone:g} MB"
    if needed > alone:
        told += " and as much for its shadow"
        way = " (`shadow: {place: other-gpu}` puts that elsewhere, `{policy: none}` does without)"
        told += way if alone <= there else ""
    return f"{told}, and a {device.pool.device.name} has {there:g} MB"


def finish(strategy: str, request: PlanRequest, draft: Draft, started_s: float) -> Plan:
    """Predict, add shadows, judge. `started_s` is when planning began, by the request's clock."""
    drafted_s = request.clock.monotonic()
    quantile = request.quantile if request.rule is Rule.P99 else None
    drafted = _told_apart(draft.gpus)
    types = list(dict.fromkeys(g.type for g in drafted))
    boards = {t: Board.of([g for g in drafted if g.type == t], request.devices[t]) for t in types}
    found = loads(boards, request.devices, request.rule, quantile, draft.queues)
    wishes = {w.name: w.shadow for w in request.workloads}
    with_predictions = [g for t in types for g in _predicted(boards[t], found[t])]
    gpus = with_shadows(
        with_predictions, wishes, boards, found, request.devices, request.rule, quantile, draft.queues
    )
    latency = next(iter(request.devices.values())).latency.name if request.devices else ""
    plan = Plan(
        strategy=strategy,
        rule=request.rule,
        latency_model=latency,
        gpus=gpus,
        quantile=quantile,
        seed=request.seed,
        infeasible=draft.infeasible,
    )
    violations = (
        *verify(plan, request.devices, request.workloads, draft.queues),
        *_missing(plan, request.workloads),
    )
    now_s = request.clock.monotonic()
    phases_ms = (*draft.phases_ms, ("verify", (now_s - drafted_s) * 1000.0)) if draft.phases_ms else ()
    totals = Totals(
        gpus=len(gpus),
        percent=sum(g.percent for g in gpus),
        cost_per_hour=sum(g.price_per_hour for g in gpus),
        lower_bound_cost_per_hour=draft.bound_cost_per_hour,
        lower_bound_gpus=draft.bound_gpus,
        planning_ms=(now_s - started_s) * 1000.0,
        stopped_by=draft.stopped_by,
        phases_ms=phases_ms,
    )
    return replace(plan, verified=not violations, violations=violations, totals=totals)


def _told_apart(gpus: Sequence[PlannedGpu]) -> tuple[PlannedGpu, ...]:
    """The same partitions, none under another's id: a workload may be called as a pool's server."""
    given = {p.id for g in gpus for p in g.partitions}
    taken: set[str] = set()

    def own(partition: Partition) -> Partition:
        name, number = partition.id, 1
        while name in taken:
            number += 1
            name = f"{partition.id}.{number}"
            if name in given:
                name = partition.id
        taken.add(name)
        return partition if name == partition.id else replace(partition, id=name)

    return tuple(replace(g, partitions=tuple(own(p) for p in g.partitions)) for g in gpus)


def _predicted(board: Board, found: Loads) -> list[PlannedGpu]:
    execution, capacity = found.times.execution_ms.tolist(), found.times.capacity_rps.tolist()
    mean, p99, rate = found.mean_ms.tolist(), found.p99_ms.tolist(), board.rate.tolist()
    gpus = []
    for i, gpu in enumerate(board.gpus):
        partitions = []
        for j, p in enumerate(gpu.partitions):
            told = Prediction(
                execution_ms=execution[i][j],
                mean_ms=_finite(mean[i][j]),
                p99_ms=_finite(p99[i][j]),
                capacity_rps=capacity[i][j],
                utilisation=rate[i][j] / capacity[i][j],
            )
            partitions.append(replace(p, workloads=tuple(replace(w, predicted=told) for w in p.workloads)))
        gpus.append(replace(gpu, partitions=tuple(partitions)))
    return gpus


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _missing(plan: Plan, workloads: Sequence[Workload]) -> list[Violation]:
    """Shadows that were asked for and found no room."""
    wanted = {w.name for w in workloads if w.shadow.policy is not ShadowPolicy.NONE}
    return [
        Violation(p.id, "no other GPU has room for its shadow")
        for _, p in plan.partitions()
        if p.shadow is None and any(w.name in wanted for w in p.workloads)
    ]
