"""iGniter's analytical model, Eq 1-11, on the coefficients of the paper or on a refit of Eq 11.

    t_inf  = t_load + t_gpu + t_feedback                                             (1)
    t_gpu  = (t_sch + t_act) F / f                                                   (4)
    t_sch  = (k_sch + [n > 1] (alpha_sch n + beta_sch)) n_k                          (5, 6)
    t_act  = k_act (1 + alpha_cache * sum of the neighbours' c)                      (8)
    f      = F + alpha_f max(0, p_idle + sum of all p - P)                           (9, 10)
    k_act  = (k1 b^2 + k2 b + k3) / (r + k4) + k5                                    (11)

p and c are lines in a model's processing ability 1000 b / k_act (inferences/s); r is in percent. A
coefficient that was not measured (a CPU has no board power to share) counts as no effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from controlplane.domain.device import Device
from controlplane.domain.errors import InputError
from controlplane.domain.profile import Measurement, Profile
from controlplane.latency.fitting.answers import (
    PowerModel,
    check_profiles,
    check_question,
    dress,
    normal_margin,
)
from controlplane.latency.fitting.published import Colocated, execution_points
from controlplane.latency.fitting.surface import Points
from controlplane.latency.protocol import Estimate, FloatArray, Slots

NAME = "igniter"
FEWEST_POINTS = 6
"""Eq 11 has five coefficients; with one point more the fit can have an error."""
SLOWEST_CLOCK = 0.1
"""The clock stays above this part of F: Eq 9 was measured down to 0.94."""


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Table 2 of the paper as arrays of shape (models,); times in ms, sizes in bytes, power in W."""

    d_load: FloatArray
    d_feedback: FloatArray
    n_k: FloatArray
    k_sch: FloatArray
    k1: FloatArray
    k2: FloatArray
    k3: FloatArray
    k4: FloatArray
    k5: FloatArray
    alpha_cache: FloatArray
    alpha_power: FloatArray
    beta_power: FloatArray
    alpha_cacheutil: FloatArray
    beta_cacheutil: FloatArray

    @staticmethod
    def of(fits: Sequence[Mapping[str, float]]) -> Coefficients:
        """Take the coefficients of each model by name; absent ones are 0."""
        names = (f.name for f in fields(Coefficients))
        return Coefficients(*(np.array([fit.get(n, 0.0) for fit in fits], dtype=np.float64) for n in names))


@dataclass(frozen=True, slots=True)
class Hardware:
    """The coefficients of the GPU type; the defaults have no effect."""

    power_cap_w: float = np.inf
    clock_mhz: float = 1.0
    idle_w: float = 0.0
    pcie_bytes_per_ms: float = np.inf
    alpha_f: float = 0.0
    alpha_sch: float = 0.0
    beta_sch: float = 0.0

    @staticmethod
    def of(device: Device) -> Hardware:
        """Take the coefficients by their names in the paper's table."""
        known = device.hardware
        return Hardware(
            power_cap_w=known.get("P", np.inf),
            clock_mhz=known.get("F", 1.0),
            idle_w=known.get("p_idle", 0.0),
            pcie_bytes_per_ms=known.get("B_pcie", np.inf),
            alpha_f=known.get("alpha_f", 0.0) if "F" in known else 0.0,
            alpha_sch=known.get("alpha_sch", 0.0),
            beta_sch=known.get("beta_sch", 0.0),
        )


@dataclass(frozen=True, slots=True)
class Igniter:
    """iGniter's model, made by `fit`. `alone_error` (models,) and `shared_error` are mean relative errors."""

    models: tuple[str, ...]
    coefficients: Coefficients
    hardware: Hardware
    alone_error: FloatArray
    shared_error: float
    power: PowerModel
    name: str = NAME

    def estimate(self, slots: Slots, quantile: float = 0.95) -> Estimate:
        """See `LatencyModel.estimate`."""
        check_question(slots, len(self.models), quantile)
        execution, cycle = self.times(slots)
        alone, shared = self.alone_error[slots.model], slots.mask.sum(axis=1, keepdims=True) > 1
        error = np.where(shared, np.hypot(alone, self.shared_error), alone)
        return dress(slots, execution, cycle, normal_margin(error, quantile), self.power)

    def times(self, slots: Slots) -> tuple[FloatArray, FloatArray]:
        """t_inf, and t_gpu + t_feedback whose inverse is the throughput (Eq 2); shapes (GPUs, slots)."""
        c, hw, m, b = self.coefficients, self.hardware, slots.model, slots.batch
        active = (c.k1[m] * b * b + c.k2[m] * b + c.k3[m]) / (slots.percent + c.k4[m]) + c.k5[m]
        ability = np.where(slots.mask, 1000.0 * b / active, 0.0)
        cache = np.where(slots.mask, c.alpha_cacheutil[m] * ability + c.beta_cacheutil[m], 0.0)
        power = np.where(slots.mask, c.alpha_power[m] * ability + c.beta_power[m], 0.0)
        count = slots.mask.sum(axis=1, keepdims=True)
        added = np.where(count > 1, hw.alpha_sch * count + hw.beta_sch, 0.0)
        others = cache.sum(axis=1, keepdims=True) - cache
        busy = (c.k_sch[m] + added) * c.n_k[m] + active * (1.0 + c.alpha_cache[m] * others)
        demand = hw.idle_w + power.sum(axis=1, keepdims=True)
        clock = 1.0 + hw.alpha_f * np.maximum(demand - hw.power_cap_w, 0.0) / hw.clock_mhz
        on_gpu = busy / np.maximum(clock, SLOWEST_CLOCK)
        cycle = on_gpu + c.d_feedback[m] * b / hw.pcie_bytes_per_ms
        execution: FloatArray = c.d_load[m] * b / hw.pcie_bytes_per_ms + cycle
        return execution, cycle


def fit(profiles: Mapping[str, Profile], device: Device) -> Igniter:
    """Take each profile's coefficients (`fits["igniter"]`), or fit Eq 11 where k1..k5 are absent.

    Raises InputError for no profiles, those of another device, and too few points.
    """
    for name, profile in profiles.items():
        if "k2" not in profile.fits.get(NAME, {}):
            check_profiles({name: profile}, device)
    if not profiles:
        check_profiles(profiles, device)
    fits = [
        known if "k2" in (known := profile.fits.get(NAME, {})) else curve_of(profile).coefficients
        for profile in profiles.values()
    ]
    listed = list(profiles.values())
    model = Igniter(
        models=tuple(profiles),
        coefficients=Coefficients.of(fits),
        hardware=Hardware.of(device),
        alone_error=np.zeros(len(listed)),
        shared_error=0.0,
        power=PowerModel.of(listed, device),
    )
    alone = np.array([_alone_error(model, i, profile) for i, profile in enumerate(listed)])
    return replace(model, alone_error=alone, shared_error=_shared_error(model, profiles))


def _alone_error(model: Igniter, index: int, profile: Profile) -> float:
    """Return the error on points left out if the profile has it, else the error on all points."""
    if NAME in profile.holdout_error:
        return profile.holdout_error[NAME]
    if not profile.points:
        return 0.0
    points = execution_points(profile)
    predicted, _ = model.times(Slots.alone(np.full(points.batch.size, index), points.batch, points.percent))
    return float(np.mean(np.abs(predicted[:, 0] / points.time_ms - 1.0)))


def _shared_error(model: Igniter, profiles: Mapping[str, Profile]) -> float:
    beside = Colocated.of(profiles)
    if not beside.measured_ms.size:
        return 0.0
    predicted, _ = model.times(beside.slots)
    return float(np.mean(np.abs(predicted[:, 0] / beside.measured_ms - 1.0)))


@dataclass(frozen=True, slots=True)
class Curve:
    """Eq 11 fitted: k1..k5 by name, and the mean relative error on points left out of the fit."""

    coefficients: Mapping[str, float]
    holdout_error: float


def curve_of(profile: Profile) -> Curve:
    """Fit Eq 11 on a profile's points (see `fit_curve`)."""
    return fit_curve(profile.points, profile.model)


def fit_curve(points: Sequence[Measurement], model: str = "the model") -> Curve:
    """Fit Eq 11 on measured times, by relative residuals; every fifth point left out in turn for the error.

    Transfers and scheduling alone are part of the measured time and so of k2 and k5: their coefficients then
    stay absent. Raises InputError for fewer than six points or for points that all have one share.
    """
    lowest: dict[tuple[float, int], Measurement] = {}
    for p in points:
        key = (p.percent, p.batch)
        if key not in lowest or p.concurrency < lowest[key].concurrency:
            lowest[key] = p
    known = Points.of(
        [p.percent for p in lowest.values()],
        [float(p.batch) for p in lowest.values()],
        [p.execution_ms for p in lowest.values()],
    )
    count = known.time_ms.size
    if count < FEWEST_POINTS:
        raise InputError(
            f"{model} has {count} measured points and Eq 11 needs at least {FEWEST_POINTS}; "
            f"run `ctl profile {model}`",
            field="points",
        )
    if np.unique(known.percent).size < 2:
        raise InputError(f"{model} was measured at one share only; run `ctl profile {model}`", field="points")
    folds = np.arange(count) % 5
    errors = []
    for fold in range(5):
        left_in = known.take(np.flatnonzero(folds != fold))
        left_out = known.take(np.flatnonzero(folds == fold))
        predicted = _eq_11(_solve(left_in), left_out.percent, left_out.batch)
        errors.append(np.abs(predicted / left_out.time_ms - 1.0))
    names = ("k1", "k2", "k3", "k4", "k5")
    coefficients = dict(zip(names, _solve(known).tolist(), strict=True))
    return Curve(coefficients, float(np.mean(np.concatenate(errors))))


def _eq_11(k: FloatArray, percent: FloatArray, batch: FloatArray) -> FloatArray:
    value: FloatArray = (k[0] * batch**2 + k[1] * batch + k[2]) / (percent + k[3]) + k[4]
    return value


def _solve(points: Points) -> FloatArray:
    """Fit by bounded least squares on relative residuals; soft_l1 limits the effect of a disturbed point."""
    from scipy.optimize import least_squares

    # The work of one item in percent * ms, if all the time were work.
    work = float(np.median(points.time_ms * points.percent / points.batch))
    lowest = float(points.percent.min())
    scale = np.array([work / 32.0, work, work, 1.0, float(points.time_ms.min())])
    found = least_squares(
        lambda x: _eq_11(x * scale, points.percent, points.batch) / points.time_ms - 1.0,
        x0=np.array([0.0, 0.8, 0.1, 0.1, 0.2]),
        # The sum in the fraction stays positive on measured shares; k1 and k3 may be slightly negative. Below
        # a CPU quota's share a part goes into its period's edges, which k4 takes out.
        bounds=(
            np.array([-0.3, 1e-6, -0.5, -0.3 * lowest, 0.0]),
            np.array([2.0, 10.0, 10.0, 100.0, 1.0]),
        ),
        loss="soft_l1",
        f_scale=0.03,
        max_nfev=400,
    )
    solution: FloatArray = found.x * scale
    return solution
