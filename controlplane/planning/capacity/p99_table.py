"""The P99 of a queue as a table, and its inverses: the slowdown that a partition tolerates, its largest rate.

In units of a full batch's time t(b), the P99 of a request depends on four numbers: the batch b, the servers
of the pool, the utilisation u and the shape s, where t(1) / t(b) = 1/b + s (1 - 1/b). Let Y be that P99.
Slowed down by f, a partition needs

    f t(b) Y(b, servers, s, f u0) <= SLO  with u0 = rate t(b) / b,  hence  u Y(u) <= SLO rate / b,  u = f u0.

The right side does not depend on the share, so one inversion of the table answers for all shares at once. The
largest rate within an SLO follows from Y(u) <= SLO / t(b). The table (`p99_table.csv`, made by
tests/support/make_p99_table.py) is within some per cent of the queue; `joint.queue_check` corrects what a
plan relies on.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from importlib import resources

import numpy as np

from controlplane.domain.plan import MOST_SERVERS, Rule
from controlplane.latency.protocol import FloatArray, IntArray
from controlplane.planning.capacity.gpu_types import BatchTimes, GpuType
from controlplane.planning.capacity.items import ItemArrays
from controlplane.planning.judge.evaluate import SLACK
from controlplane.planning.judge.queues import with_jitter

BATCHES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)
SHAPES = (0.0, 0.03, 0.08, 0.2, 0.5, 1.0)
POOL_SIZES = (1, 2, 3, 4, 8)
"""Servers of the pools in the table."""
_LOW_LOADS = (0.002, 0.01, 0.03, 0.08, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.72, 0.78, 0.83)
_HIGH_LOADS = (0.87, 0.9, 0.925, 0.945, 0.96, 0.972, 0.982, 0.99, 0.995)
LOADS = (*_LOW_LOADS, *_HIGH_LOADS)
"""Utilisations in the table."""
MOST_OF_SLO = 0.6
"""The largest part of an SLO that a full batch may take: what the table says of batches that hardly ever fill
is far off."""
_POOL_CARE = 0.985
"""The table's pools come from one stream of arrivals; this much is left for its noise."""
_SLOS_AT_ONCE = 64
"""Bounds memory, and keeps arrays in the processor's cache."""


@functools.cache
def table() -> FloatArray:
    """Y, of shape (pool sizes, batches, shapes, loads)."""
    text = resources.files(__package__).joinpath("p99_table.csv").read_text()
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


def possible_batches(gpu_type: GpuType) -> IntArray:
    """All batches that a partition may have, rising: under P99 those of the table."""
    known = gpu_type.alone.execution.shape[1]
    every = BATCHES if gpu_type.rule is Rule.P99 else range(1, known + 1)
    return np.array([b for b in every if b <= known])


def tolerated_slowdown(
    items: ItemArrays, full_ms: FloatArray, first_ms: FloatArray, batch_index: IntArray
) -> FloatArray:
    """The largest slowdown f at which each item holds its SLO at each share: (items, shares); below 1: none.

    The batch is an index of `BATCHES`, (items,). `full_ms` and `first_ms`, (items, shares), are t(b) and t(1)
    alone. What the spread of a batch's time adds is part of Y.
    """
    batch = np.array(BATCHES, dtype=np.float64)[batch_index]
    per_ms = items.rate / 1000.0
    rows = all_pool_sizes()[np.minimum(items.servers, POOL_SIZES[-1]) - 1, batch_index]
    slo_ms = items.queue_slo_ms
    single = 1.0 / batch[:, None]
    first = (single + np.array(SHAPES) * (1.0 - single))[..., None]
    each = batch[:, None, None] * np.array(LOADS)
    waits = with_jitter(rows, first, 1.0, each, items.jitter[:, None, None])
    loads = _max_utilisation_slowed(slo_ms * per_ms / batch, waits)
    # A batch of one has rows for all shapes, and they are equal.
    cell, part = _shape_cell(first_ms / full_ms, batch[:, None])
    item = np.arange(items.rate.size)[:, None]
    allowed = loads[item, cell] * (1.0 - part) + loads[item, cell + 1] * part
    # Never faster than a single request.
    slowdown: FloatArray = np.minimum(
        allowed * batch[:, None] / (per_ms[:, None] * full_ms), slo_ms[:, None] / first_ms
    )
    slowdown *= np.where(items.servers > 1, _POOL_CARE, 1.0)[:, None]
    return slowdown


def _max_utilisation_slowed(limit: FloatArray, waits: FloatArray) -> FloatArray:
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


def largest_rate(
    gpu_type: GpuType,
    model: str,
    times: BatchTimes,
    batches: IntArray,
    slo_ms: FloatArray,
    pool_sizes: Sequence[int] = range(1, MOST_SERVERS + 1),
    wait_factor: FloatArray | float = 1.0,
    most_of_slo: float = math.inf,
) -> FloatArray:
    """Requests per second into one server, with the best of these batches: (SLOs, pool sizes, shares).

    `times` are the model's, at whatever shares and beside whatever neighbours. Waits count `wait_factor`
    (batches, shares) times; a batch larger than 1 takes at most `most_of_slo` of the SLO. Under half-SLO all
    pools carry the same, and both are without effect.
    """
    batch, full, first = batches[:, None], times.execution[batches - 1], times.execution[0]
    if gpu_type.rule is not Rule.P99:
        in_time = full <= slo_ms[:, None, None] / 2.0 * (1.0 + SLACK)
        most = 1000.0 * batch / times.cycle[batches - 1] * (1.0 + SLACK)
        return np.repeat(np.where(in_time, most, 0.0).max(axis=1)[:, None], len(pool_sizes), axis=1)
    profile = gpu_type.device.profiles[model]
    queue_slo = (slo_ms - (profile.frontend_ms or 0.0)) * (1.0 + SLACK)
    waits = _waits(full, first, batches, pool_sizes) * np.broadcast_to(wait_factor, full.shape)[..., None]
    first_part = np.where(np.isfinite(full), first / full, 1.0)[..., None]
    waits = with_jitter(waits, first_part, 1.0, batch[..., None] * np.array(LOADS), profile.jitter or 0.0)
    most, longest = 1000.0 * batch / full, np.where(batch > 1, full, 0.0)
    found = []
    for start in range(0, queue_slo.size, _SLOS_AT_ONCE):
        slo = queue_slo[start : start + _SLOS_AT_ONCE, None, None]
        late = (slo < first * wait_factor) | (longest > most_of_slo * slo)
        # (SLOs, pool sizes, batches, shares)
        load = max_utilisation((slo / full)[:, None], waits)
        found.append(np.where(late[:, None], 0.0, most * load).max(axis=2))
    return np.concatenate(found)


def usual_rate(
    gpu_type: GpuType, model: str, times: BatchTimes, slo_ms: FloatArray, batches: IntArray | None = None
) -> FloatArray:
    """The rate that plans count on: (SLOs, servers, columns); `batches` None for all."""
    batches = possible_batches(gpu_type) if batches is None else batches
    return largest_rate(gpu_type, model, times, batches, slo_ms, most_of_slo=MOST_OF_SLO)


def _waits(full: FloatArray, first: FloatArray, batches: IntArray, pool_sizes: Sequence[int]) -> FloatArray:
    """The least P99 at each load or any higher, in full batches' times: (pool sizes, batches, shares, loads).

    It must rise with the load. `full` (batches, shares) and `first` (shares,) are t(b) and t(1).
    """
    table = all_pool_sizes()[np.array(pool_sizes) - 1][:, np.searchsorted(BATCHES, batches)]
    known = np.isfinite(full)
    first_part = np.divide(first, full, out=np.ones(known.shape), where=known)
    cell, part = _shape_cell(first_part, batches[:, None])
    row, part = np.arange(batches.size)[:, None], part[..., None]
    waits = (1.0 - part) * table[:, row, cell] + part * table[:, row, cell + 1]
    return np.asarray(np.minimum.accumulate(waits[..., ::-1], axis=-1)[..., ::-1])


def max_utilisation(allowed: FloatArray, waits: FloatArray) -> FloatArray:
    """The largest load at which a row of waits, in full batches' times, is at most `allowed`.

    `waits` (..., loads) rise along a row; `allowed` is broadcast against the other axes. Where a row bends
    up, no wait lies below the lines through the entries on either side; where it bends down, none below the
    line between these two.
    """
    loads, last = np.array(LOADS), waits.shape[-1] - 1
    at = np.full(np.broadcast_shapes(allowed.shape, waits.shape[:-1]), -1)
    for entry in range(last + 1):
        at += waits[..., entry] <= allowed
    inner = np.clip(at, 1, last - 1)
    rise = np.diff(waits)
    with np.errstate(divide="ignore"):
        slope = np.where(rise > 0.0, np.diff(loads) / rise, np.inf).ravel()
    row = np.arange(rise[..., 0].size).reshape(waits.shape[:-1])

    def along(begin: IntArray) -> FloatArray:
        """Where the line from entry `begin` to the next one reaches `allowed`."""
        low, rising = waits.ravel()[row * (last + 1) + begin], slope[row * last + begin]
        reached = np.maximum(loads[begin] + (allowed - low) * rising, loads[inner])
        return np.where(rising < np.inf, reached, loads[inner + 1])

    with np.errstate(invalid="ignore"):
        after = np.where(inner + 1 < last, along(np.minimum(inner + 1, last - 1)), np.inf)
        load = np.maximum(along(inner), np.minimum(along(inner - 1), after))
    load = np.minimum(load, loads[inner + 1])
    answer: FloatArray = np.where(at == last, 1.0, np.where(at <= 0, loads[np.minimum(at + 1, last)], load))
    return answer


def _shape_cell(first_part: FloatArray, batch: FloatArray | IntArray) -> tuple[IntArray, FloatArray]:
    """The cell of `SHAPES` with the shape of t(1) / t(b) = `first_part`, and how far along it that lies."""
    single, grid = 1.0 / batch, np.array(SHAPES)
    shape = np.clip((first_part - single) / np.maximum(1.0 - single, 0.5), 0.0, 1.0)
    cell: IntArray = np.minimum(np.searchsorted(grid, shape, side="right") - 1, grid.size - 2)
    return cell, (shape - grid[cell]) / (grid[cell + 1] - grid[cell])
