"""How slow a partition may become before its P99 is lost: `latency.queueing`, tabulated for search.

In units of a full batch's time t(b), the P99 of a request depends on four numbers: batch, servers,
utilisation u and shape s, where t(1) / t(b) = 1/b + s (1 - 1/b). Let Y be that P99. Slowed by f it has

    f t(b) Y(b, c, s, f u0) <= SLO  with u0 = rate t(b) / b,  hence  u Y(u) <= SLO rate / b,  u = f u0.

The right side knows nothing of the share, so one inversion of the table answers for all shares at once. The
table is a guide, within some per cent; strategies correct it by the exact queue before they trust it.
"""

from __future__ import annotations

import functools

import numpy as np

from controlplane.latency.protocol import FloatArray, IntArray
from controlplane.planners.waiting_table import TABLE

BATCHES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)
SHAPES = (0.0, 0.03, 0.08, 0.2, 0.5, 1.0)
SERVERS = (1, 2, 3, 4, 8)
"""Of pools in the table."""
LOADS = (
    0.002, 0.01, 0.03, 0.08, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.72, 0.78, 0.83, 0.87, 0.9, 0.925, 0.945,
    0.96, 0.972, 0.982, 0.99, 0.995,
)  # fmt: skip


def computed(servers: int, batch: int, shape: float) -> FloatArray:
    """A row of the table from the queue itself: Y at each of `LOADS`."""
    from controlplane.latency import queueing

    loads = np.array(LOADS)
    first = 1.0 / batch + shape * (1.0 - 1.0 / batch)
    curve = np.linspace(first, 1.0, batch) if batch > 1 else np.ones(1)
    p99 = queueing.solve(loads * 1000.0 * batch * servers, curve, batch, servers).p99_ms
    row: FloatArray = np.maximum.accumulate(loads * p99) / loads
    return row


@functools.cache
def table() -> FloatArray:
    """Y of shape (servers, batches, shapes, loads)."""
    rows = np.array(TABLE.split(), dtype=np.float64).reshape(len(SERVERS), -1, len(LOADS)) / 1000.0
    # A batch of one has one row: its shape means nothing.
    found = np.concatenate([np.repeat(rows[:, :1], len(SHAPES), axis=1), rows[:, 1:]], axis=1)
    answer: FloatArray = found.reshape(len(SERVERS), len(BATCHES), len(SHAPES), len(LOADS))
    return answer


@functools.cache
def pools() -> FloatArray:
    """The table for every number of servers; between two that it has, along 1 / servers."""
    known, rows = np.array(SERVERS), table()
    found = []
    for servers in range(1, SERVERS[-1] + 1):
        high = int(np.searchsorted(known, servers))
        low = high if known[high] == servers else high - 1
        part = 0.0 if low == high else (1 / known[low] - 1 / servers) / (1 / known[low] - 1 / known[high])
        found.append(rows[low] * (1.0 - part) + rows[high] * part)
    return np.array(found)


def largest_load(
    limit: FloatArray, servers: IntArray, batch_index: IntArray, jitter: FloatArray
) -> FloatArray:
    """The largest u with u Y(u) <= limit, for each shape: four arrays of (n,) -> (n, shapes).

    `jitter` is what the spread of a batch's own time adds to Y.
    """
    loads = np.array(LOADS)
    rows = pools()[np.minimum(servers, SERVERS[-1]) - 1, batch_index] + jitter[:, None, None]
    # Below the first entry nobody waits and u Y is a straight line through 0.
    knots = np.concatenate([np.zeros((*rows.shape[:2], 1)), loads * rows], axis=2)
    loads = np.append(0.0, loads)
    cell = (knots[:, :, 1:-1] <= limit[:, None, None]).sum(axis=2)
    low, high = (np.take_along_axis(knots, (cell + k)[..., None], axis=2)[..., 0] for k in (0, 1))
    part = np.clip((limit[:, None] - low) / (high - low), 0.0, 1.0)
    found: FloatArray = loads[cell] * (1.0 - part) + loads[cell + 1] * part
    return found


def tolerance(
    rate: FloatArray, slo_ms: FloatArray, full_ms: FloatArray, first_ms: FloatArray, servers: IntArray,
    batch_index: IntArray, jitter: FloatArray,
) -> FloatArray:  # fmt: skip
    """The largest slowdown f each workload holds at each share; below 1: not even alone. Shape (n, shares).

    `rate` per second into one server, `slo_ms` without the time outside the queue, and the last three are
    (n,); `full_ms` and `first_ms` (n, shares) are t(b) and t(1) alone.
    """
    batch = np.array(BATCHES)[batch_index][:, None]
    per_ms = rate[:, None] / 1000.0
    load = largest_load(slo_ms * per_ms[:, 0] / batch[:, 0], servers, batch_index, jitter)
    # A batch of one has rows for all shapes, and they are equal.
    shape = np.clip((first_ms / full_ms - 1.0 / batch) / np.maximum(1.0 - 1.0 / batch, 0.5), 0.0, 1.0)
    knots = np.array(SHAPES)
    cell = np.clip(np.searchsorted(knots, shape, side="right") - 1, 0, len(SHAPES) - 2)
    part = (shape - knots[cell]) / (knots[cell + 1] - knots[cell])
    allowed = np.take_along_axis(load, cell, axis=1) * (1.0 - part)
    allowed += np.take_along_axis(load, cell + 1, axis=1) * part
    # Nobody is faster than a lone request.
    answer: FloatArray = np.minimum(allowed * batch / (per_ms * full_ms), slo_ms[:, None] / first_ms)
    return answer
