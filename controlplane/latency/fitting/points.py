"""Measured solo times as arrays, errors of a form fitted on a part of them, non-negative least squares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from controlplane.latency.protocol import BoolArray, FloatArray, IntArray

FOLDS = 5
"""Of cross-validation."""
FEWEST_SCORED = 4
"""Points of which one can be left out."""


@dataclass(frozen=True, slots=True)
class Points:
    """Measured points of one quantity, each (percent, batch) once; arrays of shape (n,)."""

    percent: FloatArray
    batch: FloatArray
    time_ms: FloatArray

    @staticmethod
    def of(percent: Sequence[float], batch: Sequence[float], time_ms: Sequence[float]) -> Points:
        """Replace repeated (percent, batch) by the geometric mean of their times."""
        keys = np.stack([np.asarray(percent, dtype=float), np.asarray(batch, dtype=float)], axis=1)
        unique, inverse = np.unique(keys, axis=0, return_inverse=True)
        inverse = inverse.reshape(-1)
        total = np.bincount(inverse, weights=np.log(np.asarray(time_ms, dtype=float)))
        return Points(unique[:, 0], unique[:, 1], np.exp(total / np.bincount(inverse)))

    def take(self, index: IntArray) -> Points:
        """The points at these positions."""
        return Points(self.percent[index], self.batch[index], self.time_ms[index])


class Curve(Protocol):
    """A fitted form of the solo time."""

    def at(self, percent: FloatArray, batch: FloatArray) -> FloatArray:
        """Time in ms at each (percent, batch); shapes (n,)."""


FitCurve = Callable[[Points], Curve]


def left_out(count: int) -> list[tuple[IntArray, IntArray]]:
    """(left out, kept) positions of each fold of so many points; none for fewer than four.

    Points are sorted by percent, then batch: a stride leaves out every region evenly.
    """
    if count < FEWEST_SCORED:
        return []
    every, folds = np.arange(count), min(FOLDS, count)
    return [(every[f::folds], np.setdiff1d(every, every[f::folds])) for f in range(folds)]


def left_out_error(fit: FitCurve, points: Points) -> float:
    """Return the mean absolute relative error on points left out; 0 with too few points for that."""
    errors = [
        np.abs(fit(points.take(kept)).at(points.percent[out], points.batch[out]) / points.time_ms[out] - 1.0)
        for out, kept in left_out(points.time_ms.size)
    ]
    return float(np.mean(np.concatenate(errors))) if errors else 0.0


def non_negative_fit(columns: FloatArray, target: FloatArray) -> FloatArray:
    """Return the x >= 0 that minimises |columns x - target|; shapes (n, k) and (n,), x (k,).

    By the active-set method of Lawson and Hanson (1974, chapter 23), for few columns. scipy.optimize has it
    too, but takes a quarter of a second to import: a fifth of the processor time of a half-SLO plan of 12
    workloads.
    """
    count = columns.shape[1]
    tolerance = 10.0 * np.finfo(float).eps * np.abs(columns).sum(axis=0).max(initial=0.0) * columns.shape[0]
    found = np.zeros(count)
    free = np.zeros(count, dtype=bool)
    useless = np.zeros(count, dtype=bool)  # columns whose gradient is above the tolerance by rounding alone
    while True:
        gradient = columns.T @ (target - columns @ found)
        gradient[free | useless] = -np.inf
        entering = int(np.argmax(gradient)) if count else 0
        if not count or gradient[entering] <= tolerance * np.linalg.norm(target):
            return found
        free[entering] = True
        solution = _least_squares(columns, target, free)
        if solution[entering] <= 0.0:
            free[entering], useless[entering] = False, True
            continue
        while (falling := np.flatnonzero(free & (solution <= 0.0))).size:
            steps = found[falling] / (found[falling] - solution[falling])
            found += steps.min() * (solution - found)
            free[falling[np.argmin(steps)]] = False
            found[~free] = 0.0
            solution = _least_squares(columns, target, free)
        found = solution
        useless[:] = False


def _least_squares(columns: FloatArray, target: FloatArray, free: BoolArray) -> FloatArray:
    """Return the least-squares solution with the free variables, all others 0."""
    solution = np.zeros(free.size)
    solution[free] = np.linalg.lstsq(columns[:, free], target, rcond=None)[0]
    return solution
