"""The latency-aware scheduler's model (KAIST), Eq 4-8, with a well-conditioned fit.

    g(b) = (b + alpha) e^-(beta b + gamma) + delta b + omega                (4)
    t(b, p) = g(b) e^(xi (1 - p)^kappa), p in (0, 1]                        (5)
    Wq = lambda t^2 / (2 (b - lambda t))                                    (6)
    T = Wq + t (1 + I(X))                                                   (7)
    h = b / T                                                               (8)

e^-gamma is an amplitude and not identifiable as beta goes to 0; the same curves are (c1 b + c0) e^(-beta b) +
delta b + omega with non-negative coefficients, linear for each beta. I(X) is a weighted sum of the L2 and
DRAM utilisation of all tasks; the weights are fitted on co-location points.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from controlplane.domain.device import Device
from controlplane.domain.profile import Profile
from controlplane.latency.fitting.points import Points, non_negative_fit
from controlplane.latency.fitting.published import (
    Colocated,
    Published,
    fit_by_pressure,
    neighbours,
    sum_of_others,
)
from controlplane.latency.fitting.tables import Pressure, Tables
from controlplane.latency.protocol import FloatArray, Slots

NAME = "latency-aware"
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


SOLO_FORM = Exponential.fit


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """I(X): weights (L2, DRAM) on the utilisation of all tasks together, per percent."""

    pressure: Pressure
    weights: FloatArray

    @staticmethod
    def fit(pressure: Pressure, tables: Tables, colocated: Colocated) -> SharedMemory:
        """Fit by non-negative least squares on the co-location points; without points the weights are 0."""
        slots = colocated.slots
        if not colocated.measured_ms.size:
            return SharedMemory(pressure, np.zeros(2))
        alone, _, _ = tables.look_up(slots.model, slots.batch, slots.percent)
        columns = np.stack([total[:, 0] for total in _together(pressure, slots, alone)], axis=-1)
        slowdown = colocated.measured_ms / alone[:, 0] - 1.0
        return SharedMemory(pressure, non_negative_fit(columns, np.maximum(slowdown, 0.0)))

    def slowdown(self, slots: Slots, alone_ms: FloatArray) -> FloatArray:
        """See `Contention.slowdown`."""
        l2, dram = _together(self.pressure, slots, alone_ms)
        return np.where(neighbours(slots) > 0, self.weights[0] * l2 + self.weights[1] * dram, 0.0)

    def weight(self, slots: Slots, alone_ms: FloatArray) -> FloatArray:
        """Return what each task adds to I(X) of all tasks on its GPU, its own included."""
        l2, dram = self.pressure.at(slots.model, slots.batch, alone_ms)
        weight: FloatArray = self.weights[0] * l2 + self.weights[1] * dram
        return weight


@dataclass(frozen=True, slots=True)
class LatencyAware(Published):
    """Eq 5 by tables, and I(X)."""

    contention: SharedMemory


def fit(profiles: Mapping[str, Profile], device: Device) -> LatencyAware:
    """Fit all models of one device. Raises InputError (see `check_profiles`)."""
    return fit_by_pressure(LatencyAware, NAME, profiles, device, SOLO_FORM, SharedMemory.fit)


def filling_ms(rate_rps: FloatArray, batch: FloatArray, time_ms: FloatArray) -> FloatArray:
    """Mean wait where full batches arrive as E_b/D/1, interference inside `time_ms`; infinite at overload.

    (b - 1) / (2 lambda) for the batch to fill and u t / (2 b (1 - u)) behind others, u = lambda t / b.
    """
    rate = rate_rps / 1000.0
    load = rate * time_ms / batch
    with np.errstate(divide="ignore"):
        behind = load * time_ms / (2.0 * batch * np.maximum(1.0 - load, 0.0))
    return np.where(load < 1, (batch - 1.0) / (2.0 * rate) + behind, np.inf)


def _together(pressure: Pressure, slots: Slots, alone_ms: FloatArray) -> tuple[FloatArray, FloatArray]:
    l2, dram = pressure.at(slots.model, slots.batch, alone_ms)
    return l2 + sum_of_others(slots, l2), dram + sum_of_others(slots, dram)
