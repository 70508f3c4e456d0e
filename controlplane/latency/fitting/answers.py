"""Checks of input, estimates, and what their upper quantiles rest on: what all latency models share."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from controlplane.domain.device import Device, ShareKind
from controlplane.domain.errors import InputError
from controlplane.domain.profile import Profile, Repeat
from controlplane.latency.protocol import Estimate, FloatArray, Slots

STANDARD_NORMAL = NormalDist()
USUAL_ALONE: Mapping[ShareKind, float] = {ShareKind.CPU_QUOTA: 0.05}
"""For a device profiled once: the largest among three sessions of the sample models on a virtual machine
(docs/results/latency.md). Three are too few for their mean to be a floor."""
USUAL_ALONE_GPU = 0.004
"""Two runs of the same points on a V100 (catalogue/v100/repeats.csv)."""
USUAL_WEIGHT = 5
"""The number of repeats that the usual value counts for."""


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
    """Board power from throughput (iGniter Eq 9): idle power plus a linear term for each model's rate.

    `slope_w` and `offset_w` have the shape (models,); `cap_w` is the board's limit. All are 0 where the
    device has no power coefficients; the power is then 0.
    """

    idle_w: float
    cap_w: float
    slope_w: FloatArray
    offset_w: FloatArray

    @staticmethod
    def of(profiles: Sequence[Profile], device: Device) -> PowerModel:
        """Take the device's `p_idle` and `P`, and the profiles' `alpha_power` and `beta_power`."""
        fits = [p.fits.get("igniter", {}) for p in profiles]
        return PowerModel(
            idle_w=device.hardware.get("p_idle", 0.0),
            cap_w=device.hardware.get("P", np.inf),
            slope_w=np.array([f.get("alpha_power", 0.0) for f in fits]),
            offset_w=np.array([f.get("beta_power", 0.0) for f in fits]),
        )

    def watts(self, slots: Slots, cycle_ms: FloatArray) -> FloatArray:
        """Return the power of each GPU, shape (GPUs,), at most the board's limit."""
        if self.idle_w == 0.0:
            return np.zeros(slots.mask.shape[0])
        rate = np.where(slots.mask, 1000.0 * slots.batch / np.where(cycle_ms > 0, cycle_ms, 1.0), 0.0)
        drawn = np.where(slots.mask, self.slope_w[slots.model] * rate + self.offset_w[slots.model], 0.0)
        capped: FloatArray = np.minimum(self.idle_w + drawn.sum(axis=1), self.cap_w)
        return capped


def make_estimate(
    slots: Slots,
    execution_ms: FloatArray,
    cycle_ms: FloatArray,
    margin: FloatArray | float,
    power: PowerModel,
) -> Estimate:
    """Return an estimate from the times of slots; `margin` is the relative distance to the upper quantile."""
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
    """Return the relative distance to the upper quantile of a normal with this mean absolute error.

    For a normal error E|e| = sigma * sqrt(2 / pi); hence sigma = 1.2533 * MAPE.
    """
    margin: FloatArray = np.sqrt(np.pi / 2.0) * relative_error * STANDARD_NORMAL.inv_cdf(quantile)
    return margin


COEFFICIENTS = 4
"""Of the trend that the left-out points have in common with all others."""


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Errors on points left out of a fit, each divided by its expected deviation.

    `sorted_scores` is ascending; positive is a measurement above its prediction.
    """

    sorted_scores: FloatArray

    @staticmethod
    def of(scores: Sequence[float] | FloatArray) -> Scores:
        """Keep the finite ones."""
        values = np.asarray(scores, dtype=np.float64)
        return Scores(np.sort(values[np.isfinite(values)]))

    @functools.lru_cache(maxsize=256)  # noqa: B019 - a planner calls it thousands of times, for a few quantiles
    def at(self, quantile: float) -> float:
        """Return the factor on the expected deviation that covers `quantile` of new points, never negative.

        With enough scores it has the conformal rank ceil((n + 1) q); with fewer it is that of a normal with
        the scores' root mean square, widened for the small sample; without any, of the standard normal. The
        trend's coefficients make the scores of few points small whatever the truth is: below twice as many,
        the root mean square is at least 1, and widened by sqrt(n / (n - COEFFICIENTS)).
        """
        n = self.sorted_scores.size
        rank = int(np.ceil((n + 1) * quantile))
        if n >= 20 and rank <= n:
            return max(float(self.sorted_scores[rank - 1]), 0.0)
        if n < 2:
            return STANDARD_NORMAL.inv_cdf(quantile)
        rms = float(np.sqrt(np.mean(self.sorted_scores**2)))
        if n < 2 * COEFFICIENTS:
            widened = max(rms, 1.0) * np.sqrt(n / max(n - COEFFICIENTS, 1))
            return float(STANDARD_NORMAL.inv_cdf(quantile) * widened)
        return float(max(STANDARD_NORMAL.inv_cdf(quantile) * rms * (1.0 + 1.0 / np.sqrt(n)), 0.0))


@dataclass(frozen=True, slots=True)
class Repeatability:
    """The difference of one point between two sessions: the floor of the upper quantile.

    All points of one session share its clocks, temperature, driver and host load, and a plan runs in another
    session than its profiles were measured in. Points left out of one session do not
    show that difference; only points measured in two sessions do:

        deviation of ln(second / first) = alone w(p)

    with w(p) = 1 for a share of a GPU's processors. A quota of a core has w(p) = sqrt(100 / p): what the host
    takes matters more the smaller the share is, but comes and goes while a batch waits for its quota
    (docs/results/latency.md).

    `alone`: the deviation where w(p) = 1. `quota`: whether w(p) is that of a quota. The margin is a normal's:
    the rank of the few repeats of a host would be the largest of them, and one disturbed point of one model
    would widen every model's quantile.
    """

    alone: float
    quota: bool

    @staticmethod
    def fit(repeats: Sequence[Repeat], share_kind: ShareKind) -> Repeatability:
        """Fit on all repeats of a device, drawn towards the usual value where there are few."""
        quota = share_kind is ShareKind.CPU_QUOTA
        alone = USUAL_WEIGHT * USUAL_ALONE.get(share_kind, USUAL_ALONE_GPU)
        if repeats:
            weight = _weight(np.array([r.percent for r in repeats]), quota)
            apart = np.array([np.log(r.second_ms / r.first_ms) for r in repeats]) / weight
            # The standard deviation of a normal with this mean absolute one: an outlier counts less.
            alone += len(repeats) * float(np.sqrt(np.pi / 2.0) * np.mean(np.abs(apart)))
        return Repeatability(alone / (USUAL_WEIGHT + len(repeats)), quota)

    def margin(self, percent: FloatArray, quantile: float) -> FloatArray:
        """Return the relative distance to the upper quantile of another session; shape as given."""
        distance: FloatArray = STANDARD_NORMAL.inv_cdf(quantile) * self.alone * _weight(percent, self.quota)
        return distance


def _weight(percent: FloatArray, quota: bool) -> FloatArray:
    """Return w(p): how much more a share's solo time differs than a whole device's."""
    return np.sqrt(100.0 / percent) if quota else np.ones_like(percent)
