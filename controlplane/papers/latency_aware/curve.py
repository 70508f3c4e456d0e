"""Eq 4 and 5 of the latency-aware scheduler: the solo time as an exponential of batch and share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controlplane.latency.fitting.points import Points
from controlplane.latency.protocol import FloatArray

XI_LIMIT = 12.0
KAPPAS = np.geomspace(0.2, 40.0, 10)
DECAYS = np.geomspace(0.02, 6.0, 8)
"""Candidates of beta times the largest batch; below, the exponential is a line, above, it is a step."""
SWEEPS = 3
RIDGE = 1e-3


@dataclass(frozen=True, slots=True)
class Exponential:
    """Fitted coefficients: `amplitude` is (c1, c0, delta, omega)."""

    beta: float
    amplitude: FloatArray
    xi: float
    kappa: float

    @staticmethod
    def fit(points: Points) -> Exponential:
        """Fit g and the share's factor in turn, each with the other fixed, on log residuals."""
        from scipy.optimize import minimize_scalar

        best = min((_fit_for(points, float(k)) for k in KAPPAS), key=lambda candidate: candidate[0])
        refined = minimize_scalar(
            lambda log_kappa: _fit_for(points, float(np.exp(log_kappa)))[0],
            bounds=np.log([max(best[1].kappa / 1.5, KAPPAS[0]), min(best[1].kappa * 1.5, KAPPAS[-1])]),
            method="bounded",
            options={"maxiter": 12},
        )
        candidate = _fit_for(points, float(np.exp(refined.x)))
        return candidate[1] if candidate[0] < best[0] else best[1]

    def at(self, percent: FloatArray, batch: FloatArray) -> FloatArray:
        """Eq 5, in ms."""
        share = np.exp(self.xi * (1.0 - percent / 100.0) ** self.kappa)
        time: FloatArray = _columns(batch, self.beta) @ self.amplitude * share
        return time


def _columns(batch: FloatArray, beta: float) -> FloatArray:
    decay = np.exp(-beta * batch)
    return np.stack([batch * decay, decay, batch, np.ones_like(batch)], axis=-1)


def _fit_for(points: Points, kappa: float) -> tuple[float, Exponential]:
    """(sum of squared log residuals, the best curve with this kappa)."""
    away = (1.0 - points.percent / 100.0) ** kappa
    largest = float(points.batch.max())
    # The share law's slope at the start: a straight fit of ln t on ln b and (1 - p)^kappa.
    plane = np.stack([np.ones_like(away), np.log(points.batch), away], axis=-1)
    xi = float(np.clip(np.linalg.lstsq(plane, np.log(points.time_ms), rcond=None)[0][2], 0.0, XI_LIMIT))
    best = (np.inf, Exponential(0.0, np.zeros(4), xi, kappa))
    for _ in range(SWEEPS):
        whole = points.time_ms * np.exp(-xi * away)
        error, beta, amplitude = min(
            (_fit_whole(points.batch, whole, float(beta)) for beta in DECAYS / largest),
            key=lambda found: found[0],
        )
        if error < best[0]:
            best = (error, Exponential(beta, amplitude, xi, kappa))
        left = np.log(points.time_ms / np.maximum(_columns(points.batch, beta) @ amplitude, 1e-9))
        spread = float(away @ away)
        xi = float(np.clip(left @ away / spread, 0.0, XI_LIMIT)) if spread > 0 else 0.0
    return best


def _fit_whole(batch: FloatArray, whole: FloatArray, beta: float) -> tuple[float, float, FloatArray]:
    """(sum of squared log residuals, beta, the amplitudes) of g on times at the whole GPU."""
    columns = _columns(batch, beta)
    amplitude = _relative_nnls(columns, whole)
    residual = np.log(np.maximum(columns @ amplitude, 1e-9) / whole)
    return float(residual @ residual), beta, amplitude


def _relative_nnls(columns: FloatArray, target: FloatArray) -> FloatArray:
    # A fit solves hundreds of these and loads SciPy for its last step anyway: SciPy's is 20 times as fast.
    from scipy.optimize import nnls

    rows = columns / target[:, None]
    scale = np.linalg.norm(rows, axis=0)
    system = np.vstack([rows / scale, RIDGE * np.eye(columns.shape[1])])
    solution = nnls(system, np.concatenate([np.ones(len(rows)), np.zeros(columns.shape[1])]))[0]
    amplitude: FloatArray = solution / scale
    return amplitude
