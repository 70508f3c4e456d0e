"""Ctrl-C and SIGTERM while `ctl profile` measures: what is said, the exit code, what is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from bare_triton import ROOT
from gateway_rig import until

from controlplane.cli.verbs import VERBS
from controlplane.files.measurements.profiles import partial_path

pytestmark = pytest.mark.e2e
# What a test runs in the background ignores SIGINT.
CTL = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from controlplane.cli.main import main; main()"
)
CODES = {signal.SIGINT: (130, "interrupted"), signal.SIGTERM: (143, "terminated")}
MODEL = "transformer_tiny"


@pytest.fixture(scope="module", autouse=True)
def _model() -> None:
    subprocess.run([sys.executable, ROOT / "model_repository" / "make.py", MODEL], check=True)


class Ctl:
    """A verb that runs with a state directory of its own."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        self._said = directory / "stderr"
        environment = {
            **os.environ,
            "XDG_STATE_HOME": str(directory / "state"),
            "TRISECT_TRITON_HOME": str(ROOT / ".tools" / "triton"),
        }
        with self._said.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-c", CTL, *arguments],
                env=environment,
                cwd=ROOT,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )

    @property
    def said(self) -> str:
        return self._said.read_text()

    def end(self, sent: signal.Signals) -> int:
        self.process.send_signal(sent)
        return self.process.wait(timeout=120)

    def left(self) -> list[str]:
        """The programs that were started with a path in this directory."""
        found = []
        for process in psutil.process_iter():
            try:
                words = (*process.cmdline(), *process.environ().values())
            except psutil.Error:
                continue
            if any(str(self.directory) in word for word in words):
                found.append(process.name())
        return found


@contextmanager
def running(directory: Path, *arguments: str) -> Iterator[Ctl]:
    made = Ctl(directory, *arguments)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()


def ends(ctl: Ctl, verb: str, sent: signal.Signals) -> None:
    """End it by a signal; it says how to go on, and nothing of it runs any more."""
    code, name = CODES[sent]
    assert ctl.end(sent) == code, ctl.said
    assert ctl.said.splitlines()[-1] == f"ctl: {name}: {VERBS[verb].left}"
    assert "Traceback" not in ctl.said
    deadline = time.monotonic() + 30.0
    while left := ctl.left():
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


@pytest.mark.parametrize("sent", CODES)
def test_an_interrupted_profile_keeps_what_is_measured_and_leaves_no_server(
    sent: signal.Signals, tmp_path: Path
) -> None:
    profiles = tmp_path / "profiles"
    few = ("--percents", "100,50", "--batches", "1,2,4")
    with running(tmp_path, "profile", MODEL, "--device", "cpu", "--profiles", str(profiles), *few) as ctl:
        until(lambda: partial_path(profiles, "cpu", MODEL).exists() or ctl.process.poll() is not None, 300.0)
        until(lambda: "tritonserver" in ctl.left())
        ends(ctl, "profile", sent)
    assert partial_path(profiles, "cpu", MODEL).exists()
    assert not list(profiles.rglob("*.tmp"))
