"""Ctrl-C and SIGTERM while `ctl profile` measures and `ctl demo` serves: what is said and what is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from bare_triton import ROOT
from gateway_rig import until
from host_ports import free_ports

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

    def await_text(self, text: str) -> None:
        until(lambda: text in self.said or self.process.poll() is not None, 300.0)
        assert text in self.said

    def end(self, sent: signal.Signals) -> int:
        self.process.send_signal(sent)
        return self.process.wait(timeout=120)

    def left(self) -> list[str]:
        """The programs that run with this state directory."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("XDG_STATE_HOME") == str(self.directory / "state"):
                    found.append(process.name())
            except psutil.Error:
                continue
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
    until(lambda: ctl.left() == [])


@pytest.mark.parametrize("sent", CODES)
def test_an_interrupted_profile_keeps_what_is_measured_and_leaves_no_server(
    sent: signal.Signals, tmp_path: Path
) -> None:
    profiles = tmp_path / "profiles"
    with running(tmp_path, "profile", MODEL, "--device", "cpu", "--profiles", str(profiles)) as ctl:
        until(lambda: partial_path(profiles, "cpu", MODEL).exists(), 120.0)
        assert "tritonserver" in ctl.left()
        ends(ctl, "profile", sent)
    assert partial_path(profiles, "cpu", MODEL).exists()
    assert not list(profiles.rglob("*.tmp"))


@pytest.mark.soak
@pytest.mark.parametrize("sent", CODES)
def test_an_interrupted_demo_destroys_its_fleet(sent: signal.Signals, tmp_path: Path) -> None:
    spec = tmp_path / "one.yaml"
    spec.write_text(
        "schema_version: 1\ngpus:\n  - {type: cpu, count: 1}\n"
        f"workloads:\n  - {{name: rank, model: {MODEL}, slo_ms: 400, rate_rps: 10}}\n"
    )
    ports = zip(("--http-port", "--grpc-port", "--metrics-port"), map(str, free_ports(3)), strict=True)
    own = (word for pair in ports for word in pair)
    with running(tmp_path, "demo", "--spec", str(spec), "--output", str(tmp_path / "out"), *own) as ctl:
        ctl.await_text("closed loop")
        ends(ctl, "demo", sent)
        assert "\ndestroy\n" in ctl.said
