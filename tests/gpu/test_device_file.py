"""Is a GPU that is in no catalogue described by `ctl profile`? Nothing here was run on a GPU yet.

The type's name here is in no catalogue, so that any GPU will do. Needs what tests/gpu/test_shares.py needs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gpu_rig import write_repository
from gpu_servers import STAGES, Rig

from controlplane.domain.profile import Profile
from controlplane.files.measurements.profiles import read_device
from controlplane.latency import registry
from controlplane.latency.protocol import LatencyModel, Slots
from controlplane.papers.igniter import latency as igniter
from controlplane.profiler.session import Place, Profiler
from controlplane.profiler.subject import Wishes
from controlplane.runtime import SystemClock
from controlplane.runtime.devices import known_device, known_profiles
from controlplane.runtime.jobs.profile import (
    Written,
    describe_device,
    profile_models,
    profile_neighbours,
    read_subjects,
)
from launchers.gpu import gpus

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1800)]

TYPE = "uncatalogued"
MODEL_S, PAIRS_S = 60.0, 180.0


class Quiet:
    """Progress that nothing shows."""

    def advance(self, what: str, done: int, total: int, seconds_left: float | None) -> None:
        pass


@pytest.fixture(scope="module")
def profiles(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the device file and the profiles of two models, alone and beside each other."""
    folder = tmp_path_factory.mktemp("uncatalogued")
    made, repository = folder / "profiles", folder / "models"
    for name, stages in STAGES.items():
        write_repository(repository, name, stages, backend=rig.backend)
    describe_device(made, TYPE, gpus.limits(rig.gpu.uuid))
    place = Place(known_device(TYPE, made), rig.gpu.uuid)
    profiler = Profiler(rig.launcher, SystemClock(), Quiet(), made, folder / "scratch")
    subjects = read_subjects(repository, [], place, Wishes(budget_s=MODEL_S))
    for one in profile_models(profiler, subjects, place, resume=False):
        assert isinstance(one, Written), one
    profile_neighbours(profiler, subjects, place, budget_s=PAIRS_S)
    return made


def test_the_device_file_has_what_the_driver_says(rig: Rig, profiles: Path) -> None:
    device, limits = read_device(profiles, TYPE), gpus.limits(rig.gpu.uuid)
    assert device is not None
    assert limits is not None
    rig.results["device_file"] = {"memory_mb": device.memory_mb, **device.hardware}
    assert device.memory_mb == limits.memory_mb
    assert {"P", "F", "p_idle", "f_idle", "B_pcie"} <= device.hardware.keys()
    assert device.hardware["F"] == limits.max_clock_mhz
    assert 0 < device.hardware["p_idle"] < device.hardware["P"] == limits.power_limit_w


def test_models_beside_each_other_give_the_alphas(rig: Rig, profiles: Path) -> None:
    device, known = known_device(TYPE, profiles), known_profiles(TYPE, profiles)
    alphas = {name: profile.fits[igniter.NAME]["alpha_cache"] for name, profile in known.items()}
    latency = registry.build(igniter.NAME, device, known)
    errors = [error for profile in known.values() for error in beside(latency, profile)]
    rig.results["beside_each_other"] = {"alpha_cache": alphas, "errors": errors}
    assert {"alpha_sch", "beta_sch"} <= device.hardware.keys()
    assert errors
    assert np.mean(np.abs(errors)) < 0.15


def beside(latency: LatencyModel, profile: Profile) -> list[float]:
    """Return the relative errors of Eq 1 to 11 on the model's points beside others."""
    found = []
    for point in profile.colocation:
        together = [(profile.model, point.batch, point.percent)]
        together += [(other.model, other.batch, other.percent) for other in point.neighbours]
        models, batches, percents = zip(*together, strict=True)
        slots = Slots.of([[latency.models.index(m) for m in models]], [batches], [percents])
        found.append(float(latency.estimate(slots).execution_ms[0, 0]) / point.execution_ms - 1.0)
    return found
