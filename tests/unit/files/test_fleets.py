from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.files.fleets import FleetFiles, FleetSettings

pytestmark = pytest.mark.unit

SETTINGS = FleetSettings("process", "/m", "/one", {"v100-0": "GPU-a"})


def test_settings_remember_the_devices_and_outputs_of_those_before() -> None:
    moved = replace(SETTINGS, output="/two", devices={"v100-1": "GPU-b"}).after(SETTINGS)
    assert moved.devices == {"v100-0": "GPU-a", "v100-1": "GPU-b"}
    assert (moved.output, moved.former_outputs) == ("/two", ("/one",))
    back = replace(SETTINGS, output="/one").after(moved)
    assert (back.output, back.former_outputs) == ("/one", ("/two",))
    assert SETTINGS.after(None) == SETTINGS.after(SETTINGS) == SETTINGS


def test_settings_are_read_as_written_and_as_an_older_version_wrote_them(tmp_path: Path) -> None:
    files = FleetFiles(tmp_path, "f")
    written = replace(SETTINGS, former_outputs=("/before",))
    files.write_settings(written)
    assert files.settings() == written
    path = files.directory / "fleet.json"
    older = json.loads(path.read_text())
    del older["former_outputs"]
    path.write_text(json.dumps(older))
    assert files.settings() == SETTINGS
