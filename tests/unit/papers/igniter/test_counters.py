"""A GPU's counters as coefficients: figures made up, the arithmetic checked against Eq 4-11 forwards."""

from dataclasses import replace

import numpy as np
import pytest

from controlplane.domain.device import MPS_GRID, Device, ShareKind
from controlplane.domain.profile import Environment, KernelTrace, Measurement, Profile
from controlplane.latency.protocol import Slots
from controlplane.papers.igniter import latency as igniter
from controlplane.papers.igniter import profiling
from controlplane.runtime.jobs.profile import Counters, with_fits

CURVE = {"k1": 0.0, "k2": 40.0, "k3": 20.0, "k4": 0.0, "k5": 0.5}
TRACE = KernelTrace(kernels=80.0, gap_ms=0.002, loaded_bytes=600e3, fed_back_bytes=4e3)


def active_ms(percent: float, batch: int) -> float:
    return (40.0 * batch + 20.0) / percent + 0.5


def measured(percent: float, batch: int, clock_mhz: float = 1500.0) -> Measurement:
    """With 0.16 ms of scheduling, and 30 W plus 0.1 W for each item a second."""
    ability = 1000.0 * batch / active_ms(percent, batch)
    time_ms = active_ms(percent, batch) + 0.16
    return Measurement(percent, batch, time_ms, power_w=55.0 + 30.0 + 0.1 * ability, clock_mhz=clock_mhz)


POINTS = tuple(measured(p, b) for p in (10.0, 30.0, 60.0, 100.0) for b in (1, 4, 16))
PROFILE = Profile("m", "gpu", ShareKind.MPS_PERCENT, Environment(idle_w=55.0), POINTS)


def test_power_above_idle_is_a_line_in_the_processing_ability() -> None:
    assert profiling.of_power(PROFILE, CURVE) == pytest.approx({"alpha_power": 0.1, "beta_power": 30.0})


def test_points_below_full_clock_say_nothing_of_power() -> None:
    capped = replace(POINTS[-1], power_w=200.0, clock_mhz=1200.0)
    told = profiling.of_power(replace(PROFILE, points=(*POINTS[:-1], capped)), CURVE)
    assert told == pytest.approx({"alpha_power": 0.1, "beta_power": 30.0})


def test_a_device_that_tells_no_power() -> None:
    assert profiling.of_power(replace(PROFILE, environment=Environment()), CURVE) == {}
    silent = tuple(replace(p, power_w=None, clock_mhz=None) for p in POINTS)
    assert profiling.of_power(replace(PROFILE, points=silent), CURVE) == {}


def test_cache_use_at_one_batch_is_proportional_at_several_a_line() -> None:
    ability = {b: 1000.0 * b / active_ms(100.0, b) for b in (1, 8, 32)}
    assert profiling.of_cache({8: 0.02 * ability[8]}, CURVE) == pytest.approx(
        {"alpha_cacheutil": 0.02, "beta_cacheutil": 0.0}
    )
    line = profiling.of_cache({b: 3.0 + 0.02 * a for b, a in ability.items()}, CURVE)
    assert line == pytest.approx({"alpha_cacheutil": 0.02, "beta_cacheutil": 3.0})
    assert profiling.of_cache({}, CURVE) == {}


def test_a_profile_with_counters_predicts_what_was_measured_scheduling_once() -> None:
    fitted = with_fits(PROFILE, Counters(TRACE, {8: 12.0}))
    told = fitted.fits["igniter"]
    assert (told["n_k"], told["k_sch"], told["d_load"], told["d_feedback"]) == (80.0, 0.002, 600e3, 4e3)
    assert told["alpha_power"] == pytest.approx(0.1, rel=0.02)
    assert told["alpha_cacheutil"] > 0
    model = igniter.fit({"m": fitted}, Device("gpu", ShareKind.MPS_PERCENT, MPS_GRID))
    percent, batch = np.array([p.percent for p in POINTS]), np.array([p.batch for p in POINTS])
    predicted, _ = model.times(Slots.alone(np.zeros(len(POINTS), dtype=np.int64), batch, percent))
    assert predicted[:, 0] == pytest.approx([p.execution_ms for p in POINTS], rel=0.03)


def test_counters_told_before_are_kept_when_a_profile_is_fitted_again() -> None:
    first = with_fits(PROFILE, Counters(TRACE, {8: 12.0}))
    again = with_fits(first)
    assert again.fits["igniter"] == pytest.approx(first.fits["igniter"])
