"""iGniter's analytical model, Eq 1-11, on published coefficients (`fit`) or on the device's points (`refit`).

    t_inf  = t_load + t_gpu + t_feedback                                             (1)
    t_gpu  = (t_sch + t_act) F / f                                                   (4)
    t_sch  = (k_sch + [n > 1] (alpha_sch n + beta_sch)) n_k                          (5, 6)
    t_act  = k_act (1 + alpha_cache * sum of the neighbours' c)                      (8)
    f      = F + alpha_f max(0, p_idle + sum of all p - P)                           (9, 10)
    k_act  = (k1 b^2 + k2 b + k3) / (r + k4) + k5                                    (11)

p and c are lines in a model's processing ability 1000 b / k_act (inferences/s); r is in percent. A
coefficient that was not measured (a CPU has no board power to share) counts as no effect.

`refit` takes k1..k5 from the solo points, by relative residuals: the paper's absolute residuals leave errors
of 3-12 % at small batches, which plans use. alpha_cache of each model and Delta_sch (Eq 6, one for the
device) come from the co-location points; both are linear in Eq 1, so one non-negative least squares finds
them. Transfers, power and clocks keep the published coefficients, and so do alpha_cache and Delta_sch without
co-location points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from controlplane.domain.device import Device
from controlplane.domain.errors import InputError
from controlplane.domain.profile import Measurement, Profile
from controlplane.latency.fitting.answers import (
    PowerModel,
    check_profiles,
    check_question,
    make_estimate,
    normal_margin,
)
from controlplane.latency.fitting.points import Points, left_out_error, non_negative_fit
from controlplane.latency.fitting.published import Colocated, execution_points
from controlplane.latency.protocol import Estimate, FloatArray, IntArray, Slots

NAME = "igniter"
REFIT = "igniter-refit"
FEWEST_POINTS = 6
"""Eq 11 has five coefficients; with one point more the fit can have an error."""
SLOWEST_CLOCK = 0.1
"""The clock stays above this part of F: Eq 9 was measured down to 0.94."""
LEAST_PART = 0.1
"""The least part of a measured time that transfers and scheduling leave; else they are of another device."""


Curve5 = Sequence[Any]
"""k1..k5: numbers, or arrays of one shape."""


def work(k: Curve5, batch: FloatArray) -> FloatArray:
    """Return the numerator of Eq 11, in percent * ms."""
    value: FloatArray = k[0] * batch * batch + k[1] * batch + k[2]
    return value


def active_ms(k: Curve5, percent: FloatArray, batch: FloatArray) -> FloatArray:
    """Return k_act by Eq 11."""
    value: FloatArray = work(k, batch) / (percent + k[3]) + k[4]
    return value


def percent_for(k: Curve5, active: FloatArray, batch: FloatArray) -> FloatArray:
    """Return the share in percent at which k_act is this: Eq 11 the other way round."""
    value: FloatArray = work(k, batch) / (active - k[4]) - k[3]
    return value


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

    def curve(self, model: IntArray) -> tuple[FloatArray, ...]:
        """Return k1..k5 of each of these models."""
        return self.k1[model], self.k2[model], self.k3[model], self.k4[model], self.k5[model]


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
        return make_estimate(slots, execution, cycle, normal_margin(error, quantile), self.power)

    def times(self, slots: Slots) -> tuple[FloatArray, FloatArray]:
        """t_inf, and t_gpu + t_feedback whose inverse is the throughput (Eq 2); shapes (GPUs, slots)."""
        c, hw, m, b = self.coefficients, self.hardware, slots.model, slots.batch
        active = active_ms(c.curve(m), slots.percent, b)
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
        known
        if "k2" in (known := profile.fits.get(NAME, {}))
        else fit_curve(profile.points, profile.model).coefficients
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
    return replace(model, alone_error=alone, shared_error=_shared_error(model, Colocated.of(profiles)))


def _alone_error(model: Igniter, index: int, profile: Profile) -> float:
    """Return the error on points left out if the profile has it, else the error on all points."""
    if NAME in profile.holdout_error:
        return profile.holdout_error[NAME]
    if not profile.points:
        return 0.0
    points = execution_points(profile.points)
    predicted, _ = model.times(Slots.alone(np.full(points.batch.size, index), points.batch, points.percent))
    return float(np.mean(np.abs(predicted[:, 0] / points.time_ms - 1.0)))


def _shared_error(model: Igniter, colocated: Colocated) -> float:
    if not colocated.measured_ms.size:
        return 0.0
    return float(np.mean(np.abs(_times(model, colocated) / colocated.measured_ms - 1.0)))


@dataclass(frozen=True, slots=True)
class Curve:
    """Eq 11 fitted: k1..k5 by name, and the mean relative error on points left out of the fit."""

    coefficients: Mapping[str, float]
    holdout_error: float


def fit_curve(points: Sequence[Measurement], model: str = "the model") -> Curve:
    """Fit Eq 11 on measured times, by relative residuals; every fifth point left out in turn for the error.

    Transfers and scheduling alone are part of the measured time and so of k2 and k5: their coefficients then
    stay absent. Raises InputError for fewer than six points or for points that all have one share.
    """
    first: dict[tuple[float, int], Measurement] = {}
    for p in sorted(points, key=lambda p: p.concurrency):
        first.setdefault((p.percent, p.batch), p)
    known = execution_points(list(first.values()))
    count = known.time_ms.size
    if count < FEWEST_POINTS:
        raise InputError(
            f"{model} has {count} measured points and Eq 11 needs at least {FEWEST_POINTS}; "
            f"run `ctl profile {model}`",
            field="points",
        )
    if np.unique(known.percent).size < 2:
        raise InputError(f"{model} was measured at one share only; run `ctl profile {model}`", field="points")
    names = ("k1", "k2", "k3", "k4", "k5")
    coefficients = dict(zip(names, ActiveTime.fit(known).k.tolist(), strict=True))
    return Curve(coefficients, left_out_error(ActiveTime.fit, known))


@dataclass(frozen=True, slots=True)
class ActiveTime:
    """Eq 11 with k1..k5, shape (5,), as the fit takes it."""

    k: FloatArray

    @staticmethod
    def fit(points: Points) -> ActiveTime:
        """Fit by bounded least squares on relative residuals; soft_l1 limits a disturbed point's effect."""
        from scipy.optimize import least_squares

        # The work of one item in percent * ms, if all the time were work.
        work = float(np.median(points.time_ms * points.percent / points.batch))
        lowest = float(points.percent.min())
        scale = np.array([work / 32.0, work, work, 1.0, float(points.time_ms.min())])
        found = least_squares(
            lambda x: ActiveTime(x * scale).at(points.percent, points.batch) / points.time_ms - 1.0,
            x0=np.array([0.0, 0.8, 0.1, 0.1, 0.2]),
            # The sum in the fraction stays positive on measured shares; k1 and k3 may be slightly negative.
            # Below a CPU quota's share a part goes into its period's edges, which k4 takes out.
            bounds=(
                np.array([-0.3, 1e-6, -0.5, -0.3 * lowest, 0.0]),
                np.array([2.0, 10.0, 10.0, 100.0, 1.0]),
            ),
            loss="soft_l1",
            f_scale=0.03,
            max_nfev=400,
        )
        return ActiveTime(found.x * scale)

    def at(self, percent: FloatArray, batch: FloatArray) -> FloatArray:
        """Return k_act, b^2 first: another order of rounding finds other coefficients."""
        k = self.k
        return np.asarray((k[0] * batch**2 + k[1] * batch + k[2]) / (percent + k[3]) + k[4])


def refit(profiles: Mapping[str, Profile], device: Device) -> Igniter:
    """Fit all models of one device. Raises InputError as `check_profiles` and `fit_curve` do."""
    check_profiles(profiles, device)
    listed = list(profiles.values())
    hardware = Hardware.of(device)
    curves = [active_curve(p, hardware) for p in listed]
    coefficients = Coefficients.of(
        [{**p.fits.get(NAME, {}), **c.coefficients} for p, c in zip(listed, curves, strict=True)]
    )
    model = Igniter(
        models=tuple(profiles),
        coefficients=coefficients,
        hardware=hardware,
        alone_error=np.array([c.holdout_error for c in curves]),
        shared_error=0.0,
        power=PowerModel.of(listed, device),
        name=REFIT,
    )
    colocated = Colocated.of(profiles)
    if colocated.measured_ms.size:
        model = _with_interference(model, colocated)
    return replace(model, shared_error=_shared_error(model, colocated))


def active_curve(profile: Profile, hardware: Hardware) -> Curve:
    """Fit Eq 11 on the measured times without the transfers and scheduling that the profile has.

    Raises InputError as `fit_curve` does.
    """
    known = profile.fits.get(NAME, {})
    item_ms = (known.get("d_load", 0.0) + known.get("d_feedback", 0.0)) / hardware.pcie_bytes_per_ms
    fixed_ms = known.get("k_sch", 0.0) * known.get("n_k", 0.0)

    def active(point: Measurement) -> Measurement:
        left = point.execution_ms - item_ms * point.batch - fixed_ms
        return replace(point, execution_ms=max(left, LEAST_PART * point.execution_ms))

    return fit_curve([active(p) for p in profile.points], profile.model)


def _with_interference(model: Igniter, colocated: Colocated) -> Igniter:
    """Fit alpha_cache (models,) and Delta_sch for two workloads; the growth with more is `_changed`'s."""
    count = len(model.models)
    quiet = _changed(model, np.zeros(count), 0.0)
    base = _times(quiet, colocated)
    per_cache = _times(_changed(model, np.ones(count), 0.0), colocated) - base
    per_delay = _times(_changed(model, np.zeros(count), 1.0), colocated) - base
    own = colocated.slots.model[:, 0]
    columns = np.column_stack([np.where(own == m, per_cache, 0.0) for m in range(count)] + [per_delay])
    measured = colocated.measured_ms
    scale = np.maximum(np.linalg.norm(columns / measured[:, None], axis=0), 1e-12)
    solution = non_negative_fit(columns / measured[:, None] / scale, 1.0 - base / measured)
    found = solution / scale
    seen = np.isin(np.arange(count), own)
    return _changed(model, np.where(seen, found[:-1], model.coefficients.alpha_cache), float(found[-1]))


def _changed(model: Igniter, alpha_cache: FloatArray, delay: float) -> Igniter:
    """Return the model with this alpha_cache and Delta_sch(2) = `delay`.

    Delta_sch grows with further workloads as the device's alpha_sch says, else as with the second one.
    """
    hardware = model.hardware
    growth = hardware.alpha_sch or delay
    return replace(
        model,
        coefficients=replace(model.coefficients, alpha_cache=alpha_cache),
        hardware=replace(hardware, alpha_sch=growth, beta_sch=delay - 2.0 * growth),
    )


def _times(model: Igniter, colocated: Colocated) -> FloatArray:
    time: FloatArray = model.times(colocated.slots)[0][:, 0]
    return time
