"""P99 waiting times of a queue as a table, and its inverse: the slowdown that a partition tolerates.

In units of a full batch's time t(b), the P99 of a request depends on four numbers: the batch b, the servers
of the pool, the utilisation u and the shape s, where t(1) / t(b) = 1/b + s (1 - 1/b). Let Y be that P99.
Slowed down by f, a partition needs

    f t(b) Y(b, servers, s, f u0) <= SLO  with u0 = rate t(b) / b,  hence  u Y(u) <= SLO rate / b,  u = f u0.

The right side does not depend on the share, so one inversion of the table answers for all shares at once. The
table (`waiting_times.csv`, made by tests/support/make_waiting_times.py) is within some per cent of the queue;
`joint.queue_check` corrects what a plan relies on.
"""

from __future__ import annotations

import functools
from importlib import resources

import numpy as np

from controlplane.latency.protocol import FloatArray, IntArray

BATCHES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)
SHAPES = (0.0, 0.03, 0.08, 0.2, 0.5, 1.0)
POOL_SIZES = (1, 2, 3, 4, 8)
"""Servers of the pools in the table."""
_LOW_LOADS = (0.002, 0.01, 0.03, 0.08, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.72, 0.78, 0.83)
_HIGH_LOADS = (0.87, 0.9, 0.925, 0.945, 0.96, 0.972, 0.982, 0.99, 0.995)
LOADS = (*_LOW_LOADS, *_HIGH_LOADS)
"""Utilisations in the table."""


@functools.cache
def table() -> FloatArray:
    """Y, of shape (pool sizes, batches, shapes, loads)."""
    text = resources.files(__package__).joinpath("waiting_times.csv").read_text()
    rows = np.array([line.split(",")[3:] for line in text.splitlines()[1:]], dtype=np.float64)
    rows = rows.reshape(len(POOL_SIZES), -1, len(LOADS))
    # A batch of one has one row: its shape means nothing.
    found = np.concatenate([np.repeat(rows[:, :1], len(SHAPES), axis=1), rows[:, 1:]], axis=1)
    return np.reshape(found, (len(POOL_SIZES), len(BATCHES), len(SHAPES), len(LOADS)))


@functools.cache
def all_pool_sizes() -> FloatArray:
    """The table for every number of servers up to the largest, interpolated along 1 / servers."""
    known, rows = np.array(POOL_SIZES), table()
    found = []
    for servers in range(1, POOL_SIZES[-1] + 1):
        high = int(np.searchsorted(known, servers))
        low = high if known[high] == servers else high - 1
        part = 0.0 if low == high else (1 / known[low] - 1 / servers) / (1 / known[low] - 1 / known[high])
        found.append(rows[low] * (1.0 - part) + rows[high] * part)
    return np.array(found)


def tolerated_slowdown(
    rate: FloatArray,
    slo_ms: FloatArray,
    full_ms: FloatArray,
    first_ms: FloatArray,
    servers: IntArray,
    batch_index: IntArray,
    jitter: FloatArray,
) -> FloatArray:
    """The largest slowdown f at which each item holds its SLO at each share: (items, shares); below 1: none.

    `rate` per second into one server, `slo_ms` without the time outside the queue, `servers`, the batch as an
    index of `BATCHES` and `jitter` (what the spread of a batch's time adds to Y) are (items,). `full_ms` and
    `first_ms`, (items, shares), are t(b) and t(1) alone.
    """
    batch = np.array(BATCHES, dtype=np.float64)[batch_index]
    per_ms = rate / 1000.0
    rows = all_pool_sizes()[np.minimum(servers, POOL_SIZES[-1]) - 1, batch_index]
    loads = _largest_loads(slo_ms * per_ms / batch, rows + jitter[:, None, None])
    # A batch of one has rows for all shapes, and they are equal.
    cell, part = between(shape_of(first_ms / full_ms, batch[:, None]))
    item = np.arange(rate.size)[:, None]
    allowed = loads[item, cell] * (1.0 - part) + loads[item, cell + 1] * part
    # Never faster than a single request.
    answer: FloatArray = np.minimum(
        allowed * batch[:, None] / (per_ms[:, None] * full_ms), slo_ms[:, None] / first_ms
    )
    return answer


def _largest_loads(limit: FloatArray, waits: FloatArray) -> FloatArray:
    """The largest u with u Y(u) <= limit: (items, shapes).

    `limit` (items,); `waits` (items, shapes, loads) is Y. Below the first entry nothing waits, and u Y is a
    straight line through 0.
    """
    loads = np.array([0.0, *LOADS])
    product = loads * np.concatenate([np.zeros((*waits.shape[:2], 1)), waits], axis=2)
    beyond = product[..., 1:] > limit[:, None, None]
    high = np.where(beyond.any(axis=2), beyond.argmax(axis=2), len(LOADS) - 1) + 1
    low_wait, high_wait = (
        np.take_along_axis(product, at[..., None], axis=2)[..., 0] for at in (high - 1, high)
    )
    part = np.clip((limit[:, None] - low_wait) / (high_wait - low_wait), 0.0, 1.0)
    answer: FloatArray = loads[high - 1] * (1.0 - part) + loads[high] * part
    return answer


def shape_of(first_part: FloatArray, batch: FloatArray | IntArray) -> FloatArray:
    """The shape s of curves with t(1) / t(b) = `first_part`."""
    single = 1.0 / batch
    answer: FloatArray = np.clip((first_part - single) / np.maximum(1.0 - single, 0.5), 0.0, 1.0)
    return answer


def between(shape: FloatArray) -> tuple[IntArray, FloatArray]:
    """The cell of `SHAPES` that each shape lies in, and how far along it."""
    grid = np.array(SHAPES)
    cell: IntArray = np.minimum(np.searchsorted(grid, shape, side="right") - 1, grid.size - 2)
    return cell, (shape - grid[cell]) / (grid[cell + 1] - grid[cell])
