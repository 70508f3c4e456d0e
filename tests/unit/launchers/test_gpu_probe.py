"""The timed probe of a share, with a FAKE of libcuda: it never ran on a GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import build
import pytest
from fake_mps import PROGRAMS, fake_daemons
from fake_nvml import FakeGpu, FakeNvml

from controlplane.domain.errors import EngineError
from launchers.gpu import gpus, probe

pytestmark = pytest.mark.slow

COMPILER = shutil.which("cc")
UUID = "GPU-11111111-2222-3333-4444-555555555555"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    if COMPILER is None:
        pytest.skip("PROBE NOT RUN: there is no C compiler (cc), which builds the fake libcuda")
    library, source = tmp_path / "libcuda.so.1", PROGRAMS / "libcuda.c"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, source], check=True)
    return {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "FAKE_UNENFORCED": str(tmp_path / "unenforced")}


def test_half_of_a_gpu_takes_twice_as_long(environment: dict[str, str]) -> None:
    whole_ms, half_ms = (probe.measured(environment, percent) for percent in (100.0, 50.0))
    assert whole_ms >= probe.ROUND
    assert probe.verdict(half_ms, whole_ms)[0]


def test_a_percentage_that_changes_nothing_is_not_enforced(environment: dict[str, str]) -> None:
    Path(environment["FAKE_UNENFORCED"]).touch()
    whole_ms, half_ms = (probe.measured(environment, percent) for percent in (100.0, 50.0))
    held, said = probe.verdict(half_ms, whole_ms)
    assert not held
    assert "not enforced" in said


def test_the_first_server_of_a_device_needs_an_enforced_percentage(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LD_LIBRARY_PATH", "FAKE_UNENFORCED"):
        monkeypatch.setenv(name, environment[name])
    unenforced = Path(environment["FAKE_UNENFORCED"])
    with fake_daemons(tmp_path / "mps", FakeNvml(FakeGpu(UUID)), monkeypatch) as daemons:
        client = daemons.client(build.spec(device=UUID), start=True)
        unenforced.touch()
        with pytest.raises(EngineError, match=f"{UUID}: .*not enforced"):
            daemons.prove_share(client, os.getuid())
        daemons.prove_share(client, os.getuid() + 1)  # measures nothing for another user
        unenforced.unlink()
        daemons.prove_share(client, os.getuid())
        unenforced.touch()
        daemons.prove_share(client, os.getuid())  # once for a daemon


def test_the_drivers_words_and_its_missing_file_are_said(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(gpus, "_DEVICES", tmp_path)
    with pytest.raises(EngineError, match=r"CUDA error 999: unknown error; .*nvidia-uvm: No such file"):
        probe.measured({**environment, "FAKE_UVM": str(tmp_path / "nvidia-uvm")}, 50.0)
    (tmp_path / "nvidia-uvm").touch()
    assert gpus.device_file_away() is None


def test_without_libcuda_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"libcuda\.so\.1"):
        probe.measured({**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}, 50.0)


@pytest.mark.parametrize(("half_ms", "held"), [(200.0, True), (160.0, True), (140.0, False), (100.0, False)])
def test_the_verdict(half_ms: float, held: bool) -> None:
    assert probe.verdict(half_ms, 100.0)[0] is held
