from __future__ import annotations

import contextlib
import fcntl
import socket
from pathlib import Path

import pytest
from no_descriptors import without_descriptors

from controlplane.files.gateway_paths import GatewayPaths
from controlplane.gateway import processes
from controlplane.gateway.haproxy import HaproxyGateway

pytestmark = pytest.mark.unit


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
        for _ in range(3):  # also one that accepts nobody
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
