"""Profiles of measurements from elsewhere."""

from pathlib import Path

import pytest

from controlplane.domain.device import CPU_GRID, Device, ShareKind
from controlplane.domain.errors import InputError
from controlplane.domain.profile import Environment, Measurement, Profile
from controlplane.files.measurements.elsewhere import Run
from controlplane.files.measurements.profiles import read_profile, write_profile
from controlplane.runtime.jobs.elsewhere import merged_profile
from controlplane.runtime.jobs.profile import with_fits

CPU = Device("cpu", ShareKind.CPU_QUOTA, CPU_GRID)


def imported(profiles: Path, *runs: Run, percent: float = 100.0) -> Profile:
    found = merged_profile(
        runs, model="m", device=CPU, percent=percent, tool="perf_analyzer", profiles=profiles
    )
    write_profile(profiles, with_fits(found))
    return read_profile(profiles / "cpu" / "m.json")


def test_runs_at_one_share_make_a_profile_without_a_curve(tmp_path: Path) -> None:
    every = [Run(b, 2.0 + b, frontend_ms=1.0, spread_ms=0.1) for b in (1, 2, 4, 8, 16, 32)]
    made = imported(tmp_path, *every)
    assert made.only_percent == 100.0
    assert made.environment.tool == "perf_analyzer"
    assert [p.execution_ms for p in made.points] == [3.0, 4.0, 6.0, 10.0, 18.0, 34.0]
    assert (made.frontend_ms, made.largest_batch) == (1.0, 32)
    assert "igniter" not in made.fits


def test_runs_at_another_share_join_and_make_a_curve(tmp_path: Path) -> None:
    imported(tmp_path, Run(1, 3.0, frontend_ms=1.0), Run(4, 6.0))
    made = imported(tmp_path, Run(1, 6.5, frontend_ms=2.0), percent=50.0)
    assert [(p.percent, p.batch, p.execution_ms) for p in made.points] == [
        (50, 1, 6.5),
        (100, 1, 3.0),
        (100, 4, 6.0),
    ]
    assert (made.only_percent, made.frontend_ms) == (None, 2.0)


def test_a_point_measured_again_replaces_the_old_one(tmp_path: Path) -> None:
    imported(tmp_path, Run(1, 3.0))
    assert [p.execution_ms for p in imported(tmp_path, Run(1, 2.5), Run(1, 2.8)).points] == [2.8]


def test_a_profile_of_our_own_is_not_mixed_with_others(tmp_path: Path) -> None:
    own = Profile("m", "cpu", ShareKind.CPU_QUOTA, Environment(), (Measurement(100.0, 1, 3.0),))
    write_profile(tmp_path, own)
    with pytest.raises(InputError, match="measured this model itself"):
        imported(tmp_path, Run(1, 3.0))


def test_a_share_off_the_grid_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--at: 33 is not on this device's grid"):
        imported(tmp_path, Run(1, 3.0), percent=33.0)
