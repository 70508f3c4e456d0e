"""Measured solo times as arrays, and the errors of a form fitted on a part of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from controlplane.latency.protocol import FloatArray, IntArray

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
