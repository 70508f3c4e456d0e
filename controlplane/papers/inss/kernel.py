"""Goodput of assignments, in compiled code: training and search evaluate millions of them.

Eq 2 with its first case corrected: behind G queued requests the next one is the W-th, W = G + 1, and leaves
with the n-th batch, n = ceil(W / b), when the batch before is done and its own has filled:

    T = max(exec + (n - 1) t, (n b - W) / lambda) + t,   exec <= t

Once the backlog is gone, W = 1 is the worst place in a batch. Both must hold. A queue whose capacity is below
its rate never settles: T is infinite.
"""

from __future__ import annotations

import math

import numpy as np

from controlplane.kernels import kernel
from controlplane.latency.protocol import FloatArray, IntArray
from controlplane.papers.inss.problem import Problem, Tables


@kernel
def task_latency_ms(t: float, batch: int, rate_rps: float, backlog: float) -> float:
    """Return the corrected Eq 2 with a batch just begun (exec = t), `t` in ms; see the module."""
    gap = 1000.0 / rate_rps
    place = backlog + 1.0
    batches = math.ceil(place / batch)
    behind = max(batches * t, (batches * batch - place) * gap)
    steady = max(t, (batch - 1) * gap)
    return max(behind, steady) + t


@kernel
def scheduling_ms(schedule: FloatArray, kernels: float, busy: float) -> float:
    """Return int n_k of a model among so many busy ones on a GPU: 0 for one alone."""
    if busy < 2:
        return 0.0
    delay: float = max(schedule[0] * busy + schedule[1], 0.0) * kernels
    return delay


@kernel
def best_batch(
    tables: Tables,
    m: int,
    t: int,
    u: int,
    others: float,
    busy: float,
    rate_rps: float,
    slo_ms: float,
    backlog: float,
) -> tuple[int, float, float]:
    """Solve problem (4) by enumeration: the batch of the largest capacity that holds (4b) and (4c).

    Of model m with u + 1 units of a GPU of type t. `others` is the neighbours' L2 utilisation in percent,
    `busy` the number of models there with this one. Returns batch, latency in ms, capacity in requests per
    second. Where no batch holds, the one with the least latency, or the largest capacity.
    """
    slowed = tables.cache[m, t] * max(others, 0.0)
    delay_ms = scheduling_ms(tables.schedule[t], tables.kernels[m, t], busy)
    alone_ms, cycle_ms = tables.alone_ms[m, t, u], tables.cycle_ms[m, t, u]
    running_ms = tables.running_ms[m, t, u]
    best, best_latency, best_capacity, held = 1, math.inf, 0.0, False
    for k in range(alone_ms.size):
        if alone_ms[k] == math.inf:
            break
        taken_ms = alone_ms[k] + running_ms[k] * slowed + delay_ms
        capacity = 1000.0 * (k + 1) * alone_ms[k] / (cycle_ms[k] * taken_ms)
        latency = math.inf
        if capacity >= rate_rps:
            latency = task_latency_ms(taken_ms, k + 1, rate_rps, backlog)
        holds = latency <= slo_ms
        if holds != held:
            better = holds
        elif holds or latency == best_latency:
            better = capacity > best_capacity
        else:
            better = latency < best_latency
        if better:
            best, best_latency, best_capacity, held = k + 1, latency, capacity, holds
    return best, best_latency, best_capacity


@kernel
def paper_batch(
    tables: Tables,
    m: int,
    t: int,
    u: int,
    others: float,
    busy: float,
    rate_rps: float,
    slo_ms: float,
    backlog: float,
) -> tuple[int, float, float]:
    """Alg 1 as its text describes it: a binary search, as if latency and capacity rose with the batch.

    Too late: smaller batches; all constraints hold: keep it and try larger ones; too little capacity alone:
    larger ones (the printed `break` would end there). Arguments and answer as of `best_batch`; without a
    batch that holds, batch 1 and an infinite latency.
    """
    slowed = tables.cache[m, t] * max(others, 0.0)
    delay_ms = scheduling_ms(tables.schedule[t], tables.kernels[m, t], busy)
    best, best_latency, best_capacity = 1, math.inf, 0.0
    low, high = 1, tables.alone_ms.shape[3]
    while low <= high:
        middle = (low + high) // 2
        alone_ms = tables.alone_ms[m, t, u, middle - 1]
        taken_ms = alone_ms + tables.running_ms[m, t, u, middle - 1] * slowed + delay_ms
        latency = task_latency_ms(taken_ms, middle, rate_rps, backlog)
        if not latency <= slo_ms:
            high = middle - 1
            continue
        capacity = 1000.0 * middle * alone_ms / (tables.cycle_ms[m, t, u, middle - 1] * taken_ms)
        if capacity >= rate_rps:
            best, best_latency, best_capacity = middle, latency, capacity
        low = middle + 1
    return best, best_latency, best_capacity


@kernel
def outcomes(
    gpu: IntArray,
    unit: IntArray,
    problem: Problem,
    by_paper: bool,
    batch: IntArray,
    latency_ms: FloatArray,
    capacity_rps: FloatArray,
) -> None:
    """Fill the last three (M, n) for assignments `gpu`, `unit` (M, n), unit - 1 being an index into the grid.

    `problem` is stacked, with one row for all assignments or one each.
    """
    tables, model, type_of = problem.tables, problem.model, problem.type_of
    count, width = gpu.shape
    pressed, busy = np.empty(type_of.shape[1]), np.empty(type_of.shape[1])
    for a in range(count):
        p = a if model.shape[0] > 1 else 0
        pressed[:] = 0.0
        busy[:] = 0.0
        for i in range(width):
            k = gpu[a, i]
            if k >= 0:
                pressed[k] += tables.l2_percent[model[p, i], type_of[p, k], unit[a, i] - 1]
                busy[k] += 1.0
        for i in range(width):
            k = gpu[a, i]
            if k < 0:
                batch[a, i], latency_ms[a, i], capacity_rps[a, i] = 0, math.inf, 0.0
                continue
            m, t, u = model[p, i], type_of[p, k], unit[a, i] - 1
            others = pressed[k] - tables.l2_percent[m, t, u]
            rate, slo, backlog = problem.rates_rps[p, i], problem.slos_ms[p, i], problem.backlog[p, i]
            if by_paper:
                found = paper_batch(tables, m, t, u, others, busy[k], rate, slo, backlog)
            else:
                found = best_batch(tables, m, t, u, others, busy[k], rate, slo, backlog)
            batch[a, i], latency_ms[a, i], capacity_rps[a, i] = found
