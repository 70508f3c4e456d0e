"""The inverse of the waiting-time table, compiled by numba."""

from __future__ import annotations

import numpy as np
from numba import njit

from controlplane.latency.protocol import FloatArray, IntArray


@njit(cache=True)
def largest_load(limit: float, waits: FloatArray, loads: FloatArray, jitter: float) -> float:
    """The largest u with u Y(u) <= limit, where `waits` is Y at `loads` and `jitter` is added to it."""
    low, low_load = 0.0, 0.0
    high, high_load = loads[0] * (waits[0] + jitter), loads[0]
    # Below the first entry nothing waits and u Y is a straight line through 0.
    for at in range(1, loads.size):
        if high > limit:
            break
        low, low_load = high, high_load
        high, high_load = loads[at] * (waits[at] + jitter), loads[at]
    part = min(max((limit - low) / (high - low), 0.0), 1.0)
    return float(low_load * (1.0 - part) + high_load * part)


@njit(cache=True)
def tolerated(
    rate: FloatArray,
    slo_ms: FloatArray,
    full_ms: FloatArray,
    first_ms: FloatArray,
    servers: IntArray,
    batch_index: IntArray,
    jitter: FloatArray,
    table: FloatArray,
    batches: FloatArray,
    loads: FloatArray,
    shapes: FloatArray,
) -> FloatArray:
    """See `waiting_times.tolerated_slowdown`; `table` is `waiting_times.all_pool_sizes`."""
    found = np.empty(full_ms.shape)
    load = np.empty(shapes.size)
    for n in range(rate.size):
        batch, per_ms = batches[batch_index[n]], rate[n] / 1000.0
        rows = table[min(servers[n], table.shape[0]) - 1, batch_index[n]]
        for s in range(shapes.size):
            load[s] = largest_load(slo_ms[n] * per_ms / batch, rows[s], loads, jitter[n])
        for j in range(full_ms.shape[1]):
            full, first = full_ms[n, j], first_ms[n, j]
            # A batch of one has rows for all shapes, and they are equal.
            shape = (first / full - 1.0 / batch) / max(1.0 - 1.0 / batch, 0.5)
            shape = min(max(shape, 0.0), 1.0)
            cell = min(np.searchsorted(shapes, shape, side="right") - 1, shapes.size - 2)
            part = (shape - shapes[cell]) / (shapes[cell + 1] - shapes[cell])
            allowed = load[cell] * (1.0 - part) + load[cell + 1] * part
            # Never faster than a single request.
            found[n, j] = min(allowed * batch / (per_ms * full), slo_ms[n] / first)
    return found
