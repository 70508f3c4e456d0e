import platform
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.domain.errors import InputError
from controlplane.domain.fleet import AccessConfig, GatewayConfig
from controlplane.files.fleets import FleetFiles, FleetSettings, state_root, this_host
from controlplane.runtime.fleet import fleet
from controlplane.runtime.fleet.fleet import locked

SETTINGS = FleetSettings("process", "/m", "/one", {"v100-0": "GPU-a"})


def test_settings_remember_the_devices_and_outputs_of_those_before() -> None:
    moved = replace(SETTINGS, output="/two", devices={"v100-1": "GPU-b"}).after(SETTINGS)
    assert moved.devices == {"v100-0": "GPU-a", "v100-1": "GPU-b"}
    assert (moved.output, moved.former_outputs) == ("/two", ("/one",))
    back = replace(SETTINGS, output="/one").after(moved)
    assert (back.output, back.former_outputs) == ("/one", ("/two",))
    assert SETTINGS.after(None) == SETTINGS.after(SETTINGS) == SETTINGS


@pytest.mark.parametrize(
    "protection", [AccessConfig(), AccessConfig("/c", "/k", "/ca", tokens=True, audit=True)]
)
def test_the_protection_of_a_fleet_is_kept_for_the_next_apply(
    tmp_path: Path, protection: AccessConfig
) -> None:
    files = FleetFiles(tmp_path, "f")
    settings = replace(SETTINGS, former_outputs=("/before",), endpoints=GatewayConfig(protection=protection))
    files.write_settings(settings)
    assert files.settings() == settings


def test_the_state_of_fleets_and_of_no_fleet_is_open_to_its_user_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The latter has profiles' servers, their logs, and completed configurations."""
    files = FleetFiles(tmp_path, "f")
    (tmp_path / "f").mkdir(mode=0o755)
    files.make()
    assert files.directory.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "one"))
    assert state_root().stat().st_mode & 0o777 == 0o700
    (tmp_path / "two" / "trisect").mkdir(parents=True, mode=0o755)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "two"))
    assert state_root().stat().st_mode & 0o777 == 0o700


def test_a_fleet_of_another_host_is_refused_with_the_file_and_the_way_out(tmp_path: Path) -> None:
    files = FleetFiles(tmp_path, "f")
    files.check_host("a")
    files.write_settings(SETTINGS)
    files.check_host(this_host())
    with pytest.raises(InputError, match=r"f/host: fleet 'f' runs on another host .*XDG_STATE_HOME"):
        files.check_host("another")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet, "this_host", lambda: "another")
        with pytest.raises(InputError), locked(files):
            pass


def test_a_host_is_its_machine_id_or_its_name(tmp_path: Path) -> None:
    machine_id = tmp_path / "machine-id"
    assert this_host(machine_id) == platform.node()
    for text, host in (("\n", platform.node()), ("abc\n", "abc")):
        machine_id.write_text(text)
        assert this_host(machine_id) == host
