"""The waiting table turned round, compiled by numba: from the wait that is allowed to the load it bears."""

from __future__ import annotations

import numpy as np
from numba import njit

from controlplane.latency.protocol import FloatArray


@njit(cache=True)
def _load(allowed: float, waits: FloatArray, loads: FloatArray) -> float:
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
    """Where the line from entry `begin` to the next one allows it; no less than entry `at`."""
    rise = waits[begin + 1] - waits[begin]
    if rise <= 0.0:
        return float(loads[at + 1])
    return float(
        max(loads[begin] + (allowed - waits[begin]) * (loads[begin + 1] - loads[begin]) / rise, loads[at])
    )


@njit(cache=True)
def most_carried(
    slo_ms: FloatArray, full_ms: FloatArray, thin: FloatArray, first_ms: FloatArray, table: FloatArray,
    batch: FloatArray, loads: FloatArray, shapes: FloatArray, counted: FloatArray,
) -> FloatArray:  # fmt: skip
    """Requests per second by the best batch: (SLOs, servers, neighbours, shares).

    `full_ms` and `thin`, the shape of t(k): (neighbours, batches, shares); `first_ms`, t(1): (neighbours,
    shares); `table` (servers, batches, shapes, loads); waits count `counted` (batches, shares) times.
    """
    neighbours, batches, shares = full_ms.shape
    found = np.zeros((slo_ms.size, table.shape[0], neighbours, shares))
    waits = np.empty(loads.size)
    for k in range(neighbours):
        for b in range(batches):
            for s in range(shares):
                full, wait_counted = full_ms[k, b, s], counted[b, s]
                if not np.isfinite(full):
                    continue
                cell = 0
                for q in range(1, shapes.size - 1):
                    if thin[k, b, s] >= shapes[q]:
                        cell = q
                part = (thin[k, b, s] - shapes[cell]) / (shapes[cell + 1] - shapes[cell])
                most = 1000.0 * batch[b] / full
                for c in range(table.shape[0]):
                    # The least wait at this load or any higher: it must rise with the load.
                    least = np.inf
                    for u in range(loads.size - 1, -1, -1):
                        wait = (1.0 - part) * table[c, b, cell, u] + part * table[c, b, cell + 1, u]
                        least = min(least, wait)
                        waits[u] = least
                    for d in range(slo_ms.size):
                        if slo_ms[d] < first_ms[k, s] * wait_counted or found[d, c, k, s] >= most:
                            continue
                        load = _load(slo_ms[d] / (full * wait_counted), waits, loads)
                        found[d, c, k, s] = max(found[d, c, k, s], most * load)
    return found
