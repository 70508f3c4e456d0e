"""Why a workload got this share and this batch: what the next smaller and larger ones would give."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from difflib import get_close_matches

import numpy as np

from controlplane.domain.errors import InputError
from controlplane.domain.plan import Infeasible, Partition, Plan, PlannedGpu, Rule
from controlplane.domain.units import spoken
from controlplane.domain.workload import Workload
from controlplane.planners.board import Board, loads
from controlplane.planners.client_batches import in_requests, largest_batch, refusal
from controlplane.planners.kinds import kinds_of
from controlplane.planners.menu import Alone
from controlplane.planners.protocol import Device
from controlplane.planners.standby import held

PLANNED = "as planned"
SMALLER_SHARE = "next smaller share"
LARGER_SHARE = "next larger share"
SMALLER_BATCH = "next smaller batch"
LARGER_BATCH = "next larger batch"


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
    """One partition of a workload: where it stands and what else it might have been.

    The first of `alternatives` is what was planned. `slo_ms` is what its queue is held to, `strictest` the
    workload with that SLO. `companions` share the queue; `together` is what they cost with it and `by_itself`
    what it would cost without them.
    """

    workload: str
    slo_ms: float
    partition: str
    gpu: str
    neighbours: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    companions: tuple[str, ...] = ()
    strictest: str = ""
    together: str = ""
    by_itself: str = ""

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why this share, why this batch and why this company, in a sentence each."""
        planned = self.alternatives[0]
        by_name = {a.what: a for a in self.alternatives}
        told = (self._share(planned, by_name.get(SMALLER_SHARE)), self._batch(planned, by_name))
        return (*told, self._queue()) if self.companions else told

    def _queue(self) -> str:
        held = "" if self.strictest == self.workload else f", held to the SLO of {self.strictest}"
        return (
            f"one queue with {', '.join(self.companions)}{held}: together {self.together}; by itself "
            f"{self.workload} would take {self.by_itself}"
        )

    def _share(self, planned: Alternative, smaller: Alternative | None) -> str:
        told = f"share {spoken(planned.percent)} %: "
        if smaller is None:
            return told + "there is no smaller one"
        if smaller.holds:
            return told + f"{spoken(smaller.percent)} % would hold too, but nobody needs the difference"
        return told + f"at {spoken(smaller.percent)} % {self._late(smaller)}"

    def _batch(self, planned: Alternative, by_name: Mapping[str, Alternative]) -> str:
        told = [
            f"with {a.batch} {self._late(a) if not a.holds else self._times(a)}"
            for a in (by_name.get(SMALLER_BATCH), by_name.get(LARGER_BATCH))
            if a is not None
        ]
        return f"batch {planned.batch} ({self._times(planned)}): " + ("; ".join(told) or "there is no other")

    def _late(self, a: Alternative) -> str:
        if self.partition not in a.breaks:
            return f"{', '.join(a.breaks)} would be late"
        if a.utilisation > 1.0:
            return f"more would arrive than it can serve (use {a.utilisation:.2f})"
        return f"it would be late ({self._times(a)})"

    def _times(self, a: Alternative) -> str:
        return f"execution {a.execution_ms:.1f} ms" if a.p99_ms is None else f"P99 {a.p99_ms:.1f} ms"


def explain(plan: Plan, workload: str, devices: Mapping[str, Device]) -> tuple[Explanation, ...] | Infeasible:
    """Every partition that serves a workload, or why none does.

    Raises InputError, with the nearest name, for a workload that is not in the plan.
    """
    for refused in plan.infeasible:
        if refused.workload == workload:
            return refused
    found = tuple(
        _one(plan, gpu, partition, workload, devices)
        for gpu, partition in plan.partitions()
        if any(w.name == workload for w in partition.workloads)
    )
    if not found:
        refuse_unknown(
            workload, {w.name for _, _, w in plan.placements()} | {i.workload for i in plan.infeasible}
        )
    return found


def refuse_unknown(workload: str, names: Set[str]) -> None:
    """Raises InputError, with the nearest name, for a workload that is none of `names`."""
    if workload not in names:
        near = get_close_matches(workload, sorted(names), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InputError(f"no workload is called {workload}{hint}", field="explain")


def _one(
    plan: Plan, gpu: PlannedGpu, partition: Partition, workload: str, devices: Mapping[str, Device]
) -> Explanation:
    device = devices[gpu.type]
    served = partition.models[0]
    percents = device.pool.device.grid.percents()
    step, largest = partition.workloads[0].client_batch, largest_batch(device, served.model)
    room = 100.0 - gpu.percent + partition.percent
    smaller = max((p for p in percents if p < partition.percent - 1e-9), default=None)
    larger = min((p for p in percents if p > partition.percent + 1e-9), default=None)
    asked: list[tuple[str, float, int]] = [(PLANNED, partition.percent, served.batch)]
    if smaller is not None:
        asked.append((SMALLER_SHARE, smaller, served.batch))
    if larger is not None and larger <= room + 1e-9:
        asked.append((LARGER_SHARE, larger, served.batch))
    if served.batch > step:
        asked.append((SMALLER_BATCH, partition.percent, served.batch - step))
    if served.batch + step <= largest:
        asked.append((LARGER_BATCH, partition.percent, served.batch + step))
    strictest = min(partition.workloads, key=lambda w: (w.slo_ms, w.name))
    servers = [(g, p) for g, p in plan.partitions() if any(w.name == workload for w in p.workloads)]
    companions = tuple(w.name for w in partition.workloads if w.name != workload)
    return Explanation(
        workload,
        strictest.slo_ms,
        partition.id,
        gpu.id,
        tuple(p.id for p in gpu.partitions if p.id != partition.id),
        tuple(_alternative(plan, gpu, partition, devices, *a) for a in asked),
        companions,
        strictest.name,
        _several([(g.type, p.percent) for g, p in servers]),
        _by_itself(plan, servers, workload, devices) if companions else "",
    )


def _several(servers: Sequence[tuple[str, float]]) -> str:
    told = Counter(f"{spoken(percent)} % of a {kind}" for kind, percent in servers)
    return " and ".join(what if count == 1 else f"{count} times {what}" for what, count in told.items())


def _by_itself(
    plan: Plan, servers: Sequence[tuple[PlannedGpu, Partition]], name: str, devices: Mapping[str, Device]
) -> str:
    """What a workload would take with a queue of its own, beside average neighbours."""
    parts = [w for _, p in servers for w in p.workloads if w.name == name]
    one, rate = parts[0], sum(w.rate_rps for w in parts)
    asked = Workload(
        name, one.model, one.slo_ms, rate, one.endpoint, one.arrivals, client_batch=one.client_batch
    )
    quantile = plan.quantile if plan.rule is Rule.P99 else None
    group, here = in_requests([asked], {n: d for n, d in devices.items() if refusal(asked, d) is None})
    alone = {n: Alone.of(d, quantile) for n, d in here.items()}
    kinds = kinds_of([group], here, alone, plan.rule, quantile)[0]
    if not kinds:
        return "more than any pool has"
    return f"about {kinds[0].takes}"


def _alternative(
    plan: Plan, gpu: PlannedGpu, partition: Partition, devices: Mapping[str, Device], what: str,
    percent: float, batch: int,
) -> Alternative:  # fmt: skip
    """Judge the plan with this one partition changed; the other servers of a pool take the same batch."""
    own = {w.name for w in partition.workloads}
    # Who shares the GPU may be served elsewhere too, and has its P99 from all its servers.
    here = {w.name for p in gpu.partitions for w in p.workloads}

    def changed(p: Partition) -> Partition:
        if own.isdisjoint(w.name for w in p.workloads):
            return p
        share = percent if p.id == partition.id else p.percent
        return replace(p, percent=share, models=(replace(p.models[0], batch=batch),))

    involved = [
        replace(g, partitions=tuple(changed(p) for p in g.partitions))
        for g in plan.gpus
        if any(w.name in here for p in g.partitions for w in p.workloads)
    ]
    quantile = plan.quantile if plan.rule is Rule.P99 else None
    boards = {
        name: Board.of([g for g in involved if g.type == name], devices[name])
        for name in dict.fromkeys(g.type for g in involved)
    }
    found = loads(boards, devices, plan.rule, quantile)
    breaks = tuple(
        board.gpus[i].partitions[j].id
        for name, board in boards.items()
        for i, j in np.argwhere(~held(board, found[name], plan.rule)).tolist()
        if board.gpus[i].id == gpu.id
        or not own.isdisjoint(w.name for w in board.gpus[i].partitions[j].workloads)
    )
    board, at = boards[gpu.type], found[gpu.type]
    i = next(n for n, g in enumerate(board.gpus) if g.id == gpu.id)
    j = next(n for n, p in enumerate(gpu.partitions) if p.id == partition.id)
    p99 = float(at.p99_ms[i, j])
    return Alternative(
        what,
        percent,
        batch,
        float(at.times.execution_ms[i, j]),
        p99 if math.isfinite(p99) else None,
        float(board.rate[i, j] / at.times.capacity_rps[i, j]),
        not breaks,
        breaks,
    )
