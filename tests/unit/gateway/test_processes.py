"""The gateway's processes are found by their labels."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from controlplane.files.gateway_paths import GatewayPaths
from controlplane.gateway import processes

pytestmark = pytest.mark.unit

FORKING = "import os, signal; child = os.fork(); child and print(child, flush=True); signal.pause()"


def test_a_fork_that_has_not_become_its_own_program_yet_is_not_its_parent(tmp_path: Path) -> None:
    """The supervisor's next HAProxy would get the signals that are meant for the supervisor."""
    places = GatewayPaths.of(tmp_path)
    labels = {processes.LABEL: str(places.state), processes.ROLE_LABEL: processes.SUPERVISOR}
    with subprocess.Popen([sys.executable, "-c", FORKING], env=labels, stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout is not None
        child = psutil.Process(int(supervisor.stdout.readline()))
        try:
            assert processes.find(places, processes.SUPERVISOR) == (supervisor.pid,)
        finally:
            supervisor.kill()
            child.kill()


def test_a_process_whose_parent_ended_is_found(tmp_path: Path) -> None:
    places = GatewayPaths.of(tmp_path)
    labels = {processes.LABEL: str(places.state), processes.ROLE_LABEL: processes.FACADE}
    with subprocess.Popen([sys.executable, "-c", FORKING], env=labels, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        parent.wait()
        try:
            assert processes.find(places, processes.FACADE) == (child.pid,)
        finally:
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
