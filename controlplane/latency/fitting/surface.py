"""A model's solo time over (share, batch): measured points kept, a smooth form between and beyond them.

The trend is iGniter's Eq 11 with its terms kept non-negative, one more for work that no share speeds up, and
the root of the batch for its square: kernels fill the GPU better the larger the batch.

    t(b, r) = (k2 b + k3 + k7 sqrt(b)) / (r + k4) + k5 + k6 b

Non-negative terms make it fall with the share and grow with the batch, however few the points are. Kriging of
the log residual carries what the trend misses (steps of the GPU's waves, a kernel chosen for one batch) from
measured points to their surroundings. The nugget is not noise of a point, which is kept, but steps that the
points around it do not have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from controlplane.latency.fitting.nonnegative import non_negative_fit
from controlplane.latency.protocol import FloatArray, IntArray

SHARE_OFFSETS = (0.0, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0)
"""Candidates of k4, in percent: the fit is linear for each, so a scan is exact and cannot diverge."""
RIDGE = 1e-3
"""On columns of norm 1: it only decides between terms that few points do not distinguish."""
RESIDUAL_SD = 0.02
NUGGET_SD = 0.01
BATCH_SCALE = 2.0
SHARE_SCALE = 0.3
"""Prior of the residual: deviations, and its reach in ln(batch) and ln(share).

One setting for all models, chosen on V100 by leaving one model out; errors move by less than 0.2 points when
each is halved or doubled.
"""
LOWEST_PERCENT = 1.0
FASTEST_MS = 1e-3
GRID_STEP_PERCENT = 2.5
FOLDS = 5
"""Of cross-validation."""
CORNER = 6.0
"""n: large is sharp. On points left out of A100 profiles 4, 6 and 10 miss by 3.5, 3.3 and 3.2 %."""
LARGEST_OFFSET = 20.0


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


@dataclass(frozen=True, slots=True)
class Trend:
    """Eq 11's shape with non-negative coefficients (k2, k3, k5, k6, k7) and k4."""

    share_offset: float
    coefficients: FloatArray

    @staticmethod
    def fit(points: Points) -> Trend:
        """Least squares of the relative residuals, by NNLS for each candidate k4."""
        return min((_fit_for(points, k4) for k4 in SHARE_OFFSETS), key=lambda candidate: candidate[0])[1]

    def at(self, percent: FloatArray, batch: FloatArray) -> FloatArray:
        """Time in ms, of the arrays' common shape."""
        value: FloatArray = _terms(percent, batch, self.share_offset) @ self.coefficients
        return value


@dataclass(frozen=True, slots=True)
class Roofline:
    """A trend for host-bound models: the slower of two linear terms, with a rounded corner.

        t(b, r) = (h^n + g^n)^(1/n),  h = k5 + k6 b,  g = (k2 b + k3) / (r + k4)

    h is the time of the host (launching kernels, one thread), which no share shortens, g that of the GPU.
    iGniter's Eq 11 adds them; where the host launches ahead of the GPU they overlap: the longer one counts.

    The coefficients (k2, k3, k5, k6) are non-negative: time falls with the share and grows with the batch.
    """

    share_offset: float
    coefficients: FloatArray

    @staticmethod
    def fit(points: Points) -> Roofline:
        """Least squares of log residuals; soft_l1 keeps single steps from bending the lines."""
        from scipy.optimize import least_squares

        work = float(np.median(points.time_ms * points.percent / points.batch))
        fastest = float(points.time_ms.min())
        scale = np.array([work, work, fastest, fastest / float(points.batch.max()), 1.0])

        def residual(x: FloatArray) -> FloatArray:
            value = _roof(points.percent, points.batch, x * scale)
            return np.asarray(np.log(value / points.time_ms))

        found = least_squares(
            residual,
            x0=np.array([0.8, 0.2, 0.9, 0.2, 0.5]),
            bounds=(np.array([1e-3, 0.0, 1e-3, 0.0, 0.0]), np.array([50.0, 50.0, 5.0, 50.0, LARGEST_OFFSET])),
            loss="soft_l1",
            f_scale=0.05,
            max_nfev=200,
        )
        solution = found.x * scale
        return Roofline(float(solution[4]), solution[:4])

    def at(self, percent: FloatArray, batch: FloatArray) -> FloatArray:
        """Time in ms; shapes (n,)."""
        return _roof(percent, batch, np.append(self.coefficients, self.share_offset))


@dataclass(frozen=True, slots=True)
class Kriged:
    """A fitted trend with its kriged residual. It is slow; `Surface` tabulates it."""

    points: Points
    trend: Curve
    weights: FloatArray
    inverse: FloatArray

    @staticmethod
    def fit(points: Points, fit_trend: FitCurve = Trend.fit) -> Kriged:
        """Fit trend and residual on all points."""
        trend = fit_trend(points)
        residual = np.log(points.time_ms / trend.at(points.percent, points.batch))
        covariance = _covariance(points.percent, points.batch, points) + NUGGET_SD**2 * np.eye(residual.size)
        inverse = np.linalg.inv(covariance)
        return Kriged(points, trend, inverse @ residual, inverse)

    def at(self, percent: FloatArray, batch: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return times in ms and the expected relative deviation of a new measurement there, shapes (n,)."""
        cross = _covariance(percent, batch, self.points)
        mean = self.trend.at(percent, batch) * np.exp(cross @ self.weights)
        explained = np.sum((cross @ self.inverse) * cross, axis=1)
        variance = np.maximum(RESIDUAL_SD**2 - explained, 0.0) + NUGGET_SD**2
        return mean, np.sqrt(variance)


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
    def fit(points: Points, largest_batch: int, fit_trend: FitCurve = Trend.fit) -> Surface:
        """Tabulate batches 1 to `largest_batch`. Measured points are kept unless they contradict each other.

        They do where a smaller batch or a larger share was measured slower; such points move to the middle
        of the two tables that they allow.
        """
        ordered = _ordered(points)
        kriged = Kriged.fit(ordered, fit_trend)
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


def left_out(count: int) -> list[tuple[IntArray, IntArray]]:
    """(left out, kept) positions of each fold of so many points; none for fewer than four.

    Points are sorted by percent, then batch: a stride leaves out every region evenly.
    """
    if count < 4:
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


def left_out_scores(points: Points, fit_trend: FitCurve = Trend.fit) -> tuple[FloatArray, float]:
    """Return the errors of `Kriged` on points left out.

    They are (errors divided by their expected deviation, shape (n,); the mean absolute relative error), empty
    and 0 for fewer than four points, from which none can be left out.
    """
    scores, errors = [np.empty(0)], [np.empty(0)]
    for out, kept in left_out(points.time_ms.size):
        kriged = Kriged.fit(points.take(kept), fit_trend)
        mean, deviation = kriged.at(points.percent[out], points.batch[out])
        scores.append((points.time_ms[out] / mean - 1.0) / deviation)
        errors.append(np.abs(mean / points.time_ms[out] - 1.0))
    error = np.concatenate(errors)
    return np.concatenate(scores), float(error.mean()) if error.size else 0.0


def _terms(percent: FloatArray, batch: FloatArray, offset: float) -> FloatArray:
    share = percent + offset
    return np.stack([batch / share, 1.0 / share, np.ones_like(batch), batch, np.sqrt(batch) / share], axis=-1)


def _covariance(percent: FloatArray, batch: FloatArray, points: Points) -> FloatArray:
    along_batch = (np.log(batch)[:, None] - np.log(points.batch)) / BATCH_SCALE
    along_share = (np.log(percent)[:, None] - np.log(points.percent)) / SHARE_SCALE
    # Exponential, not Gaussian: the residual has steps, and a smoother kernel overshoots at each.
    covariance: FloatArray = RESIDUAL_SD**2 * np.exp(-np.hypot(along_batch, along_share))
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


def _fit_for(points: Points, offset: float) -> tuple[float, Trend]:
    """(sum of squared log residuals, the best trend with this k4)."""
    columns = _terms(points.percent, points.batch, offset) / points.time_ms[:, None]
    scale = np.linalg.norm(columns, axis=0)
    rows = np.vstack([columns / scale, RIDGE * np.eye(columns.shape[1])])
    solution = non_negative_fit(rows, np.concatenate([np.ones(len(columns)), np.zeros(columns.shape[1])]))
    error = float(np.sum(np.log(np.maximum((columns / scale) @ solution, 1e-9)) ** 2))
    return error, Trend(offset, solution / scale)


def _roof(percent: FloatArray, batch: FloatArray, k: FloatArray) -> FloatArray:
    gpu = (k[0] * batch + k[1]) / (percent + k[4])
    host = k[2] + k[3] * batch
    larger = np.maximum(gpu, host)
    # The larger one taken out keeps the powers finite.
    value: FloatArray = larger * ((gpu / larger) ** CORNER + (host / larger) ** CORNER) ** (1.0 / CORNER)
    return value
