"""One controller a fleet, and those who ask for it."""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock
import pytest
from background import running

from controlplane.domain.errors import EngineError
from controlplane.files.fleets import FleetFiles
from controlplane.gateway import controller_keeper
from controlplane.runtime.fleet import controller_process
from controlplane.runtime.fleet.history import History

HOLD = """
import filelock, sys
lock = filelock.FileLock(sys.argv[1])
lock.acquire()
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def files(tmp_path: Path) -> FleetFiles:
    made = FleetFiles(tmp_path, "f")
    made.directory.mkdir(parents=True)
    return made


@contextmanager
def holder(files: FleetFiles) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has the controller's lock."""
    asking = [sys.executable, "-c", HOLD, str(files.controller_lock)]
    with running(asking, stdout=subprocess.PIPE, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process


def test_there_is_one_and_it_is_found(files: FleetFiles) -> None:
    assert controller_process.pid(files) is None
    with controller_process.only_controller(files):
        assert controller_process.pid(files) == os.getpid()
        with (
            pytest.raises(EngineError, match=f"already has a controller .pid {os.getpid()}"),
            controller_process.only_controller(files),
        ):
            pass
    assert controller_process.pid(files) is None
    assert not controller_process.stop(files)


def test_one_that_follows_a_killed_one_knows_it(files: FleetFiles) -> None:
    with controller_process.only_controller(files) as before:
        assert before is None
    with controller_process.only_controller(files) as before:
        assert before is None, "that one ended by itself"
    (files.directory / "controller.pid").write_text("4711\n")  # as a kill leaves it
    assert controller_process.pid(files) is None
    with controller_process.only_controller(files) as before:
        assert before == 4711


def test_a_pid_that_is_somebody_elses_by_now_is_nobodys_controller(files: FleetFiles) -> None:
    told = files.directory / "controller.pid"
    with running(["sleep", "60"]) as innocent:
        told.write_text(f"{innocent.pid}\n")
        with filelock.FileLock(files.controller_lock):  # before its holder wrote a pid
            assert controller_process.pid(files) is None
        with holder(files) as controller:
            assert controller_process.pid(files) == controller.pid
            assert controller_process.stop(files)
        assert innocent.poll() is None


def test_a_process_that_only_looks_at_the_lock_is_not_taken_for_the_controller(files: FleetFiles) -> None:
    path = files.controller_lock
    with (
        open(path, "w") as looked_at,
        running(["sleep", "60"], pass_fds=(looked_at.fileno(),)) as looking,
        holder(files) as controller,
    ):
        # Without a recorded pid, processes are searched in the order of their pids.
        assert controller_process.pid(files) == controller.pid
        assert controller_process.stop(files)
        assert looking.poll() is None


def test_where_somebody_else_was_quicker_his_is_the_controller(
    files: FleetFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "none"))  # whoever runs this may have a fleet f
    at_first, real = [None], controller_process.pid  # nobody yet; then as it is
    monkeypatch.setattr(sys, "executable", shutil.which("false"))  # as one ends that is not the first
    with monkeypatch.context() as patch, controller_process.only_controller(files):
        patch.setattr(controller_process, "pid", lambda given: at_first.pop() if at_first else real(given))
        assert controller_process.start_detached(files) == os.getpid()
    with pytest.raises(EngineError, match="ended at once"):
        controller_process.start_detached(files)


def test_a_dead_controller_that_a_command_replaces_is_no_warning(
    files: FleetFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    (files.directory / "controller.pid").write_text("4711\n")
    answers = iter((None, Started.pid))
    monkeypatch.setattr(controller_process, "pid", lambda given: next(answers))
    monkeypatch.setattr(controller_process.subprocess, "Popen", lambda *_, **__: Started())
    assert controller_process.start_detached(files) == Started.pid
    (event,) = History(files.history).events()
    assert (event.level, event.kind) == ("info", "controller")
    assert event.reason == "the one before (pid 4711) did not end by itself; a command started it again"
    with controller_process.only_controller(files) as before:
        assert before is None, "what is known already is told once"


class Started:
    """A controller's process."""

    pid = 4712

    def poll(self) -> None:
        return None


def test_one_that_starts_while_somebody_asks_for_it_starts(
    files: FleetFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_process, "_ASKED_S", 30.0)  # a busy host may stand still between two tries
    held = threading.Event()

    def ask() -> None:
        with filelock.FileLock(files.controller_lock):
            held.set()
            time.sleep(0.1)

    asking = threading.Thread(target=ask)
    asking.start()
    assert held.wait(30.0)
    with controller_process.only_controller(files):
        assert controller_process.pid(files) == os.getpid()
    asking.join()


@pytest.mark.parametrize(("applied", "started"), [(True, 1), (False, 0)])
def test_a_command_that_fails_leaves_a_controller_for_what_was_applied_before(
    files: FleetFiles, monkeypatch: pytest.MonkeyPatch, applied: bool, started: int
) -> None:
    starts: list[FleetFiles] = []
    monkeypatch.setattr(controller_process, "start_detached", starts.append)
    if applied:
        (files.directory / "plan.json").touch()
    with pytest.raises(EngineError, match="refused"), controller_process.left_running(files):
        raise EngineError("refused")
    assert len(starts) == started
    with controller_process.left_running(files):
        pass
    assert len(starts) == started + 1


def test_only_what_a_command_started_is_kept_and_only_until_it_ends_by_itself(
    files: FleetFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.controller_kept.touch()  # as one leaves it that a command started and that was killed
    with controller_process.kept_up(files):
        assert not files.controller_kept.exists(), "this one is systemd's, or a terminal's"
    monkeypatch.setenv(controller_keeper.KEPT_VARIABLE, "1")
    with controller_process.kept_up(files):
        assert files.controller_kept.exists()
    assert not files.controller_kept.exists()
    with pytest.raises(RuntimeError), controller_process.kept_up(files):
        raise RuntimeError("a defect")
    assert files.controller_kept.exists()
    assert not controller_process.stop(files)
    assert not files.controller_kept.exists(), "ended on purpose, though none ran"


@pytest.mark.parametrize("detached", [True, False])
def test_a_command_keeps_a_running_controller_that_an_earlier_one_started(
    files: FleetFiles, monkeypatch: pytest.MonkeyPatch, detached: bool
) -> None:
    if detached:
        monkeypatch.setenv(controller_keeper.KEPT_VARIABLE, "1")
    with holder(files) as controller:
        with controller_process.left_alone(files):
            pass
        assert controller_process.start_detached(files) == controller.pid
        assert files.controller_kept.exists() == detached
