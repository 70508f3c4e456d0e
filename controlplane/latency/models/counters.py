"""A GPU's counters as iGniter's coefficients: kernels and their gaps, transfers, power, the L2 cache.

Power and cache use are lines in the processing ability 1000 b / k_act (items/s) that a workload has alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from controlplane.domain.profile import KernelTrace, Profile
from controlplane.latency.protocol import FloatArray

_FULL_CLOCK = 0.98
"""Of the highest one seen: a GPU at its power cap says nothing of the power its work wants."""


def of_trace(trace: KernelTrace) -> dict[str, float]:
    """n_k, k_sch (ms/kernel), d_load and d_feedback (bytes/item)."""
    return {
        "n_k": trace.kernels,
        "k_sch": trace.gap_ms,
        "d_load": trace.loaded_bytes,
        "d_feedback": trace.fed_back_bytes,
    }


def of_power(profile: Profile, curve: Mapping[str, float]) -> dict[str, float]:
    """alpha_power and beta_power (W above idle), from the points at full clock; empty where none told."""
    idle_w = profile.environment.idle_w
    told = [p for p in profile.points if p.power_w is not None and p.clock_mhz is not None]
    top_mhz = max((p.clock_mhz or 0.0 for p in told), default=0.0)
    free = [p for p in told if (p.clock_mhz or 0.0) >= _FULL_CLOCK * top_mhz]
    if idle_w is None or not free:
        return {}
    ability = _ability(curve, np.array([p.percent for p in free]), np.array([float(p.batch) for p in free]))
    slope, offset = _line(ability, np.array([(p.power_w or 0.0) - idle_w for p in free]))
    return {"alpha_power": slope, "beta_power": offset}


def of_cache(percent_of_batch: Mapping[int, float], curve: Mapping[str, float]) -> dict[str, float]:
    """alpha_cacheutil and beta_cacheutil from the L2 cache's use at some batches on the whole GPU."""
    if not percent_of_batch:
        return {}
    batch = np.array(sorted(percent_of_batch), dtype=np.float64)
    ability = _ability(curve, np.full(batch.size, 100.0), batch)
    slope, offset = _line(ability, np.array([percent_of_batch[int(b)] for b in batch]))
    return {"alpha_cacheutil": slope, "beta_cacheutil": offset}


def _ability(k: Mapping[str, float], percent: FloatArray, batch: FloatArray) -> FloatArray:
    """1000 b / k_act, with Eq 11's k_act."""
    active = (k["k1"] * batch**2 + k["k2"] * batch + k["k3"]) / (percent + k["k4"]) + k["k5"]
    return np.asarray(1000.0 * batch / active)


def _line(x: FloatArray, y: FloatArray) -> tuple[float, float]:
    """Slope and offset by least squares; through the origin where all x are one."""
    if np.ptp(x) <= 1e-9 * np.max(x):
        return float(np.mean(y / x)), 0.0
    slope, offset = np.polyfit(x, y, 1)
    return float(slope), float(offset)
