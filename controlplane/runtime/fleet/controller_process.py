"""The controller as a process: one for each fleet, in the foreground or detached, identified by its lock.

The kernel frees the lock when its holder dies. The file beside it has the holder's pid.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import filelock

from controlplane.domain.errors import EngineError, TrisectError
from controlplane.domain.observation import Event
from controlplane.files.fleets import FleetFiles
from controlplane.files.waiting import wait_until
from controlplane.files.writing import log_file
from controlplane.gateway import controller_keeper
from controlplane.runtime.fleet.history import History

_LOG_LIMIT_BYTES = 8 * 2**20
_START_S = 60.0
"""The wait for a controller to start on a busy host; it ends early where the controller ends."""
_STOP_S = 10.0
_ASKED_S = 1.0
_MOMENT_S = 0.02


@contextlib.contextmanager
def only_controller(files: FleetFiles) -> Iterator[int | None]:
    """Hold the lock of this fleet's controller. Yields the pid of a controller that died before, else None.

    Raises EngineError where another process has the lock.
    """
    lock = _lock(files)
    try:
        # `pid` holds the lock for a moment too.
        lock.acquire(timeout=_ASKED_S, poll_interval=0.01)
    except filelock.Timeout:
        raise EngineError(f"fleet {files.fleet!r} already has a controller (pid {pid(files)})") from None
    try:
        before = _recorded_pid(files)
        with contextlib.suppress(OSError):  # a full disk: `_holder` finds the process without the file
            files.controller_pid.write_text(f"{os.getpid()}\n")
        yield before
    finally:
        with contextlib.suppress(OSError):
            files.controller_pid.unlink(missing_ok=True)
        lock.release()


@contextlib.contextmanager
def kept_up(files: FleetFiles) -> Iterator[None]:
    """Have a controller that `start_detached` started be started again by the supervisor if it is killed.

    One that ends by itself, as at a signal, stays ended.
    """
    if controller_keeper.KEPT_VARIABLE in os.environ:
        controller_keeper.keep(files)
    else:
        _keep_no_more(files)
    yield
    _keep_no_more(files)


def pid(files: FleetFiles) -> int | None:
    """The living controller's pid; None where there is none."""
    if not files.directory.is_dir():
        return None
    try:
        # Another call of `pid` holds the lock for less than this.
        with _lock(files).acquire(timeout=_MOMENT_S, poll_interval=0.005):
            return None
    except filelock.Timeout:
        return _holder(files)


@contextlib.contextmanager
def left_running(files: FleetFiles) -> Iterator[None]:
    """Have a controller running after a command on a fleet, even a failed one: running servers need it."""
    try:
        yield
    except TrisectError:
        if files.planned_s() is not None:
            with contextlib.suppress(TrisectError):
                start_detached(files)
        raise
    start_detached(files)


@contextlib.contextmanager
def left_alone(files: FleetFiles) -> Iterator[None]:
    """Have no controller started from now on, by the gateway's supervisor neither; one that runs goes on."""
    _keep_no_more(files)
    yield


def start_detached(files: FleetFiles) -> int:
    """Start a controller unless one runs; return its pid. Raises EngineError where it does not start."""
    running = pid(files)
    if running is not None:
        if _was_detached(running):  # also where the command before wanted none to be kept
            controller_keeper.keep(files)
        return running
    dead = _forget_dead(files)
    log = files.directory / "controller.log"
    if log.exists() and log.stat().st_size > _LOG_LIMIT_BYTES:
        log.replace(log.with_suffix(".log.1"))
    with log_file(log) as out:
        child = subprocess.Popen(
            controller_keeper.command(files),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=controller_keeper.environment(files),
            start_new_session=True,
        )
    if not wait_until(lambda: child.poll() is not None or pid(files) == child.pid, deadline_s=_START_S):
        child.kill()
        raise EngineError(f"the controller did not start in {_START_S:g} s (log: {log})")
    if dead is not None:
        reason = f"the one before (pid {dead}) did not end by itself; a command started it again"
        History(files.history).write(Event(time.time(), "info", "controller", files.fleet, reason))
    if child.poll() is None:
        return child.pid
    # Another process, such as systemd, may have started one first.
    another = pid(files)
    if another is None:
        raise EngineError(f"the controller ended at once (log: {log})")
    return another


def stop(files: FleetFiles) -> bool:
    """End the fleet's controller, if any; return whether one ran. Servers and traffic continue."""
    _keep_no_more(files)
    running = pid(files)
    if running is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(running, signal.SIGTERM)
    if not wait_until(lambda: pid(files) != running, deadline_s=_STOP_S):
        with contextlib.suppress(ProcessLookupError):
            os.kill(running, signal.SIGKILL)
        wait_until(lambda: pid(files) != running, deadline_s=_STOP_S)
    return True


def _was_detached(controller: int) -> bool:
    with contextlib.suppress(OSError):
        environment = Path(f"/proc/{controller}/environ").read_bytes().split(b"\0")
        return any(entry.startswith(f"{controller_keeper.KEPT_VARIABLE}=".encode()) for entry in environment)
    return False


def _keep_no_more(files: FleetFiles) -> None:
    with contextlib.suppress(OSError):
        files.controller_kept.unlink(missing_ok=True)


def _forget_dead(files: FleetFiles) -> int | None:
    """Remove and return the pid of a controller that was killed, so that the next one does not report it."""
    try:
        with _lock(files).acquire(timeout=_MOMENT_S, poll_interval=0.005):
            dead = _recorded_pid(files)
            with contextlib.suppress(OSError):
                files.controller_pid.unlink(missing_ok=True)
            return dead
    except filelock.Timeout:
        return None  # another controller is starting


def _lock(files: FleetFiles) -> filelock.FileLock:
    return filelock.FileLock(files.controller_lock, timeout=0)


def _holder(files: FleetFiles) -> int | None:
    """Return the process that holds the lock: the recorded pid may be outdated."""
    lock, recorded = os.path.realpath(_lock(files).lock_file), _recorded_pid(files)
    others = (int(name) for name in os.listdir("/proc") if name.isdigit() and name != str(os.getpid()))
    candidates = others if recorded is None else (recorded, *others)
    return next((pid for pid in candidates if _holds(pid, lock)), None)


def _holds(pid: int, path: str) -> bool:
    """Whether a process locked this file itself. Others look at it, and a fork has it open until its exec."""
    with contextlib.suppress(OSError):  # gone, or another user's
        for handle in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                if os.readlink(f"/proc/{pid}/fd/{handle}") != path:
                    continue
                # As in `lock: 1: FLOCK ADVISORY WRITE <pid> <file> 0 EOF`.
                lines = Path(f"/proc/{pid}/fdinfo/{handle}").read_text().splitlines()
                if any(line.startswith("lock:") and line.split()[5] == str(pid) for line in lines):
                    return True
    return False


def _recorded_pid(files: FleetFiles) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(files.controller_pid.read_text())
    return None
