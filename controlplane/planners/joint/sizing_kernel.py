"""The arithmetic of `sizing` between two questions to the latency model, compiled by numba.

Arrays with GPUs in rows have the shape (GPUs, slots); those of a tolerance table (items, shares).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from controlplane.latency.protocol import BoolArray, FloatArray, IntArray

FULL = 100.0 + 1e-9


@njit(cache=True)
def _total(group: IntArray, share: IntArray, percents: FloatArray) -> float:
    total = 0.0
    for j in range(group.size):
        if group[j] >= 0:
            total += percents[share[j]]
    return total


@njit(cache=True)
def begin(
    groups: IntArray,
    smallest: IntArray,
    percents: FloatArray,
    memory_mb: FloatArray,
    most_mb: float,
    share: IntArray,
    total: FloatArray,
    fits: BoolArray,
) -> None:
    """Give each item its smallest share alone and see what cannot fit already; fills the last three."""
    last = percents.size - 1
    for g in range(groups.shape[0]):
        needed = 0.0
        fits[g] = True
        for j in range(groups.shape[1]):
            item = groups[g, j]
            share[g, j] = 0 if item < 0 else min(smallest[item], last)
            if item >= 0:
                fits[g] &= smallest[item] <= last
                needed += memory_mb[item]
        total[g] = _total(groups[g], share[g], percents)
        fits[g] &= needed <= most_mb and total[g] <= FULL


@njit(cache=True)
def question(
    groups: IntArray, share: IntArray, live: IntArray, model: IntArray, batch: IntArray, percents: FloatArray
) -> tuple[IntArray, FloatArray, FloatArray, BoolArray]:
    """Model, batch, percent and mask of the rows `live`, as a latency model is asked."""
    shape = (live.size, groups.shape[1])
    models, mask = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.bool_)
    batches, percent = np.ones(shape), np.full(shape, 100.0)
    for n in range(live.size):
        for j in range(shape[1]):
            item = groups[live[n], j]
            if item >= 0:
                at = share[live[n], j]
                models[n, j], mask[n, j] = model[item], True
                batches[n, j], percent[n, j] = batch[item, at], percents[at]
    return models, batches, percent, mask


@njit(cache=True)
def rise(
    groups: IntArray,
    live: IntArray,
    slowed: tuple[FloatArray, FloatArray],
    alone: tuple[FloatArray, FloatArray],
    tolerance: tuple[FloatArray, FloatArray],
    model: IntArray,
    batch: IntArray,
    percents: FloatArray,
    share: IntArray,
    total: FloatArray,
    fits: BoolArray,
    slowdown: FloatArray,
) -> IntArray:
    """Raise every share that tolerates less than its slowdown now; returns the rows to ask about again.

    `slowed` answers for the rows `live`; it, `alone` (models, batches, shares) and `tolerance` are execution
    and cycle. The last four are changed.
    """
    last = percents.size - 1
    again = np.empty(live.size, dtype=np.int64)
    count = 0
    for n in range(live.size):
        g = live[n]
        rose = False
        for j in range(groups.shape[1]):
            item = groups[g, j]
            if item < 0:
                continue
            at = share[g, j]
            m, b = model[item], batch[item, at] - 1
            # Rounding may not raise a share.
            execution = slowed[0][n, j] / alone[0][m, b, at] * (1.0 - 1e-9)
            cycle = slowed[1][n, j] / alone[1][m, b, at] * (1.0 - 1e-9)
            slowdown[g, j] = max(execution, cycle)
            while at <= last and (tolerance[0][item, at] < execution or tolerance[1][item, at] < cycle):
                at += 1
                rose = True
            fits[g] &= at <= last
            share[g, j] = min(at, last)
        if rose:
            total[g] = _total(groups[g], share[g], percents)
            fits[g] &= total[g] <= FULL
            if fits[g]:
                again[count] = g
                count += 1
    return again[:count]
