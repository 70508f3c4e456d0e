"""Why a workload got this share and this batch: what the next smaller and larger ones would give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches

from controlplane.domain.errors import InputError
from controlplane.domain.plan import Infeasible, Partition, Plan, PlannedGpu, Rule
from controlplane.planners.board import Board, loads
from controlplane.planners.protocol import Device
from controlplane.planners.standby import held


@dataclass(frozen=True, slots=True)
class Alternative:
    """One share and batch in the workload's place; `holds` says whether it and all neighbours hold.

    `p99_ms` is None under half-SLO and where the queue does not settle; `breaks` names who breaks.
    """

    what: str
    percent: float
    batch: int
    execution_ms: float
    p99_ms: float | None
    utilisation: float
    holds: bool
    breaks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """One partition of a workload: where it stands and what else it might have been."""

    workload: str
    partition: str
    gpu: str
    neighbours: tuple[str, ...]
    alternatives: tuple[Alternative, ...]


def explain(plan: Plan, workload: str, devices: Mapping[str, Device]) -> tuple[Explanation, ...] | Infeasible:
    """Every partition that serves a workload, or why none does.

    Raises InputError, with the nearest name, for a workload that is not in the plan.
    """
    for refused in plan.infeasible:
        if refused.workload == workload:
            return refused
    found = tuple(
        _one(plan, gpu, partition, workload, devices[gpu.type])
        for gpu, partition in plan.partitions()
        if any(w.name == workload for w in partition.workloads)
    )
    if not found:
        names = {w.name for _, _, w in plan.placements()} | {i.workload for i in plan.infeasible}
        near = get_close_matches(workload, sorted(names), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InputError(f"no workload is called {workload}{hint}", field="explain")
    return found


def _one(plan: Plan, gpu: PlannedGpu, partition: Partition, workload: str, device: Device) -> Explanation:
    served = partition.models[0]
    percents = device.pool.device.grid.percents()
    largest = device.profiles[served.model].largest_batch
    room = 100.0 - gpu.percent + partition.percent
    smaller = max((p for p in percents if p < partition.percent - 1e-9), default=None)
    larger = min((p for p in percents if p > partition.percent + 1e-9), default=None)
    asked: list[tuple[str, float, int]] = [("as planned", partition.percent, served.batch)]
    if smaller is not None:
        asked.append(("next smaller share", smaller, served.batch))
    if larger is not None and larger <= room + 1e-9:
        asked.append(("next larger share", larger, served.batch))
    if served.batch > 1:
        asked.append(("next smaller batch", partition.percent, served.batch - 1))
    if served.batch < min(32, largest):
        asked.append(("next larger batch", partition.percent, served.batch + 1))
    return Explanation(
        workload,
        partition.id,
        gpu.id,
        tuple(p.id for p in gpu.partitions if p.id != partition.id),
        tuple(_alternative(plan, gpu, partition, device, *a) for a in asked),
    )


def _alternative(
    plan: Plan, gpu: PlannedGpu, partition: Partition, device: Device, what: str, percent: float, batch: int
) -> Alternative:
    """Judge the plan with this one partition changed; the other servers of a pool take the same batch."""
    names = {w.name for w in partition.workloads}

    def changed(p: Partition) -> Partition:
        if names.isdisjoint(w.name for w in p.workloads):
            return p
        return replace(
            p,
            percent=percent if p.id == partition.id else p.percent,
            models=(replace(p.models[0], batch=batch),),
        )

    involved = [
        replace(g, partitions=tuple(changed(p) for p in g.partitions))
        for g in plan.gpus
        if g.type == gpu.type
        and (g.id == gpu.id or any(not names.isdisjoint(w.name for w in p.workloads) for p in g.partitions))
    ]
    quantile = plan.quantile if plan.rule is Rule.P99 else None
    board = Board.of(involved, device)
    found = loads({gpu.type: board}, {gpu.type: device}, plan.rule, quantile)[gpu.type]
    kept = held(board, found, plan.rule)
    i = next(n for n, g in enumerate(involved) if g.id == gpu.id)
    j = next(n for n, p in enumerate(involved[i].partitions) if p.id == partition.id)
    p99 = float(found.p99_ms[i, j])
    breaks = tuple(p.id for n, p in enumerate(involved[i].partitions) if not kept[i, n])
    return Alternative(
        what,
        percent,
        batch,
        float(found.times.execution_ms[i, j]),
        p99 if p99 < float("inf") else None,
        float(board.rate[i, j] / found.times.capacity_rps[i, j]),
        not breaks,
        breaks,
    )
