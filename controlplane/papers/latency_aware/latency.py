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
from controlplane.latency.fitting.nonnegative import non_negative_fit
from controlplane.latency.fitting.published import (
    Colocated,
    Published,
    fit_by_pressure,
    neighbours,
    sum_of_others,
)
from controlplane.latency.fitting.tables import Pressure, Tables
from controlplane.latency.protocol import FloatArray, Slots
from controlplane.papers.latency_aware.curve import Exponential

NAME = "latency-aware"
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
