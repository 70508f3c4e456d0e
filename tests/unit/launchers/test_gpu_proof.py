"""Which share of a GPU is believed, with FAKES of NVML and MPS: nothing here ran on a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import build
import pytest
from background import running
from fake_nvml import FakeGpu, FakeNvml

from controlplane.domain.errors import InputError
from launchers.docker.launcher import DockerLauncher
from launchers.gpu import control, gpus, proof
from launchers.gpu.mps import MpsDaemons
from launchers.gpu.proof import GpuClients, Held
from launchers.process import ProcessLauncher

UUID = "GPU-11111111-2222-3333-4444-555555555555"


@pytest.mark.parametrize(
    ("clients", "others", "why"),
    [
        ({7: Held(30.0, 100.0)}, {9}, None),
        ({7: Held(None, None)}, set(), None),
        ({7: Held(None, 100.0)}, set(), None),
        ({}, set(), "none of its processes"),
        ({9: Held(30.0, 100.0)}, set(), "none of its processes"),
        ({7: Held(30.0, 100.0)}, {8}, "process 8 uses the GPU without MPS"),
        ({7: Held(100.0, 100.0)}, set(), "held to 100 %, not to 30 %"),
        ({7: Held(30.0, 20.0)}, set(), "held to 20 %, not to 30 %"),
        ({7: Held(30.0, 100.0)}, None, None),
        ({7: Held(None, 20.0)}, set(), "held to 20 %, not to 30 %"),
    ],
)
def test_a_share_is_believed_where_all_processes_are_clients_with_their_percentage(
    clients: dict[int, Held], others: set[int] | None, why: str | None
) -> None:
    found = proof.lack(30.0, (7, 8), GpuClients(clients, None if others is None else frozenset(others)))
    assert found is None if why is None else why in str(found)


def test_the_percentage_in_effect_is_read_back(daemons: MpsDaemons, nvml: FakeNvml) -> None:
    client = daemons.client(build.spec(device=UUID, percent=30), start=True)
    pipes = daemons.pipes(UUID)
    with running(["sleep", "60"], env={**os.environ, **client.environment}) as process:
        (pipes / "clients").write_text(f"{process.pid}\n")
        nvml.gpus[0].compute = {process.pid: 300, 1: 20}
        nvml.gpus[0].mps = {process.pid: 300}
        (pipes / "percentage").write_text("80.0")
        seen = proof.clients_of(UUID, pipes)
        assert seen == GpuClients({process.pid: Held(30.0, 80.0)}, frozenset({1}))


def test_a_server_that_ends_at_once_is_named_until_one_is_ready(daemons: MpsDaemons) -> None:
    daemons.client(build.spec(device=UUID), start=True)
    pipes = daemons.pipes(UUID)
    log = pipes.parent / "log" / "control.log"
    assert proof.server_exit(pipes) is None
    log.write_text("[2026-02-06 Control 64] Server 92 exited with status 1\n")
    assert "mps-server exited" in proof.way_out(pipes)
    log.write_text(log.read_text() + "[2026-02-06 Control 64] NEW SERVER 95: Ready\n")
    assert proof.server_exit(pipes) is None


def test_a_daemon_gets_no_percentage_or_protocol_of_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(control.PERCENTAGE, "20")
    monkeypatch.setenv("CUDA_MPS_PROTOCOL_VERSION", "3")
    found = control.environment(Path("/p"))
    assert {key: value for key, value in found.items() if key.startswith("CUDA_MPS")} == {control.PIPES: "/p"}


def test_a_daemon_that_a_loading_server_names_is_not_ended(daemons: MpsDaemons) -> None:
    """Its starter may have been killed, and its locks with it."""
    client = daemons.client(build.spec(device=UUID), start=True)
    with running(["sleep", "60"], env={**os.environ, **client.environment}):
        assert daemons.sweep() == ()
    with daemons.starting(UUID):
        assert daemons.sweep() == ()
    assert daemons.sweep() == (f"MPS daemon of {UUID}",)


def test_memory_is_read_from_both_lists_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of them has the clients of MPS depends on the driver."""
    with running(["sleep", "60"]) as process:
        one, two, three = 1, os.getpid(), process.pid
        old = FakeGpu("GPU-1", compute={one: 100, two: None}, mps=None)
        new = FakeGpu("GPU-2", compute={one: 100, two: None}, mps={two: 50, three: 30})
        monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(old, new))
        assert gpus.processes("GPU-1") == {one: 100.0, two: None}
        assert gpus.processes("GPU-2") == {one: 100.0, two: 50.0, three: 30.0}
        assert gpus.memory_mb("GPU-2", {two, three}) == 80.0
        assert gpus.memory_mb("GPU-1", {two}) is None
        assert gpus.memory_mb("GPU-1", {one, two}) is None, "not known of all of them"


@pytest.mark.parametrize(
    "gpu",
    [
        FakeGpu(UUID, compute=None, mps=None),
        FakeGpu(UUID, compute={1: 100, 2**22 + 1: 300}),
        FakeGpu("GPU-that-fell-off-the-bus"),
    ],
)
def test_nothing_is_said_of_processes_that_the_driver_does_not_list_by_our_pids(
    gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Releases lack the lists (535.98), and in a container they may have the host's pids."""
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(gpu))
    assert gpus.processes(UUID) is None
    assert gpus.memory_mb(UUID, {1}) is None
    assert proof.clients_of(UUID, tmp_path / "none").others is None


HIDDEN = """
import sys
sys.path[:] = {path!r}
from fake_nvml import FakeGpu, FakeNvml
from launchers.gpu import control, gpus, proof
foreign = FakeGpu("GPU-1", compute={{1: 100, 2**22 + 1: 300}})
sys.modules["pynvml"] = FakeNvml(foreign, FakeGpu("GPU-2", compute={{1: 100}}))
control.servers = lambda *_: ["1"]
print(gpus.processes("GPU-1"), gpus.processes("GPU-2"), proof.way_out(gpus.Path("/p")))
"""


@pytest.mark.skipif(
    os.getuid() != 0, reason="HIDEPID NOT TRIED: only root mounts /proc and becomes another user"
)
def test_a_process_that_proc_hides_is_there_and_none_of_a_foreign_namespace_is() -> None:
    other = "setpriv --reuid=4242 --regid=4242 --clear-groups --inh-caps=+dac_read_search"
    hide = f'mount -t proc -o hidepid=2 proc /proc && exec {other} --ambient-caps=+dac_read_search "$@"'
    program = [sys.executable, "-c", HIDDEN.format(path=sys.path)]
    line = ["unshare", "--mount", "sh", "-c", hide, "sh", *program]
    told = subprocess.run(line, capture_output=True, text=True, check=False)
    assert told.stdout.startswith("None {1: 100.0} "), told.stderr
    assert "hidepid" in told.stdout


def test_memory_without_lists_is_the_growth_since_the_start(
    daemons: MpsDaemons, nvml: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = ProcessLauncher(tmp_path)
    monkeypatch.setattr(launcher, "_mps", daemons)
    monkeypatch.setattr(launcher, "_processes", lambda _: (os.getpid(),))
    spec = build.spec(device=UUID, percent=30)
    launcher._place(spec, start=True)
    nvml.gpus[0].used += 500 * 2**20
    found = launcher.usage(build.server(spec))
    assert (found.memory_mb, found.memory_by) == (500.0, "growth")
    nvml.gpus[0].used -= 600 * 2**20
    assert launcher.usage(build.server(spec)).memory_mb is None, "a neighbour ended meanwhile"
    nvml.gpus[0].mps = {os.getpid(): 450}
    found = launcher.usage(build.server(spec))
    assert (found.memory_mb, found.memory_by) == (450.0, "processes")
    nvml.gpus[0].mps, nvml.gpus[0].memory = {}, None
    assert launcher.usage(build.server(spec)).memory_mb is None


def test_a_gpu_with_the_hosts_memory_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(FakeGpu(UUID, "NVIDIA GB10", memory=None)))
    (found,) = gpus.inventory()
    assert found.memory_mb is None
    limits = gpus.limits(UUID)
    assert limits is not None
    assert limits.memory_mb is None


def test_an_image_that_does_not_run_on_the_gpu_is_refused(tmp_path: Path, daemons: MpsDaemons) -> None:
    launcher = DockerLauncher(tmp_path, address=f"unix://{tmp_path}/no.sock")
    with pytest.raises(InputError, match=r"compute capability 7.5.*24\.10"):
        launcher.command(build.spec(device=UUID))
