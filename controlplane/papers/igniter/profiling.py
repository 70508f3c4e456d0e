"""iGniter's coefficients of a profile and of a GPU that is in no catalogue: what profiling records.

Counters of NVIDIA's profilers give kernels and their gaps, transfers, power and the use of the L2 cache;
power and cache are linear in the solo processing ability, 1000 b / k_act (items/s). A GPU's own coefficients
come from its driver, and from models beside each other.

Without counters of Nsight iGniter's cache use c and kernels n_k are unknown, and so is what alpha_cache and
Delta_sch refer to. c then counts as a model's throughput in percent of its own highest, and a batch as one
kernel: both scales are free in Eq 6 and 8, where they stand beside a coefficient that is fitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from controlplane.domain.device import Device, DeviceLimits, ShareKind
from controlplane.domain.profile import Counters, Profile
from controlplane.latency.protocol import FloatArray
from controlplane.papers.igniter import latency

_PCIE_3_X16 = 16.0 * 0.985
"""GB/s of the link on which iGniter assumes B_pcie."""
_B_PCIE = 1e7
"""bytes/ms that iGniter assumes there (Sec. 5.1)."""
_DELAYS = ("alpha_sch", "beta_sch")
_FULL_CLOCK = 0.98
"""Part of the highest clock: at the power cap, the power says nothing about the work."""
_LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""By PCIe generation."""


def described(device: Device, limits: DeviceLimits) -> Device:
    """Return the device with its memory and those coefficients that its driver says; others stay."""
    lane = _LANE_GB_S.get(limits.pcie_generation or 0)
    link = None if lane is None or limits.pcie_lanes is None else lane * limits.pcie_lanes
    found = {
        "P": limits.power_limit_w,
        "F": limits.max_clock_mhz,
        "p_idle": limits.idle_power_w,
        "f_idle": limits.idle_clock_mhz,
        "B_pcie": None if link is None else _B_PCIE * link / _PCIE_3_X16,
    }
    known = {name: float(value) for name, value in found.items() if value is not None}
    return replace(device, memory_mb=limits.memory_mb, hardware={**device.hardware, **known})


def _without_counters(profile: Profile, curve: Mapping[str, float]) -> dict[str, float]:
    """Return the stand-ins for those of Nsight's figures that the profile lacks (see the module)."""
    known = profile.fits.get(latency.NAME, {})
    found: dict[str, float] = {}
    if "alpha_cacheutil" not in known:
        batches = np.arange(1.0, profile.largest_batch + 1.0)
        ability = _ability(curve, np.full(batches.size, 100.0), batches)
        found |= {"alpha_cacheutil": 100.0 / float(ability.max()), "beta_cacheutil": 0.0}
    if "n_k" not in known:
        found["n_k"] = 1.0
    return found


def with_fits(profile: Profile, counters: Counters, device: Device, *, counted: bool) -> Profile:
    """Return the profile with Eq 11 and the figures of the GPU's counters, earlier ones included.

    Points at one share, or too few of them, give no Eq 11. Without `counted` a GPU's missing counters are
    replaced (see the module).
    """
    if len(profile.points) < latency.FEWEST_POINTS or profile.only_percent is not None:
        return profile
    known = dict(profile.fits.get(latency.NAME, {}))
    if counters.trace is not None:
        trace = counters.trace
        known |= {"n_k": trace.kernels, "k_sch": trace.gap_ms}
        known |= {"d_load": trace.loaded_bytes, "d_feedback": trace.fed_back_bytes}
    traced = _with(profile, known)
    curve = latency.active_curve(traced, latency.Hardware.of(device))
    known |= curve.coefficients
    known |= of_power(profile, curve.coefficients)
    known |= of_cache(counters.cache_percent, curve.coefficients)
    if device.share_kind is ShareKind.MPS_PERCENT and not counted:
        known |= _without_counters(_with(traced, known), curve.coefficients)
    fitted = _with(profile, known)
    return replace(fitted, holdout_error={**profile.holdout_error, latency.NAME: curve.holdout_error})


def with_interference(device: Device, profiles: Mapping[str, Profile]) -> tuple[Device, dict[str, Profile]]:
    """Return the device with alpha_sch, beta_sch and alpha_f, and the profiles with alpha_cache, fitted.

    Delta_sch and alpha_cache come from the co-location points; every neighbour delays as much as the first
    one. Profiles without Eq 11 are left as they are.
    """
    usable = {name: p for name, p in profiles.items() if "k2" in p.fits.get(latency.NAME, {})}
    slope = clock_slope(usable.values(), device)
    if slope is not None:
        device = replace(device, hardware={**device.hardware, "alpha_f": slope})
    if not any(p.colocation for p in usable.values()):
        return device, dict(profiles)
    unfitted = {name: value for name, value in device.hardware.items() if name not in _DELAYS}
    fitted = latency.refit(usable, replace(device, hardware=unfitted))
    delays = {"alpha_sch": fitted.hardware.alpha_sch, "beta_sch": fitted.hardware.beta_sch}
    caches = dict(zip(fitted.models, fitted.coefficients.alpha_cache.tolist(), strict=True))
    return replace(device, hardware={**device.hardware, **delays}), {
        name: _with(profile, {"alpha_cache": caches[name]}) if name in caches else profile
        for name, profile in profiles.items()
    }


def clock_slope(profiles: Iterable[Profile], device: Device) -> float | None:
    """Return alpha_f (MHz/W, at most 0) from the points at which the power limit slowed the clock.

    The power that such a point would have taken comes from the model's line; None without such a point.
    """
    limit_w, top_mhz, idle_w = (device.hardware.get(name) for name in ("P", "F", "p_idle"))
    if limit_w is None or top_mhz is None or idle_w is None:
        return None
    excess_w, lost_mhz = [], []
    for profile in profiles:
        fit = profile.fits[latency.NAME]
        if "alpha_power" not in fit:
            continue
        for point in profile.points:
            ability = _ability(fit, np.array([point.percent]), np.array([float(point.batch)]))
            excess = idle_w + fit["alpha_power"] * float(ability[0]) + fit["beta_power"] - limit_w
            if point.clock_mhz is not None and excess > 0.0:
                excess_w.append(excess)
                lost_mhz.append(point.clock_mhz - top_mhz)
    if not excess_w:
        return None
    return min(0.0, float(np.dot(excess_w, lost_mhz) / np.dot(excess_w, excess_w)))


def _with(profile: Profile, coefficients: Mapping[str, float]) -> Profile:
    known = profile.fits.get(latency.NAME, {})
    return replace(profile, fits={**profile.fits, latency.NAME: {**known, **coefficients}})


def of_power(profile: Profile, curve: Mapping[str, float]) -> dict[str, float]:
    """Return alpha_power and beta_power (W above idle) from the points at full clock; empty without any."""
    idle_w = profile.environment.idle_w
    measured = [p for p in profile.points if p.power_w is not None and p.clock_mhz is not None]
    top_mhz = max((p.clock_mhz or 0.0 for p in measured), default=0.0)
    free = [p for p in measured if (p.clock_mhz or 0.0) >= _FULL_CLOCK * top_mhz]
    if idle_w is None or not free:
        return {}
    solo = _ability(curve, np.array([p.percent for p in free]), np.array([float(p.batch) for p in free]))
    slope, offset = _line(solo, np.array([(p.power_w or 0.0) - idle_w for p in free]))
    return {"alpha_power": slope, "beta_power": offset}


def of_cache(percent_of_batch: Mapping[int, float], curve: Mapping[str, float]) -> dict[str, float]:
    """Return alpha_cacheutil and beta_cacheutil from the use of the L2 cache by batch, on the whole GPU."""
    if not percent_of_batch:
        return {}
    batch = np.array(sorted(percent_of_batch), dtype=np.float64)
    solo = _ability(curve, np.full(batch.size, 100.0), batch)
    slope, offset = _line(solo, np.array([percent_of_batch[int(b)] for b in batch]))
    return {"alpha_cacheutil": slope, "beta_cacheutil": offset}


def _ability(k: Mapping[str, float], percent: FloatArray, batch: FloatArray) -> FloatArray:
    """Return the solo processing ability 1000 b / k_act, with Eq 11's k_act."""
    active = latency.active_ms([k[name] for name in ("k1", "k2", "k3", "k4", "k5")], percent, batch)
    return np.asarray(1000.0 * batch / active)


def _line(x: FloatArray, y: FloatArray) -> tuple[float, float]:
    """Return slope and offset by least squares; the line goes through the origin where all x are equal."""
    if np.ptp(x) <= 1e-9 * np.max(x):
        return float(np.mean(y / x)), 0.0
    slope, offset = np.polyfit(x, y, 1)
    return float(slope), float(offset)
