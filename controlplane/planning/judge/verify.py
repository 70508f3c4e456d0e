"""The only judge of a plan.

Every strategy asks it before it returns, `ctl apply` before it touches anything. It reads a plan as a file
would hold it and takes nothing from the strategy that made it. What cannot be known (memory that was not
measured) is not judged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from controlplane.domain.plan import Plan, Rule, Violation
from controlplane.domain.workload import Workload
from controlplane.latency.protocol import BoolArray, IntArray
from controlplane.planning.judge.evaluate import (
    SLACK,
    Evaluation,
    Pool,
    QueueVerdict,
    Terms,
    evaluate,
    evaluate_changed,
    with_guest,
)
from controlplane.planning.judge.layout import Layout
from controlplane.planning.judge.queues import QueueCache
from controlplane.planning.judge.structure import evaluable, has_standby, specified, structure
from controlplane.planning.protocol import Device


def verify(
    plan: Plan,
    devices: Mapping[str, Device],
    workloads: Sequence[Workload] | None = None,
    queues: QueueCache | None = None,
) -> tuple[Violation, ...]:
    """What the plan promises and does not keep, by its own rule and quantile; empty for a good plan.

    `devices` maps each GPU type to the latency model and profiles it is judged by. With `workloads`, those
    asked for: each must be there in full or be called infeasible. `queues`: those solved already.
    """
    found = list(structure(plan, devices))
    if workloads is not None:
        found.extend(specified(plan, workloads))
    if evaluable(plan, devices):
        terms = Terms.of(plan, queues)
        expected = evaluate(plan.gpus, devices, terms)
        for own in expected.values():
            found.extend(_broken(own, own.meets_slo))
        for name, own in expected.items():
            found.extend(_shadows_here(own, devices[name], terms))
        found.extend(_shadows_elsewhere(plan, expected, devices, terms))
    return tuple(dict.fromkeys(found))


def _broken(found: Evaluation, met: BoolArray, shadowed: str | None = None) -> Iterator[Violation]:
    """A violation for each queue that is not `met`; `shadowed` is the partition whose shadow is active."""
    for one in found.verdicts(~met):
        names = "+".join(w.name for w in one.workloads)
        reason = _reason(one, found.rule)
        if shadowed is None:
            yield Violation(names, reason)
        else:
            yield Violation(shadowed, f"{reason} ({names} beside the active shadow)")


def _reason(one: QueueVerdict, rule: Rule) -> str:
    several = one.partition.turns
    if one.rate_rps > one.capacity_rps * (1.0 + SLACK):
        return f"{one.rate_rps:.5g}/s arrive and {one.capacity_rps:.5g}/s can be served"
    if rule is not Rule.P99:
        what = "a batch of each model" if several else "a batch"
        return f"{what} takes {one.round_ms:.4g} ms and half its SLO is {one.slo_ms / 2:g} ms"
    if not math.isfinite(one.p99_ms):
        return f"its queue {'may not' if several else 'does not'} settle at {one.rate_rps:.5g}/s"
    return f"its P99 is {one.p99_ms:.4g} ms and its SLO {one.slo_ms:g} ms"


def _shadows_here(base: Evaluation, device: Device, terms: Terms) -> Iterator[Violation]:
    """Each shadow on its own GPU made active in turn: the partition has the shadow's share then."""
    layout = base.layout
    active = [
        (i, j, p.shadow.percent)
        for i, gpu in enumerate(layout.gpus)
        for j, p in enumerate(gpu.partitions)
        if has_standby(p.shadow) and p.shadow.gpu == gpu.id and p.shadow.percent > p.percent
    ]
    if not active:
        return
    rows, partitions = np.array([i for i, _, _ in active]), np.array([j for _, j, _ in active])
    changed = layout.resized(rows, partitions, np.array([p for _, _, p in active]))
    ids = [layout.gpus[i].partitions[j].id for i, j, _ in active]
    yield from _changed(changed, rows, ids, base, device, terms)


def _changed(
    changed: Layout,
    rows: IntArray,
    shadowed: Sequence[str],
    base: Evaluation,
    device: Device,
    terms: Terms,
    guest: Sequence[Pool | None] = (),
) -> Iterator[Violation]:
    """Judge GPUs with a shadow active: row n is row `rows[n]` of the plan, with that of `shadowed[n]`.

    `guest`: see `evaluate_changed`.
    """
    found = evaluate_changed(changed, rows, base, device, terms, guest)
    before, met = base.meets_slo, found.meets_slo
    # What is broken without the shadow has been reported.
    width = min(before.shape[1], met.shape[1])
    met[:, :width] |= ~before[rows][:, :width]
    for n in np.flatnonzero(~met.all(axis=1)).tolist():
        others = np.arange(len(met))[:, None] != n
        yield from _broken(found, met | others, shadowed[n])


def _shadows_elsewhere(
    plan: Plan, found: Mapping[str, Evaluation], devices: Mapping[str, Device], terms: Terms
) -> Iterator[Violation]:
    """Each shadow on another GPU made active in turn: that GPU has one partition more then."""
    place = {g.id: (name, i) for name, own in found.items() for i, g in enumerate(own.layout.gpus)}
    for gpu, partition in plan.partitions():
        shadow = partition.shadow
        if not has_standby(shadow) or shadow.gpu == gpu.id or shadow.gpu not in place:
            continue
        kind, row = place[shadow.gpu]
        base, device = found[kind], devices[kind]
        unknown = [m.model for m in partition.models if m.model not in device.profiles]
        if unknown:
            yield Violation(partition.id, f"its shadow's device type has no profile of {unknown[0]}")
            continue
        changed = with_guest(base.layout.gpus[row], partition, shadow.percent, device)
        own_type, own_row = place[gpu.id]
        guest = found[own_type].pools_of(own_row, partition)
        yield from _changed(changed, np.array([row]), [partition.id], base, device, terms, guest)
