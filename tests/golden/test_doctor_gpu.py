"""What `ctl doctor` says of GPUs, with FAKES of NVML and MPS: nothing here ran on a GPU."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import build
import pytest
from fake_mps import PROGRAMS, fake_daemons
from fake_nvml import FakeGpu, FakeNvml

from launchers.gpu import checks, control, gpus, probe
from launchers.gpu.mps import MpsDaemons

UUID, OTHER = "GPU-11111111-2222-3333-4444-555555555555", "GPU-99999999-2222-3333-4444-555555555555"
GOLDEN = Path(__file__).parent / "doctor_gpu.txt"


def a_foreign_daemon(patch: pytest.MonkeyPatch, pipes: Path) -> None:
    patch.setenv(control.PIPES, str(pipes))


def none_where_one_is_named(patch: pytest.MonkeyPatch, pipes: Path) -> None:
    patch.setenv(control.PIPES, str(pipes.parent))


def another_gpus_daemon(patch: pytest.MonkeyPatch, pipes: Path) -> None:
    a_foreign_daemon(patch, pipes)
    patch.setattr(control, "daemon_variable", lambda *_: OTHER)


def another_users_daemon(patch: pytest.MonkeyPatch, pipes: Path) -> None:
    patch.setattr(control, "owner", lambda _: 4242)
    patch.setattr(os, "getuid", lambda: 1000)


def a_server_that_exits(patch: pytest.MonkeyPatch, pipes: Path) -> None:
    (pipes.parent / "log" / "control.log").write_text("Server 92 exited with status 1\n")


def a_fault(patch: pytest.MonkeyPatch, pipes: Path) -> None:
    (pipes / "clients").write_text("100\n")
    (pipes / "fault").write_text("")


def no_device_file(patch: pytest.MonkeyPatch, pipes: Path) -> None:
    (pipes.parents[1] / "nvidiactl").write_text("")
    patch.setattr(gpus, "_DEVICES", pipes.parents[1])


CASES: dict[str, tuple[FakeGpu | None, Callable[[pytest.MonkeyPatch, Path], None] | None]] = {
    "no_gpu": (None, None),
    "no_daemon": (FakeGpu(UUID), None),
    "mig": (FakeGpu(UUID, "NVIDIA A100-SXM4-80GB", mig=1), None),
    "gpu_lost": (FakeGpu(UUID, lost=True), None),
    "prohibited": (FakeGpu(UUID, mode="PROHIBITED"), None),
    "before_volta": (FakeGpu(UUID, "Tesla P4", capability=(6, 1)), None),
    "no_device_file": (FakeGpu(UUID), no_device_file),
    "other_processes": (FakeGpu(UUID, compute={1: 300}), lambda *_: None),
    "other_pid_namespace": (FakeGpu(UUID, compute={2**22 + 1: 300}), lambda *_: None),
    "foreign_daemon": (FakeGpu(UUID), a_foreign_daemon),
    "foreign_daemon_away": (FakeGpu(UUID), none_where_one_is_named),
    "foreign_daemon_of_another_gpu": (FakeGpu(UUID), another_gpus_daemon),
    "wrong_user": (FakeGpu(UUID), another_users_daemon),
    "server_exits": (FakeGpu(UUID), a_server_that_exits),
    "fault": (FakeGpu(UUID), a_fault),
}


@contextlib.contextmanager
def host(case: str) -> Iterator[tuple[Path, MpsDaemons]]:
    """A host of that case, with its folder; a daemon runs where the case does something to it."""
    gpu, change = CASES[case]
    nvml = FakeNvml(*[] if gpu is None else [gpu])
    with tempfile.TemporaryDirectory(prefix="gpu") as name, pytest.MonkeyPatch.context() as patch:
        root = Path(name, "mps")
        patch.setattr(probe, "measured", lambda _, percent: 44_000.0 / percent)
        with fake_daemons(root, nvml, patch) as daemons:
            if change is not None:
                daemons.client(build.spec(device=UUID), start=True)
                with pytest.MonkeyPatch.context() as inner:
                    change(inner, daemons.pipes(UUID))
                    yield root, daemons
            else:
                yield root, daemons


def lines(case: str) -> str:
    """The lines as a person reads them."""
    with host(case) as (root, daemons):
        found = checks.capabilities(daemons)
    made = ""
    for one in found:
        remedy = "" if one.available or not one.remedy else f" -> {one.remedy}"
        made += f"{'yes' if one.available else 'no':4}{one.name:20}{one.detail}{remedy}\n"
    return made.replace(str(root), "/tmp/trisect-mps-1000").replace(str(PROGRAMS), "/usr/bin")


def test_the_lines_of_gpus() -> None:
    assert "\n".join(f"# {case}\n{lines(case)}" for case in CASES) == GOLDEN.read_text()
