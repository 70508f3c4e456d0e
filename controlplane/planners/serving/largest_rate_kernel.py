"""The waiting-time table inverted, from the wait that is allowed to the load; compiled by numba."""

from __future__ import annotations

import numpy as np
from numba import njit

from controlplane.latency.protocol import FloatArray


@njit(cache=True)
def _largest_load(allowed: float, waits: FloatArray, loads: FloatArray) -> float:
    """The largest load at which a rising row of the table, in full batches' times, is at most `allowed`."""
    at = int(np.searchsorted(waits, allowed, side="right")) - 1
    if at == loads.size - 1:
        return 1.0
    if at <= 0:
        return float(loads[at + 1])
    # Where the row bends up, no wait lies below the lines through the entries on either side; where it bends
    # down, none below the line between these two.
    load = _along(allowed, waits, loads, at, at)
    beyond = _along(allowed, waits, loads, at - 1, at)
    if at + 2 < loads.size:
        beyond = min(beyond, _along(allowed, waits, loads, at + 1, at))
    return float(min(max(load, beyond), loads[at + 1]))


@njit(cache=True)
def _along(allowed: float, waits: FloatArray, loads: FloatArray, begin: int, at: int) -> float:
    """Where the line from entry `begin` to the next one reaches `allowed`; no less than entry `at`."""
    rise = waits[begin + 1] - waits[begin]
    if rise <= 0.0:
        return float(loads[at + 1])
    slope = (loads[begin + 1] - loads[begin]) / rise
    return float(max(loads[begin] + (allowed - waits[begin]) * slope, loads[at]))


@njit(cache=True)
def largest_rates(
    slo_ms: FloatArray,
    batch: FloatArray,
    full_ms: FloatArray,
    first_ms: FloatArray,
    table: FloatArray,
    loads: FloatArray,
    shapes: FloatArray,
    wait_factor: FloatArray,
    most_of_slo: float,
) -> FloatArray:
    """See `largest_rate.largest_rate`: (SLOs, pool sizes, cases, shares).

    `table` (pool sizes, batches, shapes, loads) is that of `waiting_times`, for these batches.
    """
    cases, batches, shares = full_ms.shape
    found = np.zeros((slo_ms.size, table.shape[0], cases, shares))
    waits = np.empty(loads.size)
    for k in range(cases):
        for b in range(batches):
            for s in range(shares):
                full = full_ms[k, b, s]
                if not np.isfinite(full):
                    continue
                thin = (first_ms[k, s] / full - 1.0 / batch[b]) / max(1.0 - 1.0 / batch[b], 0.5)
                thin = min(max(thin, 0.0), 1.0)
                cell = min(int(np.searchsorted(shapes, thin, side="right")) - 1, shapes.size - 2)
                part = (thin - shapes[cell]) / (shapes[cell + 1] - shapes[cell])
                most = 1000.0 * batch[b] / full
                for c in range(table.shape[0]):
                    # The least wait at this load or any higher: it must rise with the load.
                    least = np.inf
                    for u in range(loads.size - 1, -1, -1):
                        wait = (1.0 - part) * table[c, b, cell, u] + part * table[c, b, cell + 1, u]
                        least = min(least, wait)
                        waits[u] = least
                    for d in range(slo_ms.size):
                        slow = full > most_of_slo * slo_ms[d] and batch[b] > 1.0
                        late = slo_ms[d] < first_ms[k, s] * wait_factor[b, s]
                        if slow or late or found[d, c, k, s] >= most:
                            continue
                        load = _largest_load(slo_ms[d] / (full * wait_factor[b, s]), waits, loads)
                        found[d, c, k, s] = max(found[d, c, k, s], most * load)
    return found
