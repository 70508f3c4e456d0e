"""Why a workload got its share and batch: what the next smaller and larger ones would give."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from difflib import get_close_matches

from controlplane.domain.errors import InputError
from controlplane.domain.plan import Infeasible, Partition, Plan, PlannedGpu
from controlplane.domain.units import spoken
from controlplane.domain.workload import Workload
from controlplane.planners.evaluation.evaluate import Terms, evaluate, kept, layouts_of
from controlplane.planners.protocol import Device
from controlplane.planners.serving.client_batches import in_requests, largest_batch, refusal
from controlplane.planners.serving.gpu_types import gpu_types
from controlplane.planners.serving.options import serving_options

PLANNED = "as planned"
SMALLER_SHARE = "next smaller share"
LARGER_SHARE = "next larger share"
SMALLER_BATCH = "next smaller batch"
LARGER_BATCH = "next larger batch"


@dataclass(frozen=True, slots=True)
class Alternative:
    """One share and batch in the workload's place; `holds`: it and all neighbours keep their promises.

    `p99_ms` is None under half-SLO and where the queue does not settle; `breaks` are the partitions that
    would not keep theirs.
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
        """Why this share, this batch and this shared queue, in a sentence each."""
        planned = self.alternatives[0]
        by_name = {a.what: a for a in self.alternatives}
        reasons = self._share(planned, by_name.get(SMALLER_SHARE)), self._batch(planned, by_name)
        return (*reasons, self._queue()) if self.companions else reasons

    def _queue(self) -> str:
        held = "" if self.strictest == self.workload else f", held to the SLO of {self.strictest}"
        return (
            f"one queue with {', '.join(self.companions)}{held}: together {self.together}; by itself "
            f"{self.workload} would take {self.by_itself}"
        )

    def _share(self, planned: Alternative, smaller: Alternative | None) -> str:
        share = f"share {spoken(planned.percent)} %: "
        if smaller is None:
            return share + "there is no smaller one"
        if smaller.holds:
            return share + f"{spoken(smaller.percent)} % would hold too, but nothing needs the difference"
        return share + f"at {spoken(smaller.percent)} % {self._late(smaller)}"

    def _batch(self, planned: Alternative, by_name: Mapping[str, Alternative]) -> str:
        others = [
            f"with {a.batch} {self._late(a) if not a.holds else self._times(a)}"
            for a in (by_name.get(SMALLER_BATCH), by_name.get(LARGER_BATCH))
            if a is not None
        ]
        batch = f"batch {planned.batch} ({self._times(planned)}): "
        return batch + ("; ".join(others) or "there is no other")

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
    own = next(w for w in partition.workloads if w.name == workload)
    queue = partition.queues()[own.model]
    served = next(m for m in partition.models if m.model == own.model)
    asked = [(PLANNED, partition.percent, served.batch)]
    asked += _shares_nearby(gpu, partition, served.batch, devices[gpu.type])
    largest, step = largest_batch(devices[gpu.type], served.model), own.client_batch
    if served.batch > step:
        asked.append((SMALLER_BATCH, partition.percent, served.batch - step))
    if served.batch + step <= largest:
        asked.append((LARGER_BATCH, partition.percent, served.batch + step))
    strictest = min(queue, key=lambda w: (w.slo_ms, w.name))
    servers = [(g, p) for g, p in plan.partitions() if any(w.name == workload for w in p.workloads)]
    companions = tuple(w.name for w in partition.workloads if w.model == own.model and w.name != workload)
    return Explanation(
        workload,
        strictest.slo_ms,
        partition.id,
        gpu.id,
        tuple(p.id for p in gpu.partitions if p.id != partition.id),
        tuple(_alternative(plan, gpu, partition, served.model, devices, *a) for a in asked),
        companions,
        strictest.name,
        _several([(g.type, p.percent) for g, p in servers]),
        _by_itself(plan, servers, workload, devices) if companions else "",
    )


def _shares_nearby(
    gpu: PlannedGpu, partition: Partition, batch: int, device: Device
) -> list[tuple[str, float, int]]:
    """The next smaller share, and the next larger one where the GPU has room for it."""
    percents = device.pool.device.grid.percents()
    room = 100.0 - gpu.percent + partition.percent
    smaller = [p for p in percents if p < partition.percent - 1e-9]
    larger = [p for p in percents if partition.percent + 1e-9 < p <= room + 1e-9]
    found = [(SMALLER_SHARE, max(smaller), batch)] if smaller else []
    return found + ([(LARGER_SHARE, min(larger), batch)] if larger else [])


def _several(servers: Sequence[tuple[str, float]]) -> str:
    counts = Counter(f"{spoken(percent)} % of a {kind}" for kind, percent in servers)
    return " and ".join(what if count == 1 else f"{count} times {what}" for what, count in counts.items())


def _by_itself(
    plan: Plan, servers: Sequence[tuple[PlannedGpu, Partition]], name: str, devices: Mapping[str, Device]
) -> str:
    """What a workload would take with a queue of its own, beside average neighbours."""
    parts = [w for _, p in servers for w in p.workloads if w.name == name]
    own, rate, k = parts[0], sum(w.rate_rps for w in parts), parts[0].client_batch
    alone = Workload(name, own.model, own.slo_ms, rate, own.endpoint, own.arrivals, client_batch=k)
    group, able = in_requests([alone], {n: d for n, d in devices.items() if refusal(alone, d) is None})
    options = serving_options([group], gpu_types(able, plan.rule, Terms.of(plan).quantile or 0.5))[0]
    return f"about {options[0].takes}" if options else "more than any pool has"


def _alternative(
    plan: Plan,
    gpu: PlannedGpu,
    partition: Partition,
    model: str,
    devices: Mapping[str, Device],
    what: str,
    percent: float,
    batch: int,
) -> Alternative:
    """Judge the plan with this one partition changed; the other servers of a pool take the same batch."""
    own = {w.name for w in partition.workloads}
    # What shares the GPU may be served elsewhere too, and has its P99 from all its servers.
    here = {w.name for p in gpu.partitions for w in p.workloads}

    def changed(p: Partition) -> Partition:
        if own.isdisjoint(w.name for w in p.workloads):
            return p
        share = percent if p.id == partition.id else p.percent
        models = tuple(replace(m, batch=batch) if m.model == model else m for m in p.models)
        return replace(p, percent=share, models=models)

    involved = [
        replace(g, partitions=tuple(changed(p) for p in g.partitions))
        for g in plan.gpus
        if any(w.name in here for p in g.partitions for w in p.workloads)
    ]
    layouts = layouts_of(involved, devices)
    found = evaluate(layouts, devices, Terms.of(plan))
    breaks = tuple(
        queue.partition.id
        for name, layout in layouts.items()
        for (i, j), queue in layout.columns()
        if not kept(layout, found[name], plan.rule)[i, j]
        if layout.gpus[i].id == gpu.id or not own.isdisjoint(w.name for w in queue.workloads)
    )
    layout, at = layouts[gpu.type], found[gpu.type]
    place = next(
        place
        for place, queue in layout.columns()
        if queue.partition.id == partition.id and queue.served.model == model
    )
    p99 = float(at.p99_ms[place])
    return Alternative(
        what,
        percent,
        batch,
        float(at.times.execution_ms[place]),
        p99 if math.isfinite(p99) else None,
        float(layout.rate[place] / at.times.capacity_rps[place]),
        not breaks,
        breaks,
    )
