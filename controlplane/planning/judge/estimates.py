"""Execution times of layouts, asked of a latency model in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controlplane.domain.units import MILLIS_PER_SECOND
from controlplane.latency.protocol import FloatArray, IntArray, LatencyModel, Slots

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


def times(latency: LatencyModel, slots: Slots, quantile: float | None) -> Times:
    """Times where each slot is a partition of its own; `quantile` None takes the model's means."""
    execution, cycle = ask(latency, slots, quantile)
    safe = np.where(slots.mask, cycle, 1.0)
    capacity = np.where(slots.mask, MILLIS_PER_SECOND * slots.batch / safe, 0.0)
    return Times(execution, capacity, execution)


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
