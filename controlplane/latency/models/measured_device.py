"""The coefficients of a GPU that is in no catalogue: from its driver, and from models beside each other.

Without counters of Nsight iGniter's cache use c and kernels n_k are unknown, and so is what alpha_cache and
Delta_sch refer to. c then counts as a model's throughput in percent of its own highest, and a batch as one
kernel: both scales are free in Eq 6 and 8, where they stand beside a coefficient that is fitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from controlplane.domain.device import Device, DeviceLimits
from controlplane.domain.profile import Profile
from controlplane.latency.models import counters, igniter, igniter_refit

_PCIE_3_X16 = 16.0 * 0.985
"""GB/s of the link on which iGniter assumes B_pcie."""
_B_PCIE = 1e7
"""bytes/ms that iGniter assumes there (Sec. 5.1)."""
_DELAYS = ("alpha_sch", "beta_sch")
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


def without_counters(profile: Profile, curve: Mapping[str, float]) -> dict[str, float]:
    """Return the stand-ins for those of Nsight's figures that the profile lacks (see the module)."""
    known = profile.fits.get(igniter.NAME, {})
    found: dict[str, float] = {}
    if "alpha_cacheutil" not in known:
        batches = np.arange(1.0, profile.largest_batch + 1.0)
        ability = counters.ability(curve, np.full(batches.size, 100.0), batches)
        found |= {"alpha_cacheutil": 100.0 / float(ability.max()), "beta_cacheutil": 0.0}
    if "n_k" not in known:
        found["n_k"] = 1.0
    return found


def with_interference(device: Device, profiles: Mapping[str, Profile]) -> tuple[Device, dict[str, Profile]]:
    """Return the device with alpha_sch, beta_sch and alpha_f, and the profiles with alpha_cache, fitted.

    Delta_sch and alpha_cache come from the co-location points; every neighbour delays as much as the first
    one. Profiles without Eq 11 are left as they are.
    """
    usable = {name: p for name, p in profiles.items() if "k2" in p.fits.get(igniter.NAME, {})}
    slope = clock_slope(usable.values(), device)
    if slope is not None:
        device = replace(device, hardware={**device.hardware, "alpha_f": slope})
    if not any(p.colocation for p in usable.values()):
        return device, dict(profiles)
    unfitted = {name: value for name, value in device.hardware.items() if name not in _DELAYS}
    fitted = igniter_refit.fit(usable, replace(device, hardware=unfitted))
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
        fit = profile.fits[igniter.NAME]
        if "alpha_power" not in fit:
            continue
        for point in profile.points:
            ability = counters.ability(fit, np.array([point.percent]), np.array([float(point.batch)]))
            excess = idle_w + fit["alpha_power"] * float(ability[0]) + fit["beta_power"] - limit_w
            if point.clock_mhz is not None and excess > 0.0:
                excess_w.append(excess)
                lost_mhz.append(point.clock_mhz - top_mhz)
    if not excess_w:
        return None
    return min(0.0, float(np.dot(excess_w, lost_mhz) / np.dot(excess_w, excess_w)))


def _with(profile: Profile, coefficients: Mapping[str, float]) -> Profile:
    known = profile.fits.get(igniter.NAME, {})
    return replace(profile, fits={**profile.fits, igniter.NAME: {**known, **coefficients}})
