"""What doctor says about a boot."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.runtime.jobs.doctor import BootPlaces, after_boot

pytestmark = pytest.mark.unit


@pytest.fixture
def places(tmp_path: Path) -> BootPlaces:
    return BootPlaces(tmp_path / "system", tmp_path / "user", tmp_path / "linger" / "me")


def enable(folder: Path, target: str, fleet: str = "f") -> None:
    wants = folder / f"{target}.target.wants"
    wants.mkdir(parents=True)
    # As `systemctl enable` does it: the link's target need not exist for us.
    (wants / f"trisect@{fleet}.service").symlink_to("/nonexistent/trisect@.service")


def test_without_a_unit_nothing_is_served_after_a_boot(places: BootPlaces) -> None:
    enable(places.system, "multi-user", fleet="another")
    found = after_boot("f", places)
    assert (found.available, "ctl controller" in found.detail) == (False, True)


def test_a_system_unit_needs_no_login(places: BootPlaces) -> None:
    enable(places.system, "multi-user")
    assert after_boot("f", places).available


def test_a_users_unit_needs_lingering(places: BootPlaces) -> None:
    enable(places.user, "default")
    found = after_boot("f", places)
    assert (found.available, found.remedy) == (False, "loginctl enable-linger me")
    places.lingering.parent.mkdir()
    places.lingering.touch()
    assert after_boot("f", places).available
