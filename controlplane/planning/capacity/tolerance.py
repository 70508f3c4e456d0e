"""The slowdown that each share lets an item tolerate, before anything stands beside it.

For every item and share the table names the batch that tolerates the most slowdown, and that slowdown. Items
then fit a GPU together where neighbours slow each of them by no more than its share tolerates: while a plan
is searched only slowdowns are asked of the latency model, and nothing of the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.domain.plan import Rule
from controlplane.latency.protocol import FloatArray, IntArray
from controlplane.planning.capacity import waiting_times
from controlplane.planning.capacity.gpu_types import AloneTimes, GpuType
from controlplane.planning.capacity.items import Item, ItemArrays

POOL_CARE = 0.985
"""The table's pools come from one stream of arrivals; this much is left for its noise."""
TYPICAL_SLOWDOWN = 1.04
"""By average neighbours: only a guess."""
MOST_OF_SLO = 0.6
"""The largest part of an SLO that a full batch may take: what the table says of batches that hardly ever fill
is far off."""
_WORTH = 0.01
"""A larger batch must tolerate this much more slowdown, relatively, to be chosen."""
_ITEMS_AT_ONCE = 256
"""Bounds memory."""


@dataclass(frozen=True, slots=True)
class ToleranceTable:
    """All items on one GPU type: rows are items, columns shares.

    A partition keeps its promise where its execution and cycle are slowed by at most `execution_tolerance`
    and `cycle_tolerance` (items, shares), with `batch` (items, shares). `smallest` (items,) is the index of
    the smallest share that holds the item alone (the number of shares where none does), `smallest_percent`
    that share and `likely_percent` what it probably takes beside others, both infinite where none does.
    `model` and `memory_mb` are (items,).
    """

    gpu_type: GpuType
    model: IntArray
    batch: IntArray
    execution_tolerance: FloatArray
    cycle_tolerance: FloatArray
    memory_mb: FloatArray
    smallest: IntArray
    smallest_percent: FloatArray
    likely_percent: FloatArray

    @staticmethod
    def of(items: Sequence[Item], gpu_type: GpuType) -> ToleranceTable:
        """Items whose model has no profile fit nowhere."""
        # The servers of a pool are the same item several times.
        distinct = list({id(i): i for i in items}.values())
        place = {id(i): n for n, i in enumerate(distinct)}
        asked, alone, rule = ItemArrays.of(distinct, gpu_type), gpu_type.alone, gpu_type.rule
        shape = (len(distinct), gpu_type.percents.size)
        batch = np.ones(shape, dtype=np.int64)
        execution, cycle = np.zeros(shape), np.zeros(shape)
        known = np.flatnonzero(asked.model >= 0)
        batch[known], execution[known], cycle[known] = best_batches(alone, asked.take(known), rule)
        fixed = np.array([i.batch or 0 for i in distinct], dtype=np.int64)
        _fix_batches(alone, asked, rule, fixed, batch, execution, cycle)
        if rule is Rule.P99:
            _calibrate_constant(alone, asked, batch, execution)
        memory = [
            i.memory_with_shadow_mb(gpu_type.device) if m >= 0 else 0.0
            for i, m in zip(distinct, asked.model, strict=True)
        ]
        rows = np.array([place[id(i)] for i in items], dtype=np.int64)
        model, memory_mb = asked.model[rows], np.array(memory)[rows]
        return ToleranceTable._of(gpu_type, model, batch[rows], execution[rows], cycle[rows], memory_mb)

    @staticmethod
    def _of(
        gpu_type: GpuType,
        model: IntArray,
        batch: IntArray,
        execution: FloatArray,
        cycle: FloatArray,
        memory_mb: FloatArray,
    ) -> ToleranceTable:
        smallest, likely = _first_share(execution, cycle), _first_share(execution, cycle, TYPICAL_SLOWDOWN)
        size = np.append(gpu_type.percents, np.inf)
        beside = np.where(likely < gpu_type.percents.size, size[likely], size[smallest])
        tolerances = model, batch, execution, cycle, memory_mb
        return ToleranceTable(gpu_type, *tolerances, smallest, size[smallest], beside)

    def percent_at(self, slowdown: FloatArray | float) -> FloatArray:
        """The smallest share, in percent, at which each item tolerates this; infinite where none does."""
        wanted = np.broadcast_to(slowdown, self.smallest.shape)[:, None]
        fits = (self.execution_tolerance >= wanted) & (self.cycle_tolerance >= wanted)
        return np.where(fits.any(axis=1), self.gpu_type.percents[fits.argmax(axis=1)], np.inf)

    def percent_beside(self, slowdown: FloatArray | float) -> FloatArray:
        """As `percent_at`; a whole GPU for an item that holds its SLO alone only."""
        size = self.percent_at(slowdown)
        return np.where(np.isfinite(size) | ~np.isfinite(self.percent_at(1.0)), size, 100.0)

    def corrected(self, scale: FloatArray) -> ToleranceTable:
        """The same table with the exact queue's corrections: `scale` (items,) times each item's tolerance."""
        execution = self.execution_tolerance * scale[:, None]
        return ToleranceTable._of(
            self.gpu_type, self.model, self.batch, execution, self.cycle_tolerance, self.memory_mb
        )


def _first_share(execution: FloatArray, cycle: FloatArray, slowdown: float = 1.0) -> IntArray:
    fits = (execution >= slowdown) & (cycle >= slowdown)
    return np.where(fits.any(axis=1), fits.argmax(axis=1), fits.shape[1])


def best_batches(alone: AloneTimes, items: ItemArrays, rule: Rule) -> tuple[IntArray, FloatArray, FloatArray]:
    """The best batch of each item at each share of `alone`; how much execution and cycle may be slowed."""
    shape = (items.model.size, alone.execution.shape[2])
    batch = np.ones(shape, dtype=np.int64)
    execution, cycle = np.zeros(shape), np.zeros(shape)
    of_rule = _under_p99 if rule is Rule.P99 else _under_half_slo
    for start in range(0, items.model.size, _ITEMS_AT_ONCE):
        rows = np.arange(start, min(start + _ITEMS_AT_ONCE, items.model.size))
        batch[rows], execution[rows], cycle[rows] = of_rule(alone, items.take(rows))
    return batch, execution, cycle


def _under_half_slo(alone: AloneTimes, items: ItemArrays) -> tuple[IntArray, FloatArray, FloatArray]:
    execution, cycle = alone.execution[items.model], alone.cycle[items.model]
    batch = np.arange(1, execution.shape[1] + 1, dtype=np.float64)
    slack = (items.slo_ms / 2.0)[:, None, None] / execution
    keeps_up = (1000.0 / items.rate)[:, None, None] * (batch[:, None] / cycle)
    best = np.minimum(slack, keeps_up).argmax(axis=1)
    at = best[:, None, :]
    slack, keeps_up = (np.take_along_axis(a, at, axis=1)[:, 0] for a in (slack, keeps_up))
    return best + 1, slack, keeps_up


def _under_p99(alone: AloneTimes, items: ItemArrays) -> tuple[IntArray, FloatArray, FloatArray]:
    batches = [b for b in waiting_times.BATCHES if b <= alone.execution.shape[1]]
    count = items.model.size
    every = items.take(np.tile(np.arange(count), len(batches)))
    found = tolerance_at(alone, every, np.repeat(np.arange(len(batches)), count))
    found = found.reshape(len(batches), count, -1)
    for k, batch in enumerate(batches[1:], 1):
        rarely_full = alone.execution[items.model, batch - 1] > MOST_OF_SLO * items.queue_slo_ms[:, None]
        found[k][rarely_full] = 0.0
    # The greedy batcher rarely fills a larger batch, and a smaller one disturbs neighbours less.
    enough = (found >= found.max(axis=0) * (1.0 - _WORTH)).argmax(axis=0)
    best = np.take_along_axis(found, enough[None], axis=0)[0]
    # A queue settles where even cycles would: execution is at least as long, so nothing more is asked.
    return np.array(batches)[enough], best, np.full_like(best, np.inf)


def tolerance_at(alone: AloneTimes, items: ItemArrays, batch_index: IntArray) -> FloatArray:
    """The tolerated slowdown with one batch per item; 0 for a batch beyond its model's largest."""
    batch = np.array(waiting_times.BATCHES)[batch_index]
    full = alone.execution[items.model, batch - 1]
    known = np.isfinite(full).all(axis=1)
    found = waiting_times.tolerated_slowdown(
        items.rate,
        items.queue_slo_ms,
        np.where(known[:, None], full, 1.0),
        alone.execution[items.model, 0],
        items.servers,
        batch_index,
        items.jitter,
    )
    found *= np.where(items.servers > 1, POOL_CARE, 1.0)[:, None]
    return np.where(known[:, None], found, 0.0)


def _fix_batches(
    alone: AloneTimes,
    items: ItemArrays,
    rule: Rule,
    fixed: IntArray,
    batch: IntArray,
    execution: FloatArray,
    cycle: FloatArray,
) -> None:
    """Give all servers of a pool one batch: the fixed one, else that of the share they would likely get."""
    smallest = _first_share(execution, cycle)
    last = batch.shape[1] - 1
    rows = np.flatnonzero((fixed > 0) | ((items.servers > 1) & (smallest <= last)))
    if not rows.size:
        return
    own = np.where(fixed[rows] > 0, fixed[rows], batch[rows, np.minimum(smallest[rows] + 1, last)])
    batch[rows] = own[:, None]
    pools = items.take(rows)
    if rule is Rule.P99:
        execution[rows] = tolerance_at(alone, pools, np.searchsorted(waiting_times.BATCHES, own))
        return
    execution[rows] = pools.slo_ms[:, None] / 2.0 / alone.execution[pools.model, own - 1]
    cycle[rows] = (1000.0 * own / pools.rate)[:, None] / alone.cycle[pools.model, own - 1]


def _calibrate_constant(alone: AloneTimes, items: ItemArrays, batch: IntArray, execution: FloatArray) -> None:
    """Ask the queue itself for constant arrivals: the table knows Poisson arrivals only."""
    from controlplane.latency import queueing

    rows, shares = np.nonzero((items.constant & (items.model >= 0))[:, None] & (batch > 0))
    if not rows.size:
        return
    item, own = items.take(rows), batch[rows, shares]
    sizes = np.minimum(np.arange(1, own.max() + 1), own[:, None])
    curves = alone.execution[item.model[:, None], sizes - 1, shares[:, None]]
    low, high = np.zeros(rows.size), 0.998 * 1000.0 * own / (item.rate * curves[:, -1])
    for _ in range(10):
        middle = (low + high) / 2.0
        slowed = curves * middle[:, None]
        p99 = queueing.solve(item.rate * item.servers, slowed, own, item.servers, dispersion=0.0).p99_ms
        kept = p99 + item.jitter * slowed[:, -1] <= item.queue_slo_ms
        low, high = np.where(kept, middle, low), np.where(kept, high, middle)
    execution[rows, shares] = np.maximum(low, execution[rows, shares])
