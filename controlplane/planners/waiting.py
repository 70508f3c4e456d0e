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


def tolerance(
    rate: FloatArray, slo_ms: FloatArray, full_ms: FloatArray, first_ms: FloatArray, servers: IntArray,
    batch_index: IntArray, jitter: FloatArray,
) -> FloatArray:  # fmt: skip
    """The largest slowdown f each workload holds at each share; below 1: not even alone. Shape (n, shares).

    `rate` per second into one server, `slo_ms` without the time outside the queue, and the last three are
    (n,); `full_ms` and `first_ms` (n, shares) are t(b) and t(1) alone. `jitter` is what the spread of a
    batch's own time adds to Y.
    """
    from controlplane.planners.waiting_kernel import tolerated

    answer: FloatArray = tolerated(
        rate, slo_ms, full_ms, first_ms, servers, batch_index, jitter, pools(),
        np.array(BATCHES, dtype=np.float64), np.array(LOADS), np.array(SHAPES),
    )  # fmt: skip
    return answer
