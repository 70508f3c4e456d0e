"""A shadow made active: the GPU it stands on, changed, as arrays and as a latency model sees it."""

from __future__ import annotations

from typing import TypeGuard

import numpy as np

from controlplane.domain.plan import Rule, Shadow
from controlplane.domain.workload import ShadowPolicy
from controlplane.latency.protocol import BoolArray, FloatArray, IntArray
from controlplane.planners.board import Board, Loads, Pool, Queues, pool_waits, service_curves, times
from controlplane.planners.protocol import Device

SLACK = 1e-6
"""Relative: sums of floats are no violations."""


def stands_by(shadow: Shadow | None) -> TypeGuard[Shadow]:
    """Whether there is a shadow that could be made active."""
    return shadow is not None and shadow.policy is not ShadowPolicy.NONE


def held(board: Board, found: Loads, rule: Rule) -> BoolArray:
    """Where a promise is kept: boolean (GPUs, slots), True in empty slots."""
    kept = board.rate <= found.times.capacity_rps * (1.0 + SLACK)
    if rule is Rule.P99:
        kept &= found.p99_ms <= board.slo_ms * (1.0 + SLACK)
    else:
        kept &= found.times.execution_ms <= board.slo_ms / 2.0 * (1.0 + SLACK)
    return np.asarray(kept | ~board.slots.mask, dtype=np.bool_)


def active_here(board: Board, rows: IntArray, columns: IntArray, percents: FloatArray) -> Board:
    """GPU `rows[n]` with the partition in `columns[n]` at `percents[n]`, for each n."""
    turned = board.take(rows)
    turned.slots.percent[np.arange(rows.size), columns] = np.minimum(percents, 100.0)
    return turned


def turned_loads(
    turned: Board, rows: IntArray, base: Loads, device: Device, rule: Rule, quantile: float | None,
    queues: Queues | None = None, guest: Pool | None = None,
) -> Loads:  # fmt: skip
    """What is expected where row n is row `rows[n]` of the plan, changed; `base` is the plan unchanged.

    The other servers of a pool stay as they are in the plan. `guest`: the pool of what stands in each row's
    last slot only now, in place of a server elsewhere.
    """
    nothing = np.full(turned.rate.shape, np.nan)
    found = Loads(times(device.latency, turned.slots, quantile), nothing, nothing.copy(), {})
    if rule is not Rule.P99 or not rows.size:
        return found
    at_rows, at_columns = np.nonzero(turned.slots.mask)
    curves = service_curves(device.latency, turned.slots, at_rows, at_columns, quantile, turned.client_batch)
    at = list(zip(at_rows.tolist(), at_columns.tolist(), strict=True))
    pools = []
    for (n, j), curve in zip(at, curves, strict=True):
        own = curve[: turned.requests(n, j)]
        last = guest is not None and j == len(turned.gpus[n].partitions) - 1
        before = guest if last else base.pools.get((int(rows[n]), j))
        pools.append(
            Pool(before.servers, np.maximum(own, before.curve))
            if before is not None and before.servers > 1
            else Pool(1, own)
        )
    answer = pool_waits([turned] * len(at), at, pools, queues)
    found.mean_ms[at_rows, at_columns] = answer.mean_ms
    found.p99_ms[at_rows, at_columns] = answer.p99_ms
    return found
