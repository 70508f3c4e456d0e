"""A shadow made active: the GPU it stands on, changed, and what is then expected of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TypeGuard

import numpy as np

from controlplane.domain.plan import Partition, PlannedGpu, Rule, Shadow
from controlplane.domain.workload import ShadowPolicy
from controlplane.latency.protocol import FloatArray, IntArray
from controlplane.planning.judge.evaluate import Evaluation, Pool, Terms, pool_waits
from controlplane.planning.judge.layout import Layout
from controlplane.planning.judge.turns import layout_curves, layout_times
from controlplane.planning.protocol import Device


def stands_by(shadow: Shadow | None) -> TypeGuard[Shadow]:
    """Whether there is a shadow that could be made active."""
    return shadow is not None and shadow.policy is not ShadowPolicy.NONE


def active_here(layout: Layout, rows: IntArray, partitions: IntArray, percents: FloatArray) -> Layout:
    """GPU `rows[n]` with its partition number `partitions[n]` at `percents[n]`, for each n."""
    changed = layout.take(rows)
    own = changed.mask & (changed.partition == partitions[:, None])
    np.copyto(changed.percent, np.minimum(percents, 100.0)[:, None], where=own)
    return changed


def active_guest(host: PlannedGpu, guest: Partition, percent: float, device: Device) -> Layout:
    """A GPU with another GPU's partition beside its own ones, as the last of them."""
    more = (*host.partitions, replace(guest, percent=min(percent, 100.0)))
    return Layout.of([replace(host, partitions=more)], device)


def pools_of(partition: Partition, row: int, layout: Layout, found: Evaluation) -> list[Pool | None]:
    """The pools of a partition's queues; None under half-SLO."""
    own = enumerate(layout.queues[row])
    return [found.pools.get((row, j)) for j, queue in own if queue.partition is partition]


def evaluate_changed(
    changed: Layout,
    rows: IntArray,
    base: Evaluation,
    device: Device,
    terms: Terms,
    guest: Sequence[Pool | None] = (),
) -> Evaluation:
    """What is expected where row n is row `rows[n]` of a plan, changed; `base` is the plan unchanged.

    The other servers of a pool stay as they are in the plan. `guest`: the pools of a row's last queues, where
    these stand there in place of a server elsewhere.
    """
    nothing = np.full(changed.rate.shape, np.nan)
    expected = layout_times(device.latency, changed, terms.rule, terms.quantile)
    found = Evaluation(expected, nothing, nothing.copy(), MappingProxyType({}))
    if terms.rule is not Rule.P99 or not rows.size:
        return found
    curves = layout_curves(device.latency, changed, terms.quantile)
    found.wait_for_turns(changed, curves, terms.queues)
    at, pools = [], []
    for own, ((n, j), queue) in zip(curves, changed.columns(), strict=True):
        if queue.partition.turns:
            continue
        at.append((n, j))
        first_guest = len(changed.queues[n]) - len(guest)
        before = guest[j - first_guest] if j >= first_guest else base.pools.get((int(rows[n]), j))
        if before is not None and before.servers > 1:
            pools.append(Pool(before.servers, np.maximum(own, before.curve)))
        else:
            pools.append(Pool(1, own))
    answer = pool_waits([(changed, here) for here in at], pools, terms.queues)
    for n, here in enumerate(at):
        found.mean_ms[here], found.p99_ms[here] = answer.mean_ms[n], answer.p99_ms[n]
    return found
