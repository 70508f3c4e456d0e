"""State files between versions: those of the version before are read, and those of the next one."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from controlplane.domain.errors import InputError
from controlplane.domain.fleet import GatewayConfig
from controlplane.files import fleets, gateway
from controlplane.files.fleets import FleetFiles, FleetSettings

BEFORE = Path(__file__).parents[2] / "data" / "state_before"
"""Without the keys that later versions added."""


@pytest.fixture
def files(tmp_path: Path) -> FleetFiles:
    shutil.copytree(BEFORE, tmp_path / "state")
    return FleetFiles(tmp_path, "state")


def contents(files: FleetFiles) -> list[object]:
    return [
        files.settings(),
        files.plan(),
        fleets.read_guarding(files.guarding),
        gateway.read_settings(files.gateway / "settings.json"),
        gateway.read_slots(files.gateway / "slots.json"),
    ]


def with_unknown_keys(value: Any) -> Any:
    """The same with a key that no version knows in every mapping whose keys a model names."""
    if isinstance(value, list):
        return [with_unknown_keys(one) for one in value]
    if isinstance(value, dict):
        named = {
            key: one if key in ("devices", "env") else with_unknown_keys(one) for key, one in value.items()
        }
        return {**named, "added_later": {"x": [1]}}
    return value


def test_files_of_the_version_before_are_read(files: FleetFiles) -> None:
    settings, plan = files.settings(), files.plan()
    assert settings == FleetSettings("process", "/models", "/rendered", {"cpu-0": "cpu-0"}, GatewayConfig())
    assert plan is not None
    assert [p.endpoint for _, _, p in plan.placements()] == ["a"]
    assert fleets.read_guarding(files.guarding)[0].partition == "a"
    assert gateway.read_slots(files.gateway / "slots.json").slots[0].route.members[0].http_port == 20001
    assert gateway.read_settings(files.gateway / "settings.json").slots == 16


def test_keys_of_a_newer_minor_version_change_nothing(files: FleetFiles) -> None:
    known = contents(files)
    for path in files.directory.rglob("*.json"):
        path.write_text(json.dumps(with_unknown_keys(json.loads(path.read_text()))))
    assert contents(files) == known
    assert files.unknown_keys() == ("added_later", "endpoints.added_later")


def test_a_newer_schema_is_refused_with_the_file_and_what_this_version_reads(files: FleetFiles) -> None:
    path = files.directory / "fleet.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 2}))
    with pytest.raises(InputError, match=r"fleet.json:1: schema_version: 2 is not supported; this version"):
        files.settings()
