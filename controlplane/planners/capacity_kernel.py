"""The waiting table turned round, compiled by numba: from the wait that is allowed to the load it bears."""

from __future__ import annotations

import numpy as np
from numba import njit

from controlplane.latency.protocol import FloatArray


@njit(cache=True)
def _load(allowed: float, waits: FloatArray, loads: FloatArray) -> float:
    """The largest load at which a rising row of the table, in full batches' times, is at most `allowed`."""
    at = np.searchsorted(waits, allowed, side="right") - 1
    if at < 0:
        return 0.0
    if at == loads.size - 1:
        return 1.0
    # Between two entries the wait times what is idle is a straight line: so it is near saturation.
    idle = 1.0 - loads[at]
    slope = ((1.0 - loads[at + 1]) * waits[at + 1] - idle * waits[at]) / (loads[at + 1] - loads[at])
    load = (allowed - idle * waits[at] + loads[at] * slope) / (allowed + slope)
    return float(min(max(load, loads[at]), loads[at + 1]))


@njit(cache=True)
def most_carried(
    slo_ms: FloatArray, full_ms: FloatArray, thin: FloatArray, first_ms: FloatArray, table: FloatArray,
    batch: FloatArray, loads: FloatArray, shapes: FloatArray, error: float,
) -> FloatArray:  # fmt: skip
    """Requests per second by the best batch: (SLOs, servers, neighbours, shares).

    `full_ms` and `thin`, the shape of t(k): (neighbours, batches, shares); `first_ms`, t(1): (neighbours,
    shares); `table` (servers, batches, shapes, loads); waits count `error` times.
    """
    neighbours, batches, shares = full_ms.shape
    found = np.zeros((slo_ms.size, table.shape[0], neighbours, shares))
    waits = np.empty(loads.size)
    for k in range(neighbours):
        for b in range(batches):
            for s in range(shares):
                full = full_ms[k, b, s]
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
                        if slo_ms[d] < first_ms[k, s] * error or found[d, c, k, s] >= most:
                            continue
                        load = _load(slo_ms[d] / (full * error), waits, loads)
                        found[d, c, k, s] = max(found[d, c, k, s], most * load)
    return found
