"""The tables of a plan and of `ctl show --explain`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from controlplane.domain import device
from controlplane.domain.plan import (
    Infeasible,
    Partition,
    Placement,
    Plan,
    PlannedGpu,
    Rule,
    ServedModel,
    Source,
    memory_used_mb,
)
from controlplane.domain.units import MILLIS_PER_SECOND, spoken
from controlplane.domain.workload import WITHIN_S, ShadowPolicy
from controlplane.report.tables.terminal import table_of
from controlplane.report.words import at_quantile, counted, names, number

if TYPE_CHECKING:
    from controlplane.planning.explain.explain import Explanation

_LOW_COVER = 1.1
"""Profiles err by more than a tenth: the line counts the shadows that cover less."""


def plan_table(plan: Plan) -> RenderableType:
    """Return every partition, the shared queues, the totals and the infeasible workloads.

    A partition's rate is the sum of its workloads' rates, its SLO the strictest one.
    """
    table = table_of(
        f"{_device(plan)}, partition, >share %, workload, model, >batch, >rate/s, >capacity/s, >use, "
        ">exec ms, >P99 ms, >SLO ms, shadow, >covers"
    )
    used = memory_used_mb(plan.gpus)
    for gpu in plan.gpus:
        known = gpu.memory_mb is not None and bool(used[gpu.id])
        memory = f", {sum(used[gpu.id].values()):.0f} of {gpu.memory_mb:.0f} MB" if known else ""
        label = f"{gpu.id} ({spoken(gpu.percent)} %{memory})"
        for partition in gpu.partitions:
            for model, placements in _queues(partition):
                table.add_row(label, *_cells(gpu, partition, model, placements))
                label = ""
    return Group(table, *_shared(plan), Text(), *_footer(plan))


def _device(plan: Plan) -> str:
    return device.noun(gpu.type for gpu in plan.gpus)


def _queues(partition: Partition) -> Iterator[tuple[ServedModel, list[Placement]]]:
    """Yield the partition's models with their workloads, which share the model's queue."""
    for model in partition.models:
        placements = [w for w in partition.workloads if w.model == model.model]
        if placements:
            yield model, placements


def _shared(plan: Plan) -> list[RenderableType]:
    """Return a table of the queues of several workloads; a pool's queue is listed once."""
    servers: dict[tuple[str, ...], list[str]] = {}
    queues: dict[tuple[str, ...], list[Placement]] = {}
    for _, partition in plan.partitions():
        for _, placements in _queues(partition):
            key = tuple(w.name for w in placements)
            servers.setdefault(key, []).append(partition.id)
            queues[key] = placements
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("shared queue", "workloads: SLO ms at rate/s"):
        table.add_column(name, overflow="fold", no_wrap=name == "shared queue")
    for key, placements in queues.items():
        if len(key) > 1:
            count = len(servers[key])
            listed = (f"{w.name}: {w.slo_ms:g} at {spoken(w.rate_rps * count)}" for w in placements)
            table.add_row(names(servers[key]), ", ".join(listed))
    return [Text(), table] if table.row_count else []


def _cells(
    gpu: PlannedGpu, partition: Partition, served: ServedModel, placements: Sequence[Placement]
) -> list[str]:
    predicted = placements[0].predicted
    standby = "–"
    if (shadow := partition.shadow) is not None:
        where = "" if shadow.gpu == gpu.id else f" on {shadow.gpu}"
        after = "" if shadow.redirect_s is None else f", {shadow.redirect_s:.1f} s"
        standby = f"{shadow.policy} {spoken(shadow.percent)} %{where}{after}"
    return [
        partition.id,
        spoken(partition.percent),
        names([w.name for w in placements]),
        served.model,
        str(served.batch),
        spoken(sum(w.rate_rps for w in placements)),
        number(predicted.capacity_rps, 0),
        number(predicted.utilisation, 2),
        number(predicted.execution_ms),
        number(predicted.p99_ms),
        f"{min(w.slo_ms for w in placements):g}",
        standby,
        number(None if shadow is None else shadow.covers, 2),
    ]


def _time(ms: float) -> str:
    return f"{ms:.1f} ms" if ms < MILLIS_PER_SECOND else f"{ms / MILLIS_PER_SECOND:.1f} s"


def _footer(plan: Plan) -> list[Text]:
    lines = []
    if plan.totals is not None:
        totals = plan.totals
        text = f"{plan.strategy}: {counted(totals.gpus, _device(plan))}"
        priced = any(g.price_per_hour > 0 for g in plan.gpus)
        if not priced and totals.lower_bound_gpus is not None:
            text += f" (lower bound {totals.lower_bound_gpus})"
        text += f", {spoken(totals.percent)} % of share"
        if priced:
            text += f", {totals.cost_per_hour:.2f} per hour"
            if totals.lower_bound_cost_per_hour is not None:
                text += f" (lower bound {totals.lower_bound_cost_per_hour:.2f})"
        if totals.planning_ms is not None:
            text += f", planned in {_time(totals.planning_ms)}"
            parts = ", ".join(f"{name} {_time(ms)}" for name, ms in totals.phases_ms.items())
            text += f" ({parts})" if parts else ""
        lines.append(Text(text))
    placed = [w for _, _, w in plan.placements()]
    queues = [placements for _, p in plan.partitions() for _, placements in _queues(p)]
    capacity = sum(placements[0].predicted.capacity_rps or 0.0 for placements in queues)
    lines.append(Text(f"{spoken(sum(w.rate_rps for w in placed))}/s planned for, capacity {capacity:.0f}/s"))
    rule = "P99 ≤ SLO" if plan.rule is Rule.P99 else "execution ≤ SLO/2"
    kept = "verified" if plan.verified else f"{len(plan.violations)} promises not kept"
    lines.append(Text(f"rule {plan.rule} ({rule}), latency model {plan.latency_model}: {kept}"))
    lines += [Text(f"  {v.subject}: {v.reason}", style="red") for v in plan.violations]
    if plan.quantile is not None and placed:
        lines.append(
            Text(f"exec and P99 predicted with execution times at their {at_quantile(plan.quantile)}")
        )
    lines += [Text(line) for line in (*_sources(plan), *_survived(plan), *_uncovered(plan), *_unknown(plan))]
    for i in plan.infeasible:
        nearest = []
        if i.nearest_slo_ms is not None:
            nearest.append(f"an SLO of {i.nearest_slo_ms:.1f} ms")
        if i.nearest_rate_rps is not None:
            nearest.append(f"a rate of {i.nearest_rate_rps:.0f}/s")
        fits = f"; {' or '.join(nearest)} would fit" if nearest else ""
        lines.append(Text(f"infeasible: {i.workload}: {i.reason}{fits}", style="red"))
    return lines


def _sources(plan: Plan) -> Iterator[str]:
    """Say how many execution times were measured, predicted and learned."""
    counts = Counter(
        placements[0].predicted.source for _, p in plan.partitions() for _, placements in _queues(p)
    )
    known = [f"{counts[source]} {source}" for source in Source if counts[source]]
    if known:
        yield f"execution times: {', '.join(known)}"


def _survived(plan: Plan) -> Iterator[str]:
    """Say which errors of a profile the shadows survive, and how many partitions the loss of their GPU."""
    covers = [p.shadow.covers for _, p in plan.partitions() if p.shadow and p.shadow.covers is not None]
    if covers:
        low = sum(factor < _LOW_COVER for factor in covers)
        more = None if plan.totals is None else plan.totals.gpus_for_demands
        if more is not None:
            cost = f"; what is demanded of shadows costs {counted(more, _device(plan))} more"
        else:
            cost = f" (`--set covers={_LOW_COVER:g}` demands it)" if low else ""
        yield (
            f"shadows survive errors of {min(covers):.2f} to {max(covers):.2f} times; "
            f"{low} of {len(covers)} below {_LOW_COVER:g}{cost}"
        )
    lost = [p.survives_gpu_loss for _, p in plan.partitions() if p.survives_gpu_loss is not None]
    if lost:
        yield f"partitions that survive the loss of their {_device(plan)}: {sum(lost)} of {len(lost)}"


def _uncovered(plan: Plan) -> Iterator[str]:
    """Warn about shadows that cure no slower server, and say the way out, if any."""
    standing = [(gpu.id, p.percent, p.shadow) for gpu, p in plan.partitions() if p.shadow is not None]
    standing = [one for one in standing if one[2].policy is not ShadowPolicy.NONE]
    bare = [one for one in standing if one[2].extra_percent <= 0 and (one[2].covers or 1.0) <= 1.0]
    if not bare:
        return
    ways = []
    whole = sum(percent >= 100.0 for _, percent, _ in bare)
    if whole:
        # A shadow on another GPU could not be larger either.
        more = "a higher --set quantile=" if plan.rule is Rule.P99 else "a shorter SLO in the spec"
        ways.append(f"{whole} for a partition with a whole {_device(plan)} ({more} plans headroom instead)")
    crowded = sum(percent < 100.0 and shadow.gpu == gpu for gpu, percent, shadow in bare)
    if crowded:
        way = "`shadow: {place: other-gpu}` in the spec looks for room on others, or takes one more"
        ways.append(f"{crowded} whose {_device(plan)} has none to give ({way})")
    warning = (
        f"shadows that add no share, so cover a death and not a slower server: {len(bare)} of {len(standing)}"
    )
    yield "; ".join((warning, *ways))


def _unknown(plan: Plan) -> Iterator[str]:
    """Say what is shared; warn about memory and loading times that nothing is known of."""
    limited = [p for gpu, p in plan.partitions() if gpu.memory_mb is not None]
    unknown = sum(p.memory_mb is None for p in limited)
    if unknown:
        yield (
            f"partitions whose memory is unknown and counts as none: {unknown} of {len(limited)} "
            "(write `memory_mb` in the spec, or `ctl profile` them)"
        )
    shared = [len(gpu.sharers) for gpu in plan.gpus if gpu.shared is not None]
    if shared:
        yield f"shared shadows: {len(shared)} for {sum(shared)} partitions; each cures one of them at a time"
    standing = [s for _, p in plan.partitions() if (s := p.shadow) and s.policy is not ShadowPolicy.NONE]
    if any(s.policy is ShadowPolicy.WARM for s in standing):
        times = [s.redirect_s for s in standing if s.redirect_s is not None]
        known = len(times) == len(standing)
        slowest = (
            f"up to {max(times):.1f} s" if known else "unknown (`ctl profile` measures how long models load)"
        )
        late = len(standing) - sum(s <= WITHIN_S for s in times)
        way = f"; {late} of {len(standing)} not within {WITHIN_S:g} s"
        way += f" (`shadow: {{within_s: {WITHIN_S:g}}}` demands it)"
        yield f"a redirect to a warm shadow waits for its models to load: {slowest}{way if late else ''}"


def explanation_table(found: tuple[Explanation, ...] | Infeasible) -> RenderableType:
    """Return the planned share and batch of each partition beside the alternatives, and the reasons."""
    if isinstance(found, Infeasible):
        return Text(f"\n{found.workload} is infeasible: {found.reason}")
    parts: list[RenderableType] = []
    for explanation in found:
        parts += [_explained(explanation), *(Text(f"  {reason}") for reason in explanation.reasons)]
    return Group(*parts)


def _explained(explanation: Explanation) -> Table:
    beside = f", beside {', '.join(explanation.neighbours)}" if explanation.neighbours else ", alone"
    table = table_of(", >share %, >batch, >exec ms, >P99 ms, >use, holds")
    table.title_justify = "left"
    table.title = (
        f"\n{explanation.workload} (held to {explanation.slo_ms:g} ms) in {explanation.partition} on "
        f"{explanation.gpu}{beside}"
    )
    for a in explanation.alternatives:
        holds = "yes" if a.holds else f"no: {', '.join(a.breaks)}"
        table.add_row(
            a.what,
            spoken(a.percent),
            str(a.batch),
            number(a.execution_ms),
            number(a.p99_ms),
            number(a.utilisation, 2),
            holds,
        )
    return table
