"""A fleet of one partition on a host of three cores."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from load_rig import Fleet, Load, plan

from controlplane.domain.device import HeldDevice
from controlplane.files.fleets import FleetFiles, FleetSettings
from controlplane.files.following import Following
from controlplane.runtime.autoscaler import running


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    files = FleetFiles(tmp_path, "f")
    files.directory.mkdir()
    files.write_settings(FleetSettings("process", "/m", "/o", {}))
    files.write_plans(plan(50.0), None)
    (files.directory / "following").mkdir()
    files.following.write(Following(follow=True))
    cores = ("cpu-0", "cpu-1", "cpu-2")
    monkeypatch.setattr(running, "host_devices", lambda: {"cpu": cores})
    held = {"cpu": tuple(HeldDevice("cpu", core) for core in cores)}
    monkeypatch.setattr(running, "devices_of", lambda launcher: held)
    return Fleet(files)


@pytest.fixture
def load(fleet: Fleet) -> Iterator[Load]:
    made = Load(fleet)
    yield made
    made.close()
