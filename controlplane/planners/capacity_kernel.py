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
    # Between two entries load times wait is a straight line, as in `waiting.largest_load`.
    rise = (loads[at + 1] * waits[at + 1] - loads[at] * waits[at]) / (loads[at + 1] - loads[at])
    if allowed <= rise:
        return float(loads[at + 1])
    load = loads[at] * (waits[at] - rise) / (allowed - rise)
    return float(min(max(load, loads[at]), loads[at + 1]))


@njit(cache=True)
def most_carried(
    slo_ms: FloatArray, full_ms: FloatArray, thin: FloatArray, first_ms: FloatArray, table: FloatArray,
    batch: FloatArray, loads: FloatArray, shapes: FloatArray, error: float,
) -> FloatArray:  # fmt: skip
    """Requests per second by the best batch: (SLOs, servers, neighbours, shares).

    `full_ms` and `thin`, the shape of t(k): (neighbours, batches, shares); `first_ms`, t(1): (neighbours,
    shares); `table` (servers, batches, shapes, loads); times count `error` times.
    """
    neighbours, batches, shares = full_ms.shape
    found = np.zeros((slo_ms.size, table.shape[0], neighbours, shares))
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
                for d in range(slo_ms.size):
                    if slo_ms[d] < first_ms[k, s] * error:
                        continue
                    allowed = slo_ms[d] / (full * error)
                    for c in range(table.shape[0]):
                        if found[d, c, k, s] >= most:
                            continue
                        load = _load(allowed, table[c, b, cell], loads) * (1.0 - part)
                        load += _load(allowed, table[c, b, cell + 1], loads) * part
                        found[d, c, k, s] = max(found[d, c, k, s], most * min(load / error, 1.0))
    return found
