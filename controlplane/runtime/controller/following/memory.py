"""What is known about the load, kept for the next controller and for other commands."""

from __future__ import annotations

import contextlib
import math

from controlplane.control.load.decisions import forecast, tick
from controlplane.control.load.rates import KEPT, is_bursty
from controlplane.control.load.state import LoadSeen, LoadState, resumed
from controlplane.domain.errors import EngineError, InputError
from controlplane.domain.observation import RateSeen
from controlplane.files.fleets import FleetFiles
from controlplane.files.following.rates import RatesSeen, write_rates
from controlplane.files.following.state import read_load, write_load


def save(files: FleetFiles, state: LoadState, *, following: str) -> None:
    """Write the state and the rates; where the disk refuses, the next controller begins anew."""
    found, bursty = forecast(state), is_bursty(state.seconds).tolist()
    rates = tuple(
        RateSeen(
            w.name,
            w.planned_rps,
            _finite(found.level[i]),
            _finite(found.lower[i]),
            _finite(found.upper[i]),
            float(state.seconds.dispersion[i]),
            bursty[i],
            float(found.bursts[i]),
        )
        for i, w in enumerate(state.workloads)
    )
    with contextlib.suppress(EngineError):
        write_load(files.load, state)
        write_rates(files.rates, RatesSeen(state.now_s, following, rates))


def recall(files: FleetFiles, wall_s: float) -> LoadState | None:
    """Return the state that the controller before left, with the time since as unseen; None without one."""
    with contextlib.suppress(InputError):  # of another version: the load is learned anew
        state = read_load(files.load)
        if state is not None:
            unseen = min(max(int(wall_s - state.now_s), 0), KEPT)
            seen = LoadSeen(wall_s, (None,) * unseen, state.workloads, plan_hash=state.plan_hash)
            return tick(resumed(state), seen, follow=False)[0]
    return None


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
