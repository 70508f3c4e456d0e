"""The only judge of a plan.

Every strategy asks it before it returns, `ctl apply` before it touches anything. It reads a plan as a file
would hold it and takes nothing from the strategy that made it. What cannot be known (memory that was not
measured) is not judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from controlplane.domain.plan import Plan, Rule, Violation
from controlplane.domain.workload import Workload
from controlplane.latency.protocol import BoolArray, IntArray
from controlplane.planning.judge.evaluate import (
    SLACK,
    Evaluation,
    Pool,
    Terms,
    evaluate,
    kept,
    layouts_of,
)
from controlplane.planning.judge.failover import (
    active_guest,
    active_here,
    evaluate_changed,
    pools_of,
    stands_by,
)
from controlplane.planning.judge.layout import Layout
from controlplane.planning.judge.queues import Queues
from controlplane.planning.judge.structure import evaluable, specified, structure
from controlplane.planning.protocol import Device


def verify(
    plan: Plan,
    devices: Mapping[str, Device],
    workloads: Sequence[Workload] | None = None,
    queues: Queues | None = None,
) -> tuple[Violation, ...]:
    """What the plan promises and does not keep, by its own rule and quantile; empty for a good plan.

    `devices` maps each GPU type to the latency model and profiles it is judged by. With `workloads`, those
    asked for: each must be there in full or be called infeasible. `queues`: those solved already.
    """
    found = list(structure(plan, devices))
    if workloads is not None:
        found.extend(specified(plan, workloads))
    if evaluable(plan, devices):
        found.extend(_promises(plan, devices, Terms.of(plan, queues)))
    return tuple(dict.fromkeys(found))


def _promises(plan: Plan, devices: Mapping[str, Device], terms: Terms) -> Iterator[Violation]:
    layouts = layouts_of(plan.gpus, devices)
    found = evaluate(layouts, devices, terms)
    for name, layout in layouts.items():
        yield from _broken(layout, found[name], kept(layout, found[name], terms.rule), terms.rule)
    for name, layout in layouts.items():
        yield from _shadows_here(layout, found[name], devices[name], terms)
    yield from _shadows_elsewhere(plan, layouts, found, devices, terms)


def _broken(
    layout: Layout, found: Evaluation, held: BoolArray, rule: Rule, shadowed: str | None = None
) -> Iterator[Violation]:
    """A violation for each promise that is not `held`; `shadowed` is the partition whose shadow is active."""
    for i, j in np.argwhere(~held).tolist():
        names = "+".join(w.name for w in layout.queues[i][j].workloads)
        reason = _reason(layout, found, rule, i, j)
        if shadowed is None:
            yield Violation(names, reason)
        else:
            yield Violation(shadowed, f"{reason} ({names} beside the active shadow)")


def _reason(layout: Layout, found: Evaluation, rule: Rule, i: int, j: int) -> str:
    rate, capacity, slo = layout.rate[i, j], found.times.capacity_rps[i, j], layout.slo_ms[i, j]
    round_ms, p99 = found.times.round_ms[i, j], found.p99_ms[i, j]
    several = layout.queues[i][j].partition.turns
    if rate > capacity * (1.0 + SLACK):
        return f"{rate:.5g}/s arrive and {capacity:.5g}/s can be served"
    if rule is not Rule.P99:
        what = "a batch of each model" if several else "a batch"
        return f"{what} takes {round_ms:.4g} ms and half its SLO is {slo / 2:g} ms"
    if not np.isfinite(p99):
        return f"its queue {'may not' if several else 'does not'} settle at {rate:.5g}/s"
    return f"its P99 is {p99:.4g} ms and its SLO {slo:g} ms"


def _shadows_here(layout: Layout, base: Evaluation, device: Device, terms: Terms) -> Iterator[Violation]:
    """Each shadow on its own GPU made active in turn: the partition has the shadow's share then."""
    active = [
        (i, j, p.shadow.percent)
        for i, gpu in enumerate(layout.gpus)
        for j, p in enumerate(gpu.partitions)
        if stands_by(p.shadow) and p.shadow.gpu == gpu.id and p.shadow.percent > p.percent
    ]
    if not active:
        return
    rows, partitions = np.array([i for i, _, _ in active]), np.array([j for _, j, _ in active])
    changed = active_here(layout, rows, partitions, np.array([p for _, _, p in active]))
    ids = [layout.gpus[i].partitions[j].id for i, j, _ in active]
    before = kept(layout, base, terms.rule)
    yield from _changed(changed, rows, ids, base, before, device, terms)


def _changed(
    changed: Layout,
    rows: IntArray,
    shadowed: Sequence[str],
    base: Evaluation,
    before: BoolArray,
    device: Device,
    terms: Terms,
    guest: Sequence[Pool | None] = (),
) -> Iterator[Violation]:
    """Judge GPUs with a shadow active: row n is row `rows[n]` of the plan, with that of `shadowed[n]`.

    `before`: which promises of the plan's rows are kept without. `guest`: see `evaluate_changed`.
    """
    found = evaluate_changed(changed, rows, base, device, terms, guest)
    held = kept(changed, found, terms.rule)
    # What is broken without the shadow has been reported.
    width = min(before.shape[1], held.shape[1])
    held[:, :width] |= ~before[rows][:, :width]
    for n in np.flatnonzero(~held.all(axis=1)).tolist():
        only = np.zeros_like(held)
        only[n] = ~held[n]
        yield from _broken(changed, found, ~only, terms.rule, shadowed[n])


def _shadows_elsewhere(
    plan: Plan,
    layouts: Mapping[str, Layout],
    found: Mapping[str, Evaluation],
    devices: Mapping[str, Device],
    terms: Terms,
) -> Iterator[Violation]:
    """Each shadow on another GPU made active in turn: that GPU has one partition more then."""
    place = {g.id: (name, i) for name, own in layouts.items() for i, g in enumerate(own.gpus)}
    for gpu, partition in plan.partitions():
        shadow = partition.shadow
        if not stands_by(shadow) or shadow.gpu == gpu.id or shadow.gpu not in place:
            continue
        kind, row = place[shadow.gpu]
        layout, device = layouts[kind], devices[kind]
        unknown = [m.model for m in partition.models if m.model not in device.profiles]
        if unknown:
            yield Violation(partition.id, f"its shadow's device type has no profile of {unknown[0]}")
            continue
        changed = active_guest(layout.gpus[row], partition, shadow.percent, device)
        own_type, own_row = place[gpu.id]
        guest = pools_of(partition, own_row, layouts[own_type], found[own_type])
        before = kept(layout, found[kind], terms.rule)
        rows, ids = np.array([row]), [partition.id]
        yield from _changed(changed, rows, ids, found[kind], before, device, terms, guest)
