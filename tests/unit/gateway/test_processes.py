"""The gateway's processes are found by their labels."""

import contextlib
import errno
import fcntl
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from no_descriptors import without_descriptors

from controlplane.files.gateway_paths import GatewayPaths
from controlplane.gateway import processes
from controlplane.gateway.haproxy import HaproxyGateway

FORKING = "import os, signal; child = os.fork(); child and print(child, flush=True); signal.pause()"


def test_a_fork_is_found_once_its_parent_has_ended(tmp_path: Path) -> None:
    """Before it is its own program, it would get the signals that are meant for the supervisor."""
    places = GatewayPaths.of(tmp_path)
    labels = {processes.LABEL: str(places.state), processes.ROLE_LABEL: processes.SUPERVISOR}
    with subprocess.Popen([sys.executable, "-c", FORKING], env=labels, stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout is not None
        child = psutil.Process(int(supervisor.stdout.readline()))
        try:
            assert processes.find(places, processes.SUPERVISOR) == (supervisor.pid,)
            supervisor.kill()
            supervisor.wait()
            assert processes.find(places, processes.SUPERVISOR) == (child.pid,)
        finally:
            supervisor.kill()
            child.kill()


def test_what_cannot_be_looked_at_is_not_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(_: Path) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "read_bytes", none_left)
    with pytest.raises(OSError, match="Too many open files"):
        processes.find(GatewayPaths.of(tmp_path), processes.FACADE)


def test_what_it_writes_is_closed_to_other_users(tmp_path: Path) -> None:
    places = GatewayPaths.of(tmp_path)
    places.log(processes.FACADE).parent.mkdir(parents=True, exist_ok=True)
    processes.spawn(places, processes.FACADE, ["sh", "-c", "umask"]).wait()
    assert places.log(processes.FACADE).read_text() == "0077\n"


def test_what_does_not_listen_is_missing_and_what_was_never_started_is_not(tmp_path: Path) -> None:
    places, gateway = GatewayPaths.of(tmp_path), HaproxyGateway(tmp_path)
    places.make()
    assert gateway.missing() == ()
    places.settings.touch()
    assert gateway.missing() == processes.KEPT_UP, "a supervisor that was ended removed its lock"
    places.supervisor_lock.touch()
    assert gateway.missing() == (*processes.KEPT_UP, processes.SUPERVISOR)
    with contextlib.ExitStack() as running:
        for path in (places.runtime_socket, places.control_socket, places.monitor_socket):
            one = running.enter_context(socket.socket(socket.AF_UNIX))
            one.bind(str(path))
            one.listen(0)
        fcntl.flock(running.enter_context(places.supervisor_lock.open()), fcntl.LOCK_EX)
        for _ in range(3):  # also one that accepts no connection
            assert gateway.missing() == ()


def test_without_descriptors_nothing_is_known_and_nothing_missing(tmp_path: Path) -> None:
    places, gateway = GatewayPaths.of(tmp_path), HaproxyGateway(tmp_path)
    places.make()
    places.settings.touch()
    with without_descriptors(), pytest.raises(OSError, match="Too many open files"):
        gateway.missing()


def test_a_gateway_that_was_ended_is_not_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[GatewayPaths] = []
    monkeypatch.setattr("controlplane.gateway.processes.start_supervisor", started.append)
    places, gateway = GatewayPaths.of(tmp_path), HaproxyGateway(tmp_path)
    gateway.restore()
    assert started == []
    places.supervisor_lock.touch()
    gateway.restore()
    assert started == [places]
