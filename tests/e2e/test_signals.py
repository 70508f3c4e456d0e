"""`ctl profile` and `ctl demo` ended by Ctrl-C and SIGTERM, and by themselves: what is said and left."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import readme
from background import until
from bare_triton import ROOT
from host_ports import free_ports

from controlplane.cli.verbs import VERBS
from controlplane.domain.device import CPU_GRID, Device, ShareKind
from controlplane.files.measurements.profiles import partial_path
from controlplane.profiler.session import Place, Profiler
from launchers.cpu_quota import CHAIN, Group
from launchers.host.shared_memory import FOLDER

pytestmark = pytest.mark.long
# What a test runs in the background ignores SIGINT.
CTL = (
    sys.executable,
    "-c",
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from controlplane.cli.main import main; main()",
)
CODES = {signal.SIGINT: (130, "interrupted"), signal.SIGTERM: (143, "terminated")}
MODEL = "transformer_tiny"
DEMO_NAME = f"signals{os.getpid()}"
DEMO_FLEET = f"demo-{DEMO_NAME}"
STAGES = ["one Triton per share", "apply:", "closed loop", "Poisson", "forced violation", "destroy"]
DEMO_SPEC = f"""
schema_version: 1
gpus: [{{type: cpu, count: 1}}]
workloads: [{{name: rank, model: {MODEL}, slo_ms: 300, rate_rps: 20}}]
"""


@pytest.fixture(scope="module", autouse=True)
def _model() -> None:
    subprocess.run([sys.executable, ROOT / "model_repository" / "make.py", MODEL], check=True)


class Ctl:
    """A command that runs a verb with a state directory of its own."""

    def __init__(self, directory: Path, *command: str) -> None:
        self.directory = directory
        self._said, self._printed = directory / "stderr", directory / "stdout"
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("MAKE")},
            "XDG_STATE_HOME": str(directory / "state"),
            "TRISECT_TRITON_HOME": str(ROOT / ".tools" / "triton"),
        }
        with self._said.open("wb") as stderr, self._printed.open("wb") as stdout:
            self.process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=stdout, stderr=stderr)

    @property
    def said(self) -> str:
        return self._said.read_text()

    @property
    def printed(self) -> str:
        return self._printed.read_text()

    def end(self, sent: signal.Signals, times: int) -> int:
        for _ in range(times):
            self.process.send_signal(sent)
            # As `make` and `timeout` do it, of which each passes the signal on: a moment later.
            time.sleep(0.002)
        return self.process.wait(timeout=120)

    def left(self) -> list[str]:
        """The programs that were started with a path in this directory; its fleets' cgroups and memory."""
        groups = [group.folder for fleet in self._fleets() for group in _groups(fleet)]
        programs = [process.name() for process in self._processes()]
        return groups + programs + [region.name for region in self._regions()]

    def clear(self) -> None:
        """Remove what a failed test left."""
        left = list(self._processes())
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=30)
        for region in self._regions():
            region.unlink(missing_ok=True)

    def _fleets(self) -> tuple[str, str]:
        return DEMO_FLEET, _profiling_fleet(self.directory / "state" / "trisect" / "profiling")

    def _regions(self) -> list[Path]:
        """The shared memory of its servers."""
        return [path for fleet in self._fleets() for path in FOLDER.glob(f"trisect~{fleet}~*")]

    def _processes(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            try:
                words = (*process.cmdline(), *process.environ().values())
            except psutil.Error:
                continue
            if any(str(self.directory) in word for word in words):
                yield process


@contextmanager
def running(directory: Path, *command: str) -> Iterator[Ctl]:
    made = Ctl(directory, *command)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()
        made.clear()


def _profiling_fleet(scratch: Path) -> str:
    nothing: Any = None
    profiler = Profiler(nothing, nothing, nothing, scratch, scratch)
    return profiler.fleet(Place(Device("cpu", ShareKind.CPU_QUOTA, CPU_GRID), "cpu-0"))


def _groups(fleet: str) -> list[Group]:
    return [group for mechanism in CHAIN for group in mechanism.groups(fleet)]


def ends(ctl: Ctl, verb: str, sent: signal.Signals, times: int = 1) -> None:
    """End it by signals; it says how to go on, and nothing of it runs any more."""
    code, name = CODES[sent]
    assert ctl.end(sent, times) == code, ctl.said
    assert f"ctl: {name}: {VERBS[verb].left}" in ctl.said.splitlines()[-2:]
    assert "Traceback" not in ctl.said
    gone(ctl)


def gone(ctl: Ctl) -> None:
    """Wait until nothing of it is left."""
    until(lambda: not ctl.left(), 30.0, "processes are left")


def test_an_interrupted_profile_keeps_what_is_measured_and_leaves_no_server(tmp_path: Path) -> None:
    profiles = tmp_path / "profiles"
    few = ("--set=percents=100,50", "--set=batches=1,2,4", "--budget", "10")
    command = (*CTL, "profile", MODEL, "--device", "cpu", "--profiles", str(profiles))
    with running(tmp_path, *command, *few) as ctl:
        until(lambda: partial_path(profiles, "cpu", MODEL).exists() or ctl.process.poll() is not None, 300.0)
        until(lambda: "tritonserver" in ctl.left())
        ends(ctl, "profile", signal.SIGINT)
    assert partial_path(profiles, "cpu", MODEL).exists()
    assert not list(profiles.rglob("*.tmp"))


def test_a_profile_that_is_terminated_twice_at_a_start_leaves_nothing(tmp_path: Path) -> None:
    few = ("--set=percents=100", "--set=batches=1")
    command = (*CTL, "profile", MODEL, "--device", "cpu", "--profiles", str(tmp_path / "p"))
    with running(tmp_path, *command, *few) as ctl:
        until(lambda: bool(ctl.left()[1:]))  # the command itself, and its server's group or process
        ends(ctl, "profile", signal.SIGTERM, times=2)


def demo_options(directory: Path) -> list[str]:
    """One workload, and nothing that another demo on this host has: no name, no port and no file."""
    spec = directory / "spec.yaml"
    spec.write_text(DEMO_SPEC)
    http, grpc, metrics = map(str, free_ports(3))
    ports = [f"--set=serve.listen.http={http}", f"--set=serve.listen.grpc={grpc}"]
    ports.append(f"--set=serve.listen.metrics={metrics}")
    return ["--name", DEMO_NAME, "--spec", str(spec), "--output", str(directory / "rendered"), *ports]


def test_the_readmes_demo_repairs_its_fault_and_leaves_nothing(tmp_path: Path) -> None:
    (make_demo,) = (line.split() for line in readme.commands() if "demo" in line)
    with running(tmp_path, *make_demo, f"OPTIONS={' '.join(demo_options(tmp_path))}") as ctl:
        assert ctl.process.wait(timeout=300.0) == 0, ctl.said + ctl.printed
        # Of a fast model the cut leaves so little that its server may answer no call at all.
        assert re.search("the guard redirected: (slow server|hang)", ctl.printed), ctl.printed
        assert ctl.printed.endswith("\n0 requests failed\n")
        gone(ctl)


def interrupted_demo(tmp_path: Path, stage: str, sent: signal.Signals, times: int) -> None:
    """Interrupt a demo when it says that a stage begins."""
    with running(tmp_path, *CTL, "demo", *demo_options(tmp_path)) as ctl:
        until(lambda: stage in ctl.said or ctl.process.poll() is not None, 300.0)
        assert ctl.process.poll() is None, ctl.said
        if times > 1:  # the second meets the clean-up of the first, which begins at once in a profile
            ctl.process.send_signal(sent)
            profiles = stage == STAGES[0]
            until(
                lambda: profiles or "destroy" in ctl.said.splitlines() or ctl.process.poll() is not None,
                120.0,
            )
        ends(ctl, "demo", sent)


def test_a_demo_that_is_terminated_twice_under_load_leaves_nothing(tmp_path: Path) -> None:
    interrupted_demo(tmp_path, "closed loop", signal.SIGTERM, 2)


@pytest.mark.soak
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("sent", CODES)
@pytest.mark.parametrize("stage", STAGES)
def test_a_demo_that_is_interrupted_at_any_stage_leaves_nothing(
    stage: str, sent: signal.Signals, times: int, tmp_path: Path
) -> None:
    interrupted_demo(tmp_path, stage, sent, times)
