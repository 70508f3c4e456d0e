"""The slowdown that each share lets an item tolerate, before anything stands beside it.

For every item and share the table names the batch that tolerates the most slowdown, and that slowdown. Items
then fit a GPU together where neighbours slow each of them by no more than its share tolerates: while a plan
is searched only slowdowns are asked of the latency model, and nothing of the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from controlplane.domain.plan import Rule
from controlplane.latency.protocol import FloatArray, IntArray
from controlplane.planning.capacity.gpu_types import BatchTimes, GpuType
from controlplane.planning.capacity.items import Item, ItemArrays
from controlplane.planning.capacity.p99_table import (
    BATCHES,
    MOST_OF_SLO,
    possible_batches,
    tolerated_slowdown,
)
from controlplane.planning.judge.placements import memory_law, servers_loaded, shared_mb
from controlplane.planning.judge.queues import with_jitter

TYPICAL_SLOWDOWN = 1.04
"""By average neighbours: only a guess."""
_WORTH = 0.01
"""A larger batch must tolerate this much more slowdown, relatively, to be chosen."""
_ITEMS_AT_ONCE = 256
"""Bounds memory."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The best batch of each item at each share, and how much its execution and cycle may be slowed.

    All (items, shares).
    """

    batch: IntArray
    execution: FloatArray
    cycle: FloatArray

    @staticmethod
    def none(items: int, shares: int) -> Tolerance:
        """Of items that nothing holds."""
        shape = items, shares
        return Tolerance(np.ones(shape, dtype=np.int64), np.zeros(shape), np.zeros(shape))

    def take(self, rows: IntArray) -> Tolerance:
        """Those of these items."""
        return Tolerance(self.batch[rows], self.execution[rows], self.cycle[rows])

    def set(self, rows: IntArray, other: Tolerance) -> None:
        """Replace those of some items."""
        self.batch[rows], self.execution[rows], self.cycle[rows] = other.batch, other.execution, other.cycle

    def first_share(self, slowdown: FloatArray | float = 1.0) -> IntArray:
        """The index of the smallest share that tolerates this; the number of shares where none does."""
        wanted = np.broadcast_to(slowdown, self.batch.shape[:1])[:, None]
        fits = (self.execution >= wanted) & (self.cycle >= wanted)
        return np.where(fits.any(axis=1), fits.argmax(axis=1), fits.shape[1])


@dataclass(frozen=True)
class ToleranceTable:
    """All items on one GPU type: rows are items, columns shares.

    `memory_mb` (items, shares): with the batch at each share, and with what must stand by.
    """

    gpu_type: GpuType
    items: ItemArrays
    tolerance: Tolerance
    memory_mb: FloatArray

    @staticmethod
    def of(items: Sequence[Item], gpu_type: GpuType) -> ToleranceTable:
        """Items whose model has no profile fit nowhere."""
        # The servers of a pool are the same item several times.
        distinct = list({id(i): i for i in items}.values())
        place = {id(i): n for n, i in enumerate(distinct)}
        asked = ItemArrays.of(
            gpu_type,
            [i.model for i in distinct],
            np.array([i.rate_rps for i in distinct], dtype=np.float64),
            np.array([i.slo_ms for i in distinct], dtype=np.float64),
            np.array([i.servers for i in distinct], dtype=np.int64),
            np.array([i.constant for i in distinct], dtype=np.bool_),
        )
        known = np.flatnonzero(asked.model >= 0)
        found = Tolerance.none(len(distinct), gpu_type.percents.size)
        found.set(known, best_batches(gpu_type.alone, asked.take(known), gpu_type))
        _fix_batches(gpu_type, asked, np.array([i.batch or 0 for i in distinct], dtype=np.int64), found)
        if gpu_type.rule is Rule.P99:
            _calibrate_constant(gpu_type.alone, asked, found)
        memory_mb = np.zeros(found.batch.shape)
        for n in known.tolist():
            memory_mb[n] = _memory_mb(distinct[n], found.batch[n], gpu_type)
        rows = np.array([place[id(i)] for i in items], dtype=np.int64)
        return ToleranceTable(gpu_type, asked, found, memory_mb).take(rows)

    def take(self, rows: IntArray) -> ToleranceTable:
        """These items."""
        return ToleranceTable(
            self.gpu_type, self.items.take(rows), self.tolerance.take(rows), self.memory_mb[rows]
        )

    def corrected(self, scale: FloatArray) -> ToleranceTable:
        """The same table with the exact queue's corrections: `scale` (items,) times each item's tolerance."""
        own = replace(self.tolerance, execution=self.tolerance.execution * scale[:, None])
        return replace(self, tolerance=own)

    @cached_property
    def smallest(self) -> IntArray:
        """The index of the smallest share that holds each item alone; the count of shares where none does."""
        return self.tolerance.first_share()

    @cached_property
    def smallest_percent(self) -> FloatArray:
        """That share; infinite where none does."""
        return self.percent_at(1.0)

    @cached_property
    def likely_percent(self) -> FloatArray:
        """What each item probably takes beside others, at least `smallest_percent`."""
        beside = self.percent_at(TYPICAL_SLOWDOWN)
        return np.where(np.isfinite(beside), beside, self.smallest_percent)

    def percent_at(self, slowdown: FloatArray | float) -> FloatArray:
        """The smallest share, in percent, at which each item tolerates this; infinite where none does."""
        size: FloatArray = np.append(self.gpu_type.percents, np.inf)
        return size[self.tolerance.first_share(slowdown)]

    def percent_beside(self, slowdown: FloatArray | float) -> FloatArray:
        """As `percent_at`; a whole GPU for an item that holds its SLO alone only."""
        size = self.percent_at(slowdown)
        return np.where(np.isfinite(size) | ~np.isfinite(self.smallest_percent), size, 100.0)


def _memory_mb(item: Item, batch: IntArray, gpu_type: GpuType) -> FloatArray | float:
    """What the servers of an item, of one model, take with these batches; 0 where unknown."""
    law = memory_law(item.workloads[0], gpu_type.device)
    if law is None:
        return 0.0
    device = gpu_type.device
    saved_mb = min(shared_mb(w, device) for w in item.workloads)
    return (law[0] + law[1] * batch) * max(servers_loaded(w, device) for w in item.workloads) - saved_mb


def best_batches(alone: BatchTimes, items: ItemArrays, gpu_type: GpuType) -> Tolerance:
    """With the best batch of each item at each share of `alone`."""
    found = Tolerance.none(items.model.size, alone.execution.shape[2])
    of_rule = _under_p99 if gpu_type.rule is Rule.P99 else _under_half_slo
    for start in range(0, items.model.size, _ITEMS_AT_ONCE):
        rows = np.arange(start, min(start + _ITEMS_AT_ONCE, items.model.size))
        found.set(rows, of_rule(alone, items.take(rows), possible_batches(gpu_type)))
    return found


def _under_half_slo(alone: BatchTimes, items: ItemArrays, batches: IntArray) -> Tolerance:
    execution, cycle = alone.execution[items.model], alone.cycle[items.model]
    slack = (items.slo_ms / 2.0)[:, None, None] / execution
    keeps_up = (1000.0 / items.rate)[:, None, None] * (batches[:, None] / cycle)
    best = np.minimum(slack, keeps_up).argmax(axis=1)
    slack, keeps_up = (np.take_along_axis(a, best[:, None], axis=1)[:, 0] for a in (slack, keeps_up))
    return Tolerance(batches[best], slack, keeps_up)


def _under_p99(alone: BatchTimes, items: ItemArrays, batches: IntArray) -> Tolerance:
    count = items.model.size
    every = items.take(np.tile(np.arange(count), batches.size))
    found = _tolerance_at(alone, every, np.repeat(np.arange(batches.size), count))
    found = found.reshape(batches.size, count, -1)
    for k, batch in enumerate(batches[1:].tolist(), 1):
        rarely_full = alone.execution[items.model, batch - 1] > MOST_OF_SLO * items.queue_slo_ms[:, None]
        found[k][rarely_full] = 0.0
    # The greedy batcher rarely fills a larger batch, and a smaller one disturbs neighbours less.
    enough = (found >= found.max(axis=0) * (1.0 - _WORTH)).argmax(axis=0)
    best = np.take_along_axis(found, enough[None], axis=0)[0]
    # A queue settles where even cycles would: execution is at least as long, so nothing more is asked.
    return Tolerance(batches[enough], best, np.full_like(best, np.inf))


def _tolerance_at(alone: BatchTimes, items: ItemArrays, batch_index: IntArray) -> FloatArray:
    """The tolerated slowdown with one batch per item; 0 for a batch beyond its model's largest."""
    full = alone.execution[items.model, np.array(BATCHES)[batch_index] - 1]
    known = np.isfinite(full).all(axis=1)[:, None]
    first = alone.execution[items.model, 0]
    return np.where(known, tolerated_slowdown(items, np.where(known, full, 1.0), first, batch_index), 0.0)


def _fix_batches(gpu_type: GpuType, items: ItemArrays, fixed: IntArray, found: Tolerance) -> None:
    """Give all servers of a pool one batch: the fixed one, else that of the share they would likely get."""
    alone, smallest, last = gpu_type.alone, found.first_share(), gpu_type.percents.size - 1
    rows = np.flatnonzero((fixed > 0) | ((items.servers > 1) & (smallest <= last)))
    if not rows.size:
        return
    own = np.where(fixed[rows] > 0, fixed[rows], found.batch[rows, np.minimum(smallest[rows] + 1, last)])
    found.batch[rows] = own[:, None]
    pools = items.take(rows)
    if gpu_type.rule is Rule.P99:
        found.execution[rows] = _tolerance_at(alone, pools, np.searchsorted(BATCHES, own))
        return
    found.execution[rows] = pools.slo_ms[:, None] / 2.0 / alone.execution[pools.model, own - 1]
    found.cycle[rows] = (1000.0 * own / pools.rate)[:, None] / alone.cycle[pools.model, own - 1]


def _calibrate_constant(alone: BatchTimes, items: ItemArrays, found: Tolerance) -> None:
    """Ask the queue itself for constant arrivals: the table knows Poisson arrivals only."""
    from controlplane.latency.queueing import batch_queue

    rows, shares = np.nonzero((items.constant & (items.model >= 0))[:, None] & (found.batch > 0))
    if not rows.size:
        return
    item, own = items.take(rows), found.batch[rows, shares]
    sizes = np.minimum(np.arange(1, own.max() + 1), own[:, None])
    curves = alone.execution[item.model[:, None], sizes - 1, shares[:, None]]
    low, high = np.zeros(rows.size), 0.998 * 1000.0 * own / (item.rate * curves[:, -1])
    for _ in range(10):
        middle = (low + high) / 2.0
        slowed = curves * middle[:, None]
        p99 = batch_queue.solve(item.rate * item.servers, slowed, own, item.servers, dispersion=0.0).p99_ms
        load = item.rate * slowed[:, -1] / 1000.0
        kept = with_jitter(p99, slowed[:, 0], slowed[:, -1], load, item.jitter) <= item.queue_slo_ms
        low, high = np.where(kept, middle, low), np.where(kept, high, middle)
    found.execution[rows, shares] = np.maximum(low, found.execution[rows, shares])
