"""Execution times of layouts, asked of a latency model in bounded memory.

Where a partition serves several models, one of them executes at a time, so a GPU's partitions slow each other
one by one: a column's time is its longest beside any choice of one model from each other partition.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from controlplane.domain.plan import Rule
from controlplane.domain.units import MILLIS_PER_SECOND
from controlplane.latency.protocol import BoolArray, FloatArray, IntArray, LatencyModel, Slots
from controlplane.planning.judge.layout import Layout

LARGEST_BATCH = 32
"""Engines are built for batches up to this."""
_MEAN_QUANTILE = 0.5
"""Any: of a model whose means alone count no quantile is read."""
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class Times:
    """What is expected of full batches with all neighbours busy: (GPUs, slots), 0 where a slot is empty.

    `round_ms`: a full batch of every model of the partition, one after another.
    """

    execution_ms: FloatArray
    capacity_rps: FloatArray
    round_ms: FloatArray


def ask(latency: LatencyModel, slots: Slots, quantile: float | None) -> tuple[FloatArray, FloatArray]:
    """Execution and cycle in ms; `quantile` None takes the model's means."""
    count = slots.mask.shape[0]
    if count <= _ROWS_AT_ONCE:
        answer = latency.estimate(slots, _MEAN_QUANTILE if quantile is None else quantile)
        if quantile is None:
            return answer.execution_ms, answer.cycle_ms
        return answer.execution_upper_ms, answer.cycle_upper_ms
    parts = [
        ask(latency, take(slots, np.arange(i, min(i + _ROWS_AT_ONCE, count))), quantile)
        for i in range(0, count, _ROWS_AT_ONCE)
    ]
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


def take(slots: Slots, rows: IntArray) -> Slots:
    """These rows, in this order, repeated where named twice; arrays are copies."""
    requests = None if slots.requests is None else slots.requests[rows]
    return Slots(slots.model[rows], slots.batch[rows], slots.percent[rows], slots.mask[rows], requests)


def service_curves(
    latency: LatencyModel,
    slots: Slots,
    rows: IntArray,
    columns: IntArray,
    quantile: float | None,
    client_batch: IntArray | None = None,
) -> FloatArray:
    """Times in ms of 1, 2, ... requests in a batch at (rows, columns), all neighbours with full batches.

    `client_batch` (GPUs, slots) is how many inferences a request has, by default one. Shape (n, the most
    requests in a batch); columns beyond a slot's own batch repeat its last time. Never falls along a row: a
    batch is not faster for being larger, whatever a fit says.
    """
    each = np.ones(rows.size, dtype=np.int64) if client_batch is None else client_batch[rows, columns]
    batch = np.maximum(slots.batch[rows, columns].astype(np.int64) // each, 1)
    largest = int(batch.max(initial=1))
    curves = np.empty((rows.size, largest))
    owner = np.repeat(np.arange(rows.size), batch)
    size = np.concatenate([np.arange(1, b + 1) for b in batch]) if rows.size else np.empty(0, dtype=np.int64)
    asked = take(slots, rows[owner])
    here = np.arange(owner.size)
    asked.batch[here, columns[owner]] = size * each[owner]
    if asked.requests is not None:
        asked.requests[here, columns[owner]] = size
    execution, _ = ask(latency, asked, quantile)
    curves[owner, size - 1] = execution[here, columns[owner]]
    for k in range(1, largest):
        curves[:, k] = np.where(k < batch, np.maximum(curves[:, k], curves[:, k - 1]), curves[:, k - 1])
    return curves


def layout_times(latency: LatencyModel, layout: Layout, rule: Rule, quantile: float | None) -> Times:
    """What is expected of full batches with all neighbours busy; (GPUs, columns).

    Half-SLO: in a round every model of a partition executes one full batch, so a round is the sum of their
    times, and a model's capacity its batch per round. P99: a model's capacity is what it would serve if all
    rates of its partition grew alike until full batches fill it.
    """
    rows, slots = _choices(layout)
    execution, cycle = np.zeros(layout.mask.shape), np.zeros(layout.mask.shape)
    execution_each, cycle_each = ask(latency, slots, quantile)
    np.maximum.at(execution, rows, np.where(slots.mask, execution_each, 0.0))
    np.maximum.at(cycle, rows, np.where(slots.mask, cycle_each, 0.0))
    execution, cycle = execution * layout.slower, cycle * layout.slower
    if rule is Rule.HALF_SLO:
        cycle = _per_partition(layout, cycle)
        capacity = _rate(layout.batch, cycle)
    else:
        alone = _rate(layout.batch, cycle + layout.turnaround_ms)
        load = np.divide(layout.rate, alone, out=np.zeros_like(alone), where=alone > 0)
        together = _per_partition(layout, load)
        in_turns = _per_partition(layout, np.ones_like(load)) > 1
        capacity = np.divide(layout.rate, together, out=alone, where=in_turns & (together > 0))
    return Times(execution, capacity, _per_partition(layout, execution))


def layout_curves(latency: LatencyModel, layout: Layout, quantile: float | None) -> list[FloatArray]:
    """Times in ms of 1, 2, ... requests in a batch of each column, in the order of `Layout.columns`."""
    rows, slots = _choices(layout)
    at, columns = np.nonzero(slots.mask)
    each = service_curves(latency, slots, at, columns, quantile, layout.client_batch[rows])
    curves = np.zeros((*layout.mask.shape, each.shape[1]))
    np.maximum.at(curves, (rows[at], columns), each)
    curves *= layout.slower[:, :, None]
    return [curves[here][: layout.requests(*here)] for here, _ in layout.columns()]


def _choices(layout: Layout) -> tuple[IntArray, Slots]:
    """One row for each choice of a model from every partition of a GPU, and its row in the layout."""
    rows: list[int] = []
    masks: list[BoolArray] = []
    for i, own in enumerate(layout.queues):
        columns: dict[int, list[int]] = {}
        for j, queue in enumerate(own):
            columns.setdefault(queue.index, []).append(j)
        for choice in product(*columns.values()):
            mask = np.zeros(layout.mask.shape[1], dtype=np.bool_)
            mask[list(choice)] = True
            rows.append(i)
            masks.append(mask)
    at = np.array(rows, dtype=np.int64)
    chosen = take(layout.all_busy, at)
    mask = np.array(masks, dtype=np.bool_).reshape(at.size, layout.mask.shape[1])
    return at, Slots(chosen.model, chosen.batch, chosen.percent, mask, chosen.requests)


def _rate(batch: FloatArray, cycle_ms: FloatArray) -> FloatArray:
    there = cycle_ms > 0
    return np.where(there, MILLIS_PER_SECOND * batch / np.where(there, cycle_ms, 1.0), 0.0)


def _per_partition(layout: Layout, value: FloatArray) -> FloatArray:
    """Sum over the columns of each partition, at every one of them."""
    return np.asarray(np.where(layout.same_partition, value[:, None, :], 0.0).sum(axis=2))
