"""The MPS server of a daemon: its start, its user, the end of its clients. With FAKES of MPS and NVML."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import build
import pytest
from background import running
from fake_mps import PROGRAMS, fake_daemons
from fake_nvml import FakeGpu, FakeNvml

from controlplane.domain.errors import EngineError
from launchers.gpu import control, mps
from launchers.gpu.mps import MpsClient, MpsDaemons

PYTHON = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
UUID = "GPU-11111111-2222-3333-4444-555555555555"


@pytest.fixture
def daemons(monkeypatch: pytest.MonkeyPatch) -> Iterator[MpsDaemons]:
    with tempfile.TemporaryDirectory(prefix="gpu") as name:
        Path(name).chmod(0o755)
        with fake_daemons(Path(name, "mps"), FakeNvml(FakeGpu(UUID)), monkeypatch) as made:
            yield made


@pytest.fixture
def client(daemons: MpsDaemons) -> MpsClient:
    return daemons.client(build.spec(device=UUID), start=True)


def steer(client: MpsClient, name: str, text: str = "") -> Path:
    """Change what the fake daemon does; return the file by which it does."""
    file = Path(client.pipe_directory, name)
    file.write_text(text)
    return file


@contextlib.contextmanager
def program(client: MpsClient, *words: str, user: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """A CUDA program; with `busy` it has work on the GPU that it does not wait for."""
    # As text, since another user may not enter the folders of this project.
    command = [PYTHON, "-IS", "-c", (PROGRAMS / "fake_cuda.py").read_text(), "/nowhere", *words]
    environment = {**os.environ, **client.environment}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with running(command, env=environment, user=user, text=True, **streams) as started:
        yield started


def said(started: subprocess.Popen[str]) -> str:
    assert started.stdout is not None
    return started.stdout.readline().strip()


def test_a_server_is_ready_before_its_first_client_comes(daemons: MpsDaemons, client: MpsClient) -> None:
    steer(client, "begins", "2")
    daemons.await_server(client, os.getuid())
    with program(client) as one:
        assert said(one) == "client of MPS"


def test_a_client_that_comes_while_its_server_starts_is_refused(client: MpsClient) -> None:
    """So do some releases; others let it wait."""
    steer(client, "begins", "2")
    with program(client) as one:
        assert "(807)" in one.communicate()[0]


def test_a_server_that_ends_is_named_until_one_starts(daemons: MpsDaemons, client: MpsClient) -> None:
    steered = steer(client, "exits")
    with pytest.raises(EngineError, match="mps-server exited"):
        daemons.await_server(client, os.getuid())
    steered.unlink()
    daemons.await_server(client, os.getuid())


def test_a_daemon_that_takes_no_start_is_left_to_its_first_client(
    daemons: MpsDaemons, client: MpsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "ANSWER_S", 1.0)
    monkeypatch.setattr(control, "servers", lambda *_: [])
    monkeypatch.setattr(control, "state", lambda *_: "")
    daemons.await_server(client, os.getuid())


def test_the_log_of_a_daemon_that_is_asked_for_years_stays_short(
    daemons: MpsDaemons, client: MpsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipes = Path(client.pipe_directory)
    log = pipes.parent / "log" / "control.log"
    control.servers(pipes)
    daemons.shorten_log(UUID)
    assert "get_server_list" in log.read_text()
    monkeypatch.setattr(mps, "_LOG_BYTES", 0)
    daemons.shorten_log(UUID)
    assert log.read_text() == ""
    control.servers(pipes)
    assert "get_server_list" in log.read_text()


def test_a_list_of_a_server_that_has_ended_is_empty(client: MpsClient) -> None:
    assert control.clients(Path(client.pipe_directory), "1") == []


@pytest.mark.skipif(os.getuid() != 0, reason="root's daemon alone has clients of another user")
def test_roots_daemon_has_clients_of_another_user_whatever_the_umask(daemons: MpsDaemons) -> None:
    """Their server passes the daemon's folders as that user (bottlerocket-os/bottlerocket#4673)."""
    before = os.umask(0o077)
    try:
        client = daemons.client(build.spec(device=UUID), start=True)
        daemons.await_server(client, 65534)
    finally:
        os.umask(before)
    with program(client, user=65534) as one:
        assert said(one) == "client of MPS"


@pytest.mark.parametrize("released", [True, False])
def test_a_client_killed_at_work_leaves_the_others_alone_where_it_was_released(
    daemons: MpsDaemons, client: MpsClient, released: bool
) -> None:
    with program(client) as beside, program(client, "busy") as busy:
        assert [said(beside), said(busy)] == ["client of MPS"] * 2
        daemons.release(UUID, [busy.pid] if released else [])
        busy.kill()
        busy.wait()
        assert (control.FAULT in control.state(daemons.pipes(UUID))) is not released
        with program(client) as another:
            assert (said(another) == "client of MPS") is released
