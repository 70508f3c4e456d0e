"""Alg 1 on one GPU: each task in turn takes the batch and share that serve it best beside the others.

The efficiency of a task is E = b / (p T) (Eq 11), T = W + t (1 + I) with W the wait for a batch to fill and
behind other batches: Eq 6 as printed leaves the filling out. Constraint 14, b / T >= rate, is not stability;
the load rate t (1 + I) / b is bounded in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.latency.protocol import BoolArray, FloatArray, Slots
from controlplane.papers.latency_aware.latency import LatencyAware, filling_ms

LARGEST_LOAD = 0.85
SWEEPS = 6


@dataclass(frozen=True, slots=True)
class Task:
    """One inference service: `model` indexes the tables; rates in requests per second."""

    model: int
    rate_rps: float
    slo_ms: float
    memory_mb: float = 0.0


@dataclass(frozen=True, slots=True)
class Tables:
    """All configurations of all models: (models, batches, shares); `batch` (B, 1) and `percent` (1, P).

    `solo_ms` is a batch's time alone, `pressure` what it weighs on the neighbours' times (and its own).
    `most_percent` bounds the sum of the shares on a GPU, which the paper does not: beyond 100 the fitted
    times say nothing of shares that overlap.
    """

    batch: FloatArray
    percent: FloatArray
    solo_ms: FloatArray
    pressure: FloatArray
    most_percent: float = 100.0

    @staticmethod
    def of(model: LatencyAware, percents: Sequence[float], largest_batch: int) -> Tables:
        """Tabulate a fitted latency-aware model."""
        shape = len(model.models), largest_batch, len(percents)
        slots = Slots.every(len(model.models), largest_batch, percents)
        solo, _, _ = model.tables.look_up(slots.model, slots.batch, slots.percent)
        weight = model.contention.weight(slots, solo)
        batch, percent = np.arange(1.0, largest_batch + 1)[:, None], np.array(percents)[None, :]
        return Tables(batch, percent, solo.reshape(shape), weight.reshape(shape))


@dataclass(frozen=True, slots=True)
class Choice:
    """A task's configuration: indices of batch and share, its efficiency, and whether it keeps its SLO."""

    batch: int
    share: int
    efficiency: float
    holds: bool


def settle(tasks: Sequence[Task], tables: Tables) -> tuple[Choice, ...]:
    """Best responses from equal shares, the largest demand first, until none changes or after six sweeps."""
    if not tasks:
        return ()
    percents = tables.percent[0]
    equal = max(int(np.searchsorted(percents, tables.most_percent / len(tasks) + 1e-9)) - 1, 0)
    # Alg 1, line 1: the batch with the highest b / t.
    chosen = [
        (int(np.argmax(tables.batch[:, 0] / tables.solo_ms[task.model, :, equal])), equal) for task in tasks
    ]
    order = sorted(range(len(tasks)), key=lambda i: -demand(tasks[i], tables))
    for _ in range(SWEEPS):
        before = list(chosen)
        for i in order:
            free = tables.most_percent - sum(percents[p] for n, (_, p) in enumerate(chosen) if n != i)
            others = _weight_of_others(tasks, chosen, i, tables)
            chosen[i] = _response(tasks[i], tables, others, free)
        if chosen == before:
            break
    found = []
    for i, (b, p) in enumerate(chosen):
        efficiency, holds = _judged(tasks[i], tables, _weight_of_others(tasks, chosen, i, tables))
        found.append(Choice(b, p, float(efficiency[b, p]), bool(holds[b, p])))
    return tuple(found)


def demand(task: Task, tables: Tables) -> float:
    """The part of a GPU that the rate takes with the batch of the highest throughput."""
    return task.rate_rps / float((tables.batch[:, 0] / tables.solo_ms[task.model, :, -1]).max())


def _weight_of_others(
    tasks: Sequence[Task], chosen: Sequence[tuple[int, int]], own: int, tables: Tables
) -> float | None:
    """What the neighbours weigh; None where there is none: then I(X) is 0."""
    weights = [tables.pressure[tasks[n].model, b, p] for n, (b, p) in enumerate(chosen) if n != own]
    return float(sum(weights)) if weights else None


def _judged(task: Task, tables: Tables, others: float | None) -> tuple[FloatArray, BoolArray]:
    """Efficiency of every configuration, and which keep SLO and load; (batches, shares)."""
    solo = tables.solo_ms[task.model]
    taken = solo if others is None else solo * (1.0 + others + tables.pressure[task.model])
    rate = np.full_like(taken, task.rate_rps)
    batch = np.broadcast_to(tables.batch, taken.shape)
    whole = filling_ms(rate, batch, taken) + taken
    load = task.rate_rps / 1000.0 * taken / batch
    with np.errstate(divide="ignore"):
        efficiency = 1000.0 * batch / (tables.percent / 100.0 * whole)
    return efficiency, (whole <= task.slo_ms) & (load <= LARGEST_LOAD)


def _response(task: Task, tables: Tables, others: float | None, free: float) -> tuple[int, int]:
    """The most efficient configuration that holds within `free` percent, else the fastest there."""
    efficiency, holds = _judged(task, tables, others)
    room = np.broadcast_to(tables.percent <= free + 1e-9, efficiency.shape)
    value = np.where(holds & room, efficiency, -np.inf)
    if not np.any(np.isfinite(value)):
        largest = max(int(np.count_nonzero(room[0])) - 1, 0)
        throughput = tables.batch[:, 0] / tables.solo_ms[task.model, :, largest]
        return int(np.argmax(throughput)), largest
    b, p = np.unravel_index(int(np.argmax(value)), value.shape)
    return int(b), int(p)
