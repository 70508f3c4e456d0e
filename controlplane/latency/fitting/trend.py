"""The trend of a model's solo time: work that a share speeds up, and a floor that it does not.

    t(b, r) = (g^n + h^n)^(1/n),   g = (k2 b + k3) / r + k6 b

g is the GPU's time, h that of the host, which launches kernels on one thread however large the share is. The
overlap n says how the two add up: one after the other with n = 1 (iGniter's Eq 11 without its square), the
longer of both with a large n, where the host launches ahead of the GPU.

Eleven points seldom say which n a model has, and a choice would let predictions jump where one point moves.
So the trend is the geometric mean of a fit for each n, weighted by how well each explains the points.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controlplane.latency.fitting.points import Points, non_negative_fit
from controlplane.latency.protocol import FloatArray

OVERLAPS = (1.0, 2.0, 4.0, 8.0)
RIDGE = 0.1
"""On k3 and k6, each over its scale: without evidence the work is in proportion to batch over share."""
STEP_ERROR = 0.05
"""Relative errors above it count less than their square: steps of the GPU must not bend the law."""
NOISE_SD = 0.04
"""Of the weights: below it one fit is not better than another."""
LEAST = 1e-6
"""The smallest work and floor, over their scales: the time's logarithm stays finite."""
START = np.array([0.8, 0.1, 0.05, 0.8])
ITERATIONS = 40
FIRST_DAMPING, LAST_DAMPING = 1e-2, 1e3


@dataclass(frozen=True, slots=True)
class Trend:
    """Fits for each overlap: `coefficients` (overlaps, 4) are k2, k3, k6 and h; `weight` (overlaps,)."""

    coefficients: FloatArray
    weight: FloatArray

    @staticmethod
    def fit(points: Points) -> Trend:
        """Fit each overlap by damped Gauss-Newton steps with non-negative coefficients."""
        work = float(np.median(points.time_ms * points.percent / points.batch))
        fastest = float(points.time_ms.min())
        scale = np.array([work, work, fastest / float(points.batch.max()), fastest])
        found = [_fit(points, overlap, scale) for overlap in OVERLAPS]
        count = points.time_ms.size
        # The likelihood of normal errors whose variance is unknown.
        log_weight = -0.5 * count * np.log(np.array([cost for cost, _ in found]) + count * NOISE_SD**2)
        weight = np.exp(log_weight - log_weight.max())
        return Trend(np.stack([k for _, k in found]), weight / weight.sum())

    def at(self, percent: FloatArray, batch: FloatArray) -> FloatArray:
        """Time in ms; shapes (n,)."""
        each = zip(OVERLAPS, self.coefficients, self.weight, strict=True)
        time: FloatArray = np.exp(sum(w * _law(percent, batch, k, n)[0] for n, k, w in each))
        return time

    def work_part(self, percent: FloatArray, batch: FloatArray) -> FloatArray:
        """Return by which part of a change of the batch's work the time changes, 0 at the floor; (n,)."""
        each = zip(OVERLAPS, self.coefficients, self.weight, strict=True)
        part: FloatArray = sum(
            (w * (_law(percent, batch, k, n)[1][:, :2] @ k[:2]) for n, k, w in each), np.zeros_like(batch)
        )
        return part


def _law(
    percent: FloatArray, batch: FloatArray, k: FloatArray, overlap: float
) -> tuple[FloatArray, FloatArray]:
    """Ln t, shape (n,), and its derivatives by the coefficients, (n, 4)."""
    gpu, host = (k[0] * batch + k[1]) / percent + k[2] * batch, k[3]
    longer = np.maximum(gpu, host)
    # The longer one taken out keeps the powers finite.
    gpu_power, host_power = (gpu / longer) ** overlap, (host / longer) ** overlap
    both = gpu_power + host_power
    by_gpu, by_host = gpu_power / both / gpu, host_power / both / host
    slopes = np.stack([by_gpu * batch / percent, by_gpu / percent, by_gpu * batch, by_host], axis=1)
    return np.log(longer) + np.log(both) / overlap, slopes


def _fit(points: Points, overlap: float, scale: FloatArray) -> tuple[float, FloatArray]:
    """(sum of the errors' penalties, the coefficients) with this overlap."""
    log_time = np.log(points.time_ms)
    ridge = np.diag([0.0, RIDGE, RIDGE, 0.0])

    def residuals(x: FloatArray) -> tuple[float, FloatArray, FloatArray]:
        log_fitted, slopes = _law(points.percent, points.batch, x * scale, overlap)
        error = log_fitted - log_time
        # soft l1: a square for small errors, a line for large ones.
        penalty = 2.0 * STEP_ERROR**2 * (np.hypot(1.0, error / STEP_ERROR) - 1.0)
        return float(penalty.sum() + np.sum((ridge @ x) ** 2)), error, slopes * scale

    x, damping = START, FIRST_DAMPING
    cost, error, slopes = residuals(x)
    for _ in range(ITERATIONS):
        weight = np.hypot(1.0, error / STEP_ERROR) ** -0.5
        rows = np.vstack([slopes * weight[:, None], ridge, damping * np.eye(4)])
        target = np.concatenate([(slopes @ x - error) * weight, np.zeros(4), damping * x])
        tried = np.maximum(non_negative_fit(rows, target), (LEAST, 0.0, 0.0, LEAST))
        tried_cost, tried_error, tried_slopes = residuals(tried)
        gain = cost - tried_cost
        if gain <= 0.0:
            damping *= 6.0
            if damping > LAST_DAMPING:
                break
            continue
        x, cost, error, slopes, damping = tried, tried_cost, tried_error, tried_slopes, damping / 4.0
        if gain < 1e-6 * cost:
            break
    return cost, x * scale
