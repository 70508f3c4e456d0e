"""Partitions with several models: one executes at a time, so a GPU's partitions slow each other one by one.

A column's time is its longest beside any choice of one model from each other partition. In half-SLO, models
take turns: in a round every model of the partition executes one full batch, so a round is the sum of their
times, and a model's capacity its batch per round.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from controlplane.latency.protocol import BoolArray, FloatArray, LatencyModel, Slots
from controlplane.planners.evaluation.estimates import Times, take, times
from controlplane.planners.evaluation.layout import Layout


def layout_times(latency: LatencyModel, layout: Layout, quantile: float | None) -> Times:
    """What is expected of full batches with all neighbours busy; (GPUs, columns)."""
    together = layout.all_busy
    rows, masks = _choices(layout)
    if rows == list(range(len(layout.gpus))) and bool(np.all(masks == layout.mask)):
        return times(latency, together, quantile)
    chosen = take(together, np.array(rows))
    each = times(latency, Slots(chosen.model, chosen.batch, chosen.percent, masks, chosen.requests), quantile)
    execution, cycle = np.zeros(layout.mask.shape), np.zeros(layout.mask.shape)
    np.maximum.at(execution, rows, each.execution_ms)
    np.maximum.at(cycle, rows, _cycle_ms(each, chosen))
    round_ms, round_cycle_ms = _per_partition(layout, execution), _per_partition(layout, cycle)
    safe = np.where(layout.mask, round_cycle_ms, 1.0)
    capacity = np.where(layout.mask, 1000.0 * layout.batch / safe, 0.0)
    return Times(execution, capacity, round_ms)


def _choices(layout: Layout) -> tuple[list[int], BoolArray]:
    """One row for each choice of a model from every partition of a GPU: its row in the layout, its mask."""
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
    return rows, np.array(masks).reshape(len(rows), layout.mask.shape[1])


def _cycle_ms(each: Times, slots: Slots) -> FloatArray:
    busy = each.capacity_rps > 0
    return np.where(busy, 1000.0 * slots.batch / np.where(busy, each.capacity_rps, 1.0), 0.0)


def _per_partition(layout: Layout, value: FloatArray) -> FloatArray:
    """Sum over the columns of each partition, at every one of them."""
    same = layout.partition[:, :, None] == layout.partition[:, None, :]
    both = layout.mask[:, :, None] & layout.mask[:, None, :]
    return np.asarray(np.where(same & both, value[:, None, :], 0.0).sum(axis=2))
