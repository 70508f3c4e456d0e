"""iGniter's coefficients from a GPU's counters: kernels and their gaps, transfers, power, the L2 cache.

Power and cache use are linear in the solo processing ability, 1000 b / k_act (items/s).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from controlplane.domain.profile import KernelTrace, Profile
from controlplane.latency.protocol import FloatArray

_FULL_CLOCK = 0.98
"""Part of the highest clock: at the power cap, the power says nothing about the work."""


def of_trace(trace: KernelTrace) -> dict[str, float]:
    """Return n_k, k_sch (ms/kernel), d_load and d_feedback (bytes/item)."""
    return {
        "n_k": trace.kernels,
        "k_sch": trace.gap_ms,
        "d_load": trace.loaded_bytes,
        "d_feedback": trace.fed_back_bytes,
    }


def of_power(profile: Profile, curve: Mapping[str, float]) -> dict[str, float]:
    """Return alpha_power and beta_power (W above idle) from the points at full clock; empty without any."""
    idle_w = profile.environment.idle_w
    measured = [p for p in profile.points if p.power_w is not None and p.clock_mhz is not None]
    top_mhz = max((p.clock_mhz or 0.0 for p in measured), default=0.0)
    free = [p for p in measured if (p.clock_mhz or 0.0) >= _FULL_CLOCK * top_mhz]
    if idle_w is None or not free:
        return {}
    solo = ability(curve, np.array([p.percent for p in free]), np.array([float(p.batch) for p in free]))
    slope, offset = _line(solo, np.array([(p.power_w or 0.0) - idle_w for p in free]))
    return {"alpha_power": slope, "beta_power": offset}


def of_cache(percent_of_batch: Mapping[int, float], curve: Mapping[str, float]) -> dict[str, float]:
    """Return alpha_cacheutil and beta_cacheutil from the use of the L2 cache by batch, on the whole GPU."""
    if not percent_of_batch:
        return {}
    batch = np.array(sorted(percent_of_batch), dtype=np.float64)
    solo = ability(curve, np.full(batch.size, 100.0), batch)
    slope, offset = _line(solo, np.array([percent_of_batch[int(b)] for b in batch]))
    return {"alpha_cacheutil": slope, "beta_cacheutil": offset}


def ability(k: Mapping[str, float], percent: FloatArray, batch: FloatArray) -> FloatArray:
    """Return the solo processing ability 1000 b / k_act, with Eq 11's k_act."""
    active = (k["k1"] * batch**2 + k["k2"] * batch + k["k3"]) / (percent + k["k4"]) + k["k5"]
    return np.asarray(1000.0 * batch / active)


def _line(x: FloatArray, y: FloatArray) -> tuple[float, float]:
    """Return slope and offset by least squares; the line goes through the origin where all x are equal."""
    if np.ptp(x) <= 1e-9 * np.max(x):
        return float(np.mean(y / x)), 0.0
    slope, offset = np.polyfit(x, y, 1)
    return float(slope), float(offset)
