"""A model's solo time over (share, batch): measured points kept, a smooth form between and beyond them.

Non-negative terms make the trend fall with the share and grow with the batch, however few the points are.
Kriging of the log residual carries what the trend misses from measured points to their surroundings. Two
causes have different reach: a batch's kernels, chosen for it, act at every share where the GPU's work counts;
steps of the GPU's waves or of the host end with the next shares. The nugget is not noise of a point, which is
kept, but steps that the points around it do not have.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controlplane.latency.fitting.points import FEWEST_SCORED, Curve, Points
from controlplane.latency.fitting.trend import Trend
from controlplane.latency.protocol import FloatArray

KERNELS_SD = 0.04
RESIDUAL_SD = 0.02
NUGGET_SD = 0.01
BATCH_SCALE = 2.0
SHARE_SCALE = 0.3
"""Priors of the residual: deviations of a batch's kernels, of steps and of what is next to nothing else, and
the reach in ln(batch) and ln(share).

One setting for all models, chosen on V100 models by leaving one out; errors move by less than 0.2 points when
each is halved or doubled.
"""
LOWEST_PERCENT = 1.0
FASTEST_MS = 1e-3
GRID_STEP_PERCENT = 2.5


@dataclass(frozen=True, slots=True)
class Kriged:
    """A fitted trend with its kriged residual. It is slow; `Surface` tabulates it."""

    points: Points
    trend: Trend
    weights: FloatArray
    inverse: FloatArray

    @staticmethod
    def fit(points: Points) -> Kriged:
        """Fit trend and residual on all points."""
        trend = Trend.fit(points)
        residual = np.log(points.time_ms / trend.at(points.percent, points.batch))
        covariance = _covariance(points, points, trend) + NUGGET_SD**2 * np.eye(residual.size)
        inverse = np.linalg.inv(covariance)
        return Kriged(points, trend, inverse @ residual, inverse)

    def at(self, percent: FloatArray, batch: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return times in ms and the expected relative deviation of a new measurement there, shapes (n,)."""
        trend = self.trend.at(percent, batch)
        cross = _covariance(Points(percent, batch, trend), self.points, self.trend)
        explained = np.sum((cross @ self.inverse) * cross, axis=1)
        prior = RESIDUAL_SD**2 + (KERNELS_SD * self.trend.work_part(percent, batch)) ** 2
        deviation = np.sqrt(np.maximum(prior - explained, 0.0) + NUGGET_SD**2)
        return trend * np.exp(cross @ self.weights), deviation


@dataclass(frozen=True, slots=True)
class Surface:
    """The solo time of one model as a table, monotone by construction.

    `percent` holds the ascending knots (K,), `time_ms` and `deviation` (batches 1..B, K); the deviation is 0
    at measured points: the caller adds the repeatability. Between knots
    time is log-linear in ln(share) and linear in batch; below the smallest knot it grows as 1 / share, above
    the largest batch in proportion to the batch.
    """

    percent: FloatArray
    time_ms: FloatArray
    deviation: FloatArray

    @staticmethod
    def fit(points: Points, largest_batch: int) -> Surface:
        """Tabulate batches 1 to `largest_batch`. Measured points are kept unless they contradict each other.

        They do where a smaller batch or a larger share was measured slower; such points move to the middle
        of the two tables that they allow.
        """
        ordered = _ordered(points)
        kriged = Kriged.fit(ordered)
        percent = knots(points.percent)
        batches = np.arange(1, largest_batch + 1, dtype=float)
        shape = (batches.size, percent.size)
        mean, deviation = kriged.at(np.tile(percent, batches.size), np.repeat(batches, percent.size))
        table, deviation = mean.reshape(shape), deviation.reshape(shape)
        inside = ordered.batch <= largest_batch
        rows = ordered.batch[inside].astype(int) - 1
        columns = np.searchsorted(percent, ordered.percent[inside])
        measured = ordered.time_ms[inside]
        deviation[rows, columns] = 0.0
        low, high = np.zeros(shape), np.full(shape, np.inf)
        low[rows, columns] = high[rows, columns] = measured
        table = np.clip(table, _rising(low), _rising(high, lower=True))
        table[rows, columns] = measured
        table = np.sqrt(_rising(table) * _rising(table, lower=True))
        return Surface(percent, table, deviation)

    @staticmethod
    def of_curve(curve: Curve, percent: FloatArray, largest_batch: int) -> Surface:
        """Tabulate a fitted form at the knots `percent`, with a deviation of 0."""
        batches = np.arange(1, largest_batch + 1, dtype=float)
        time = curve.at(np.tile(percent, batches.size), np.repeat(batches, percent.size))
        table = np.maximum(time.reshape(batches.size, percent.size), FASTEST_MS)
        return Surface(percent, table, np.zeros_like(table))

    def peak_rate(self) -> float:
        """The largest throughput of the whole GPU over all batches, in inferences per ms."""
        batches = np.arange(1, self.time_ms.shape[0] + 1)
        return float(np.max(batches / self.time_ms[:, -1]))


def knots(measured: FloatArray) -> FloatArray:
    """Return the percents to tabulate: an even grid and all measured ones, ascending."""
    grid = np.arange(GRID_STEP_PERCENT, 100.0 + 1e-9, GRID_STEP_PERCENT)
    percent: FloatArray = np.unique(np.concatenate([[LOWEST_PERCENT], grid, measured]))
    return percent


def left_out_scores(points: Points) -> tuple[FloatArray, FloatArray]:
    """Return the errors of `Kriged` on points left out one by one, while the trend stays.

    They are the errors divided by their expected deviation, and relative, both (n,) in the order of `points`
    and empty for fewer than four; positive is a time above its prediction. In closed form from the inverse
    covariance (Rasmussen and Williams, Eq 5.12): a refit without each point exaggerates the error of the few
    points that bound all others.
    """
    if points.time_ms.size < FEWEST_SCORED:
        return np.empty(0), np.empty(0)
    kriged = Kriged.fit(points)
    precision = np.diag(kriged.inverse)
    return kriged.weights / np.sqrt(precision), np.expm1(kriged.weights / precision)


def _covariance(a: Points, b: Points, trend: Trend) -> FloatArray:
    along_batch = np.abs(np.log(a.batch)[:, None] - np.log(b.batch)) / BATCH_SCALE
    along_share = (np.log(a.percent)[:, None] - np.log(b.percent)) / SHARE_SCALE
    work_a, work_b = (KERNELS_SD * trend.work_part(p.percent, p.batch) for p in (a, b))
    # Exponential, not Gaussian: the residual has steps, and a smoother kernel overshoots at each.
    steps = RESIDUAL_SD**2 * np.exp(-np.hypot(along_batch, along_share))
    covariance: FloatArray = steps + np.outer(work_a, work_b) * np.exp(-along_batch)
    return covariance


def _ordered(points: Points) -> Points:
    """Return the points with times that never fall with the batch nor grow with the share."""
    below = (points.batch[:, None] >= points.batch) & (points.percent[:, None] <= points.percent)
    upper = np.max(np.where(below, points.time_ms, 0.0), axis=1)
    lower = np.min(np.where(below.T, points.time_ms, np.inf), axis=1)
    return Points(points.percent, points.batch, np.sqrt(upper * lower))


def _rising(table: FloatArray, lower: bool = False) -> FloatArray:
    """Return the smallest table above `table` that grows with batch (rows) and falls with share (columns).

    With `lower`, the largest such table below it.
    """
    if lower:
        return np.minimum.accumulate(np.minimum.accumulate(table, axis=1)[::-1], axis=0)[::-1]
    return np.maximum.accumulate(np.maximum.accumulate(table[:, ::-1], axis=1), axis=0)[:, ::-1]
