"""What all latency models share: checking a question, and dressing execution times as an `Estimate`."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from controlplane.domain.device import Device
from controlplane.domain.errors import InputError
from controlplane.domain.profile import Profile
from controlplane.latency.protocol import Estimate, FloatArray, Slots

STANDARD_NORMAL = NormalDist()


def check_question(slots: Slots, model_count: int, quantile: float) -> None:
    """Raise InputError where `Slots.model` names no model or `quantile` is outside [0.5, 1)."""
    if not 0.5 <= quantile < 1.0:
        raise InputError(f"must be at least 0.5 and below 1, not {quantile}", field="quantile")
    if slots.model.size and int(slots.model.max()) >= model_count:
        raise InputError(
            f"index {int(slots.model.max())} names no model; there are {model_count}", field="model"
        )


def check_profiles(profiles: Mapping[str, Profile], device: Device) -> None:
    """Raise InputError for no profiles, profiles of another device, or a profile without points."""
    if not profiles:
        raise InputError(f"there is none on {device.name}; measure one with `ctl profile`", field="profiles")
    for name, profile in profiles.items():
        if profile.device != device.name:
            raise InputError(f"{name} was measured on {profile.device}, not on {device.name}", field="device")
        if not profile.points:
            raise InputError(f"{name} has no measured point; run `ctl profile {name}`", field="points")


@dataclass(frozen=True, slots=True)
class PowerModel:
    """Board power from throughput (iGniter Eq 9): idle plus, for each model, a line in its rate.

    `slope_w` and `offset_w` have the shape (models,); `cap_w` is the board's limit. All 0 where the
    device has no power coefficients; the answer is then 0.
    """

    idle_w: float
    cap_w: float
    slope_w: FloatArray
    offset_w: FloatArray

    @staticmethod
    def of(profiles: Sequence[Profile], device: Device) -> PowerModel:
        """Read from the device's `p_idle`, `P` and the profiles' `alpha_power`, `beta_power`."""
        fits = [p.fits.get("igniter", {}) for p in profiles]
        return PowerModel(
            idle_w=device.hardware.get("p_idle", 0.0),
            cap_w=device.hardware.get("P", np.inf),
            slope_w=np.array([f.get("alpha_power", 0.0) for f in fits]),
            offset_w=np.array([f.get("beta_power", 0.0) for f in fits]),
        )

    def watts(self, slots: Slots, cycle_ms: FloatArray) -> FloatArray:
        """Power of each GPU, shape (GPUs,), capped at the board's limit."""
        if self.idle_w == 0.0:
            return np.zeros(slots.mask.shape[0])
        rate = np.where(slots.mask, 1000.0 * slots.batch / np.where(cycle_ms > 0, cycle_ms, 1.0), 0.0)
        drawn = np.where(slots.mask, self.slope_w[slots.model] * rate + self.offset_w[slots.model], 0.0)
        capped: FloatArray = np.minimum(self.idle_w + drawn.sum(axis=1), self.cap_w)
        return capped


def dress(
    slots: Slots,
    execution_ms: FloatArray,
    cycle_ms: FloatArray,
    margin: FloatArray | float,
    power: PowerModel,
) -> Estimate:
    """An `Estimate` from times of present slots; `margin` is the relative distance to the upper quantile."""
    execution = np.where(slots.mask, execution_ms, 0.0)
    cycle = np.where(slots.mask, np.minimum(cycle_ms, execution_ms), 0.0)
    upper = 1.0 + np.maximum(margin, 0.0)
    return Estimate(
        execution_ms=execution,
        execution_upper_ms=execution * upper,
        cycle_ms=cycle,
        cycle_upper_ms=cycle * upper,
        power_w=power.watts(slots, cycle),
    )


def normal_margin(relative_error: FloatArray, quantile: float) -> FloatArray:
    """The upper quantile's relative distance when only a mean absolute relative error is known.

    For a normal error E|e| = sigma * sqrt(2 / pi); hence sigma = 1.2533 * MAPE.
    """
    margin: FloatArray = np.sqrt(np.pi / 2.0) * relative_error * STANDARD_NORMAL.inv_cdf(quantile)
    return margin


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Errors seen on points left out, each divided by the deviation that was expected of it.

    `sorted_scores` is ascending; positive is a measurement above its prediction.
    """

    sorted_scores: FloatArray

    @staticmethod
    def of(scores: Sequence[float] | FloatArray) -> Scores:
        """Keep the finite ones."""
        values = np.asarray(scores, dtype=np.float64)
        return Scores(np.sort(values[np.isfinite(values)]))

    @functools.lru_cache(maxsize=256)  # noqa: B019 - a planner asks thousands of times, of a few scores
    def at(self, quantile: float) -> float:
        """The factor on the expected deviation that covers `quantile` of new points, never negative.

        The conformal rank ceil((n + 1) q) where there are enough scores for it; a normal of the scores'
        root mean square, widened for its few samples, where there are not; a standard normal for none.
        """
        n = self.sorted_scores.size
        rank = int(np.ceil((n + 1) * quantile))
        if n >= 20 and rank <= n:
            return max(float(self.sorted_scores[rank - 1]), 0.0)
        if n < 2:
            return STANDARD_NORMAL.inv_cdf(quantile)
        rms = float(np.sqrt(np.mean(self.sorted_scores**2)))
        return float(max(STANDARD_NORMAL.inv_cdf(quantile) * rms * (1.0 + 1.0 / np.sqrt(n)), 0.0))
