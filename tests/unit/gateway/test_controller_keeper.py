from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from controlplane.files.fleets import FleetFiles
from controlplane.gateway import controller_keeper
from controlplane.gateway.controller_keeper import ControllerKeeper
from controlplane.gateway.processes import LABEL, ROLE_LABEL

pytestmark = pytest.mark.unit


@pytest.fixture
def files(tmp_path: Path) -> FleetFiles:
    found = FleetFiles(tmp_path / "trisect", "f")
    found.make()
    found.controller_lock.touch()
    return found


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    found: list[None] = []
    monkeypatch.setattr(ControllerKeeper, "_start", lambda _: found.append(None))
    return found


def test_a_killed_controller_is_started_at_once_and_again_after_ever_longer(
    files: FleetFiles, starts: list[None]
) -> None:
    keeper = ControllerKeeper(files)
    files.controller_kept.touch()
    seconds = [now for now in range(200) if keeper.look(float(now)) is not None]
    assert seconds == [0, 20, 60, 140]
    assert len(starts) == 4


def test_one_that_ran_for_long_is_started_at_once(files: FleetFiles, starts: list[None]) -> None:
    keeper = ControllerKeeper(files)
    files.controller_kept.touch()
    assert keeper.look(0.0) is not None
    with files.controller_lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for now in range(2, 16):
            assert keeper.look(float(now)) is None, "it runs"
    assert keeper.look(16.0) is not None
    assert len(starts) == 2


def test_what_others_run_is_theirs_and_is_told_once(files: FleetFiles, starts: list[None]) -> None:
    keeper = ControllerKeeper(files)
    assert keeper.look(0.0) is None, "it ended by itself"
    files.controller_pid.write_text("1\n")
    keeper = ControllerKeeper(files)
    told = [keeper.look(float(now)) for now in range(10)]
    assert "not started again" in str(told[0])
    assert told[1:] == [None] * 9
    assert starts == []


def test_a_controller_is_no_process_of_the_gateway_and_finds_the_fleet(
    files: FleetFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`processes.find` knows the gateway's by these variables, and ends them."""
    monkeypatch.setenv(LABEL, "/state")
    monkeypatch.setenv(ROLE_LABEL, "supervisor")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    found = controller_keeper.environment(files)
    assert not {LABEL, ROLE_LABEL} & found.keys()
    assert Path(found["XDG_STATE_HOME"]) / "trisect" / "f" == files.directory
    assert found["PATH"] == os.environ["PATH"]
