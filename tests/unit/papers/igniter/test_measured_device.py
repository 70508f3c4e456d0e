"""A GPU that is in no catalogue: a V100's published points, without all that the catalogue knows besides.

The driver's answers are those of the V100 on which iGniter measured: 300 W, 1530 MHz, 53.5 W idle, PCIe 3.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from controlplane.domain.device import MPS_GRID, Device, DeviceLimits, ShareKind
from controlplane.domain.profile import ColocationPoint, Measurement, Profile
from controlplane.files import catalogue
from controlplane.latency.fitting.published import Colocated
from controlplane.papers.igniter import latency as igniter
from controlplane.papers.igniter.profiling import clock_slope, described, with_interference
from controlplane.runtime.jobs.profile import with_fits

LIMITS = DeviceLimits("Tesla V100-SXM2-16GB", "550.54.15", 16160.0, 300.0, 1530.0, 53.5, 135.0, 3, 16)
BARE = Device("mystery", ShareKind.MPS_PERCENT, MPS_GRID)
DEVICE = described(BARE, LIMITS)
WORST_PERCENT = 9.3
"""Of iGniter on its own GPU."""


@cache
def alone() -> dict[str, Profile]:
    """What `ctl profile` has of each model alone, every third of the published points."""
    return {
        name: with_fits(
            replace(
                profile,
                device="mystery",
                fits={},
                holdout_error={},
                repeats=(),
                points=profile.points[::3],
                colocation=(),
            ),
            device=DEVICE,
        )
        for name, profile in catalogue.profiles("v100").items()
    }


def measured(keep: Callable[[ColocationPoint], bool]) -> dict[str, Profile]:
    """Those profiles with the points beside another model that `keep` says."""
    return {
        name: replace(alone()[name], colocation=tuple(c for c in profile.colocation if keep(c)))
        for name, profile in catalogue.profiles("v100").items()
    }


def errors_percent(model: igniter.Igniter, profiles: dict[str, Profile]) -> dict[str, float]:
    """The mean error of Eq 1-11 on the profiles' co-location points, by model."""
    points = Colocated.of(profiles)
    off = 100.0 * np.abs(model.times(points.slots)[0][:, 0] / points.measured_ms - 1.0)
    return {name: float(off[points.slots.model[:, 0] == i].mean()) for i, name in enumerate(profiles)}


@pytest.fixture(scope="module")
def left_out() -> dict[int, tuple[dict[str, Profile], dict[str, Profile]]]:
    """For each batch size: the profiles without its co-location points, and with these alone."""

    def has(batch: int) -> Callable[[ColocationPoint], bool]:
        return lambda point: batch in (point.batch, point.neighbours[0].batch)

    return {b: (measured(lambda p, b=b: not has(b)(p)), measured(has(b))) for b in (2, 8, 32)}  # type: ignore[misc]


def test_the_driver_gives_memory_power_clocks_and_the_link() -> None:
    assert DEVICE.memory_mb == 16160.0
    assert DEVICE.hardware == {"P": 300.0, "F": 1530.0, "p_idle": 53.5, "f_idle": 135.0, "B_pcie": 1e7}
    silent = replace(LIMITS, power_limit_w=None, pcie_generation=9)
    assert set(described(BARE, silent).hardware) == {"F", "p_idle", "f_idle"}


def test_eq_1_to_11_beside_neighbours_hold_on_batch_sizes_left_out(
    left_out: dict[int, tuple[dict[str, Profile], dict[str, Profile]]],
) -> None:
    for known, unseen in left_out.values():
        device, profiles = with_interference(DEVICE, known)
        assert device.hardware["alpha_sch"] > 0
        found = errors_percent(igniter.fit(profiles, device), unseen)
        blind = errors_percent(igniter.fit(known, DEVICE), unseen)
        assert max(found.values()) < WORST_PERCENT
        assert np.mean(list(found.values())) < 0.7 * np.mean(list(blind.values()))


def test_fitting_again_changes_nothing(
    left_out: dict[int, tuple[dict[str, Profile], dict[str, Profile]]],
) -> None:
    device, profiles = with_interference(DEVICE, left_out[8][0])
    again, same = with_interference(device, profiles)
    assert again.hardware == pytest.approx(device.hardware)
    for name, profile in same.items():
        assert profile.fits["igniter"] == pytest.approx(profiles[name].fits["igniter"])


def test_without_points_beside_others_nothing_is_fitted() -> None:
    assert with_interference(DEVICE, alone()) == (DEVICE, alone())


def test_the_clocks_slope_is_recovered_from_points_at_the_power_limit() -> None:
    fit = {"k1": 0.0, "k2": 10.0, "k3": 0.0, "k4": 0.0, "k5": 0.0, "alpha_power": 0.05, "beta_power": 0.0}
    percents = (20.0, 60.0, 80.0, 100.0)
    points = tuple(
        Measurement(
            p, 1, 10.0 / p, power_w=300.0, clock_mhz=1530.0 - 1.025 * max(0.0, 53.5 + 5.0 * p - 300.0)
        )
        for p in percents
    )
    profile = replace(catalogue.profiles("v100")["ssd"], points=points, fits={"igniter": fit})
    assert clock_slope([profile], DEVICE) == pytest.approx(-1.025)
    assert clock_slope([replace(profile, points=points[:1])], DEVICE) is None
    assert clock_slope([profile], BARE) is None
