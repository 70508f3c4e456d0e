"""Partitions with several models: one executes at a time, so a GPU's partitions slow each other one by one.

A column's time is its longest beside any choice of one model from each other partition.

Half-SLO: in a round every model of the partition executes one full batch, so a round is the sum of their
times, and a model's capacity its batch per round. P99: the waits are bounds for every order of the models
(`latency.queueing.turns`) or, where the plan relies on the gateway's, for that one
(`latency.queueing.precedence`), and a model's capacity is what it would serve if all rates of its partition
grew alike until full batches fill it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from controlplane.domain.plan import Rule
from controlplane.domain.units import MILLIS_PER_SECOND
from controlplane.latency.protocol import BoolArray, FloatArray, IntArray, LatencyModel, Slots
from controlplane.planning.judge.estimates import Times, ask, service_curves, take
from controlplane.planning.judge.layout import Layout
from controlplane.planning.judge.queues import JITTER_P99, Queues, Waits


def layout_times(latency: LatencyModel, layout: Layout, rule: Rule, quantile: float | None) -> Times:
    """What is expected of full batches with all neighbours busy; (GPUs, columns)."""
    execution, cycle = full_batches(latency, layout, quantile)
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


def full_batches(
    latency: LatencyModel, layout: Layout, quantile: float | None
) -> tuple[FloatArray, FloatArray]:
    """Execution and cycle in ms of every column's full batch; (GPUs, columns), 0 where there is none."""
    rows, slots = _choices(layout)
    execution, cycle = np.zeros(layout.mask.shape), np.zeros(layout.mask.shape)
    execution_each, cycle_each = ask(latency, slots, quantile)
    np.maximum.at(execution, rows, np.where(slots.mask, execution_each, 0.0))
    np.maximum.at(cycle, rows, np.where(slots.mask, cycle_each, 0.0))
    return execution, cycle


def layout_curves(latency: LatencyModel, layout: Layout, quantile: float | None) -> list[FloatArray]:
    """Times in ms of 1, 2, ... requests in a batch of each column, in the order of `Layout.columns`."""
    rows, slots = _choices(layout)
    at, columns = np.nonzero(slots.mask)
    each = service_curves(latency, slots, at, columns, quantile, layout.client_batch[rows])
    curves = np.zeros((*layout.mask.shape, each.shape[1]))
    np.maximum.at(curves, (rows[at], columns), each)
    return [curves[here][: layout.requests(*here)] for here, _ in layout.columns()]


def turn_waits(
    layout: Layout, curves: Sequence[FloatArray], queues: Queues
) -> Iterator[tuple[list[tuple[int, int]], Waits]]:
    """The columns of each partition with several models, and their waits.

    `curves` is from `layout_curves`. Constant arrivals count as Poisson ones, which come in thicker clumps;
    of bursty arrivals no bound is known, so their waits are infinite.
    """
    partitions: dict[tuple[int, int], list[int]] = {}
    columns = layout.columns()
    for n, ((i, _), queue) in enumerate(columns):
        if queue.partition.turns:
            partitions.setdefault((i, queue.index), []).append(n)
    for own in partitions.values():
        places = [columns[n][0] for n in own]
        rate = [float(layout.rate[at] / layout.client_batch[at]) for at in places]
        if any(layout.dispersion[at] > 1.0 for at in places):
            unknown = np.full(len(own), np.inf)
            yield places, Waits(unknown, unknown)
            continue
        served = [columns[n][1].served for n in own]
        if columns[own[0]][1].partition.ordered:
            each_ms = [
                float(curves[n][-1] + layout.turnaround_ms[at]) for at, n in zip(places, own, strict=True)
            ]
            bound = queues.bound_order(rate, each_ms, [model.rank or 0 for model in served])
        else:
            bound = queues.bound_turns(rate, [curves[n] for n in own])
        frontend_ms = np.array([layout.frontend_ms[at] for at in places])
        spread_ms = max(layout.jitter[at] * curves[n][-1] for at, n in zip(places, own, strict=True))
        yield places, Waits(bound.mean_ms + frontend_ms, bound.p99_ms + frontend_ms + JITTER_P99 * spread_ms)


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
    same = layout.partition[:, :, None] == layout.partition[:, None, :]
    both = layout.mask[:, :, None] & layout.mask[:, None, :]
    return np.asarray(np.where(same & both, value[:, None, :], 0.0).sum(axis=2))
