"""MPS, NVML and the shares of a GPU, with fakes of both: nothing here ran on a GPU."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import build
import pytest
from fake_nvml import FakeGpu, FakeNvml, NVMLError, NVMLError_LibraryNotFound

from controlplane.domain.device import DeviceReading
from controlplane.domain.errors import EngineError, InputError, LaunchTimeout, MissingTool
from controlplane.domain.fleet import Role, ServerSpec
from launchers.gpu import checks, control, gpus, mps, proof
from launchers.gpu.mps import MpsDaemons
from launchers.process import ProcessLauncher

UUID = "GPU-11111111-2222-3333-4444-555555555555"
OTHER = "GPU-99999999-2222-3333-4444-555555555555"


def spec(device: str = UUID, memory_mb: float | None = 4096) -> ServerSpec:
    return build.spec(device=device, percent=37.5, memory_limit_mb=memory_mb)


def share(partition: str, percent: float, *, gpu: str = UUID, **more: Any) -> ServerSpec:
    return build.spec(partition, device=gpu, percent=percent, **more)


@pytest.fixture
def nvml() -> FakeNvml:
    return FakeNvml(FakeGpu(OTHER, mig=1), FakeGpu(UUID, mig=0, compute={1: 1024, os.getpid(): 2048}))


def pipes_of(tmp_path: Path) -> Path:
    return tmp_path / "mps" / UUID / "pipe"


def pid_of(tmp_path: Path) -> str:
    return (pipes_of(tmp_path) / "nvidia-cuda-mps-control.pid").read_text()


def test_the_inventory(daemons: MpsDaemons) -> None:
    assert gpus.inventory() == (
        gpus.HostGpu(0, OTHER, "Tesla V100-SXM2-16GB", 16160.0, True, "DEFAULT", (7, 0), "550.54.15"),
        gpus.HostGpu(1, UUID, "Tesla V100-SXM2-16GB", 16160.0, False, "DEFAULT", (7, 0), "550.54.15"),
    )
    assert gpus.reading(UUID) == DeviceReading("Tesla V100-SXM2-16GB", "550.54.15", 250.0, 1530.0)
    assert gpus.reading("cpu-0") == DeviceReading()
    assert gpus.memory_mb(UUID, {1, os.getpid()}) == 3072.0
    assert gpus.memory_mb(UUID, {7}) is None


def test_a_daemon_is_started_once_and_used_again(daemons: MpsDaemons, tmp_path: Path) -> None:
    client = daemons.client(spec(), start=True)
    assert client.environment == {
        "CUDA_MPS_PIPE_DIRECTORY": str(pipes_of(tmp_path)),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "37.5",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4096M",
    }
    first = pid_of(tmp_path)
    assert MpsDaemons(tmp_path / "mps").client(spec(), start=True) == client
    assert pid_of(tmp_path) == first


def test_a_preview_starts_nothing(daemons: MpsDaemons, tmp_path: Path) -> None:
    assert daemons.client(spec(memory_mb=None), start=False).environment == {
        "CUDA_MPS_PIPE_DIRECTORY": str(pipes_of(tmp_path)),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "37.5",
    }
    assert not (tmp_path / "mps").exists()


def test_only_a_daemon_without_clients_is_ended(daemons: MpsDaemons, tmp_path: Path) -> None:
    daemons.client(spec(), start=True)
    (pipes_of(tmp_path) / "clients").write_text("100\n101\n")
    assert daemons.sweep() == ()
    assert [*proof.clients_of(UUID, pipes_of(tmp_path)).clients] == [100, 101]
    (pipes_of(tmp_path) / "clients").write_text("")
    assert daemons.sweep() == (f"MPS daemon of {UUID}",)
    assert daemons.sweep() == ()
    assert not pipes_of(tmp_path).exists()


def test_a_foreign_daemon_is_used_and_never_ended(
    daemons: MpsDaemons, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemons.client(spec(), start=True)
    monkeypatch.setenv(control.PIPES, str(pipes_of(tmp_path)))
    other = MpsDaemons(tmp_path / "other")
    assert other.client(spec(), start=True).pipe_directory == str(pipes_of(tmp_path))
    assert other.sweep() == ()
    assert control.servers(pipes_of(tmp_path)) is not None


def test_a_foreign_daemon_that_is_not_there(
    daemons: MpsDaemons, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(control.PIPES, str(tmp_path))
    with pytest.raises(EngineError, match=r"no MPS daemon answers .*CUDA_MPS_PIPE_DIRECTORY"):
        daemons.client(spec(), start=True)


def test_a_daemon_of_another_gpu(
    daemons: MpsDaemons, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(FakeGpu(OTHER), FakeGpu(UUID)))
    daemons.client(spec(), start=True)
    monkeypatch.setenv(control.PIPES, str(pipes_of(tmp_path)))
    with pytest.raises(EngineError, match=f"serves {UUID}, not {OTHER}"):
        daemons.client(spec(OTHER), start=True)


@pytest.mark.parametrize(
    ("file", "text", "error", "says"),
    [
        ("clients", "\n".join(map(str, range(48))), EngineError, "48 MPS clients already"),
        ("deaf", "", LaunchTimeout, "clients of two users wait for each other"),
        ("broken", "", EngineError, "did not start: MPS control daemon: no device"),
    ],
)
def test_a_daemon_that_is_full_hangs_or_does_not_start(
    daemons: MpsDaemons,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    text: str,
    error: type[EngineError],
    says: str,
) -> None:
    pipes_of(tmp_path).mkdir(parents=True)
    if file != "broken":
        daemons.client(spec(), start=True)
    (pipes_of(tmp_path) / file).write_text(f"{text}\n")
    with monkeypatch.context() as patch:  # it answers again when it is ended
        if file == "deaf":
            patch.setattr(control, "ANSWER_S", 0.2)
        with pytest.raises(error, match=says):
            daemons.client(spec(), start=True)


def test_gpus_that_cannot_be_shared(daemons: MpsDaemons) -> None:
    with pytest.raises(InputError, match=r"MIG .*nvidia-smi -i 0 -mig 0"):
        daemons.client(spec(OTHER), start=True)
    with pytest.raises(InputError, match=f"no GPU GPU-0; it has: {OTHER}, {UUID}"):
        daemons.client(spec("GPU-0"), start=True)


def test_no_tools(daemons: MpsDaemons, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(control, "_PLACES", str(tmp_path))
    with pytest.raises(MissingTool, match="nvidia-compute-utils"):
        daemons.client(spec(), start=True)
    assert not next(c for c in checks.capabilities(daemons) if c.name == "mps").available
    assert daemons.sweep() == ()


def test_whom_clients_run_as() -> None:
    mps.check_user(mps.MpsClient(UUID, "/p", os.getuid(), {}), os.getuid())
    assert mps.MpsClient(UUID, "/p", 0, {}).uid == 1000, (
        "root's daemon takes one user, who is never root here"
    )
    with pytest.raises(EngineError, match="another user"):
        mps.check_user(mps.MpsClient(UUID, "/p", os.getuid() + 4000, {}), os.getuid())


def test_without_a_driver_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(fails=NVMLError_LibraryNotFound()))
    assert gpus.inventory() == ()
    assert gpus.trouble() is None
    assert gpus.reading(UUID) == DeviceReading()
    with pytest.raises(InputError, match="it has: none"):
        gpus.whole(UUID)


def test_a_driver_that_was_upgraded_under_its_loaded_module_is_no_missing_driver(
    daemons: MpsDaemons, monkeypatch: pytest.MonkeyPatch
) -> None:
    mismatch = NVMLError("Driver/library version mismatch")
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(FakeGpu(UUID), fails=mismatch))
    line = checks.capabilities(daemons)[0]
    assert (line.available, line.detail) == (False, str(mismatch))
    with pytest.raises(InputError, match="it has: Driver/library version mismatch"):
        gpus.whole(UUID)


@pytest.mark.parametrize(
    ("gpu", "why"),
    [
        (FakeGpu(UUID, mode="PROHIBITED"), "nvidia-smi -i 1 -c DEFAULT"),
        (FakeGpu(UUID, "Tesla P4", capability=(6, 1)), "older than Volta"),
        (FakeGpu(UUID, lost=True), f"it has: {OTHER}"),
    ],
)
def test_a_gpu_that_takes_no_shares_is_refused_and_the_others_are_listed(
    gpu: FakeGpu, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(FakeGpu(OTHER), gpu))
    assert gpus.inventory()[0].uuid == OTHER
    with pytest.raises(InputError, match=why):
        gpus.whole(UUID)


@pytest.mark.parametrize("how", ["link", "open", "file"])
def test_a_folder_that_another_user_may_have_prepared_is_refused(tmp_path: Path, how: str) -> None:
    root, elsewhere = tmp_path / "trisect-mps-1000", tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    match how:
        case "link":
            root.symlink_to(elsewhere)
        case "open":
            root.mkdir()
            root.chmod(0o777)
        case _:
            root.write_text("")
    with pytest.raises(EngineError, match=r"trisect-mps-1000.*(link, another user's|cannot be made)"):
        mps.own_folder(root)
    assert list(elsewhere.iterdir()) == []


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mps.own_folder(tmp_path / "mine")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(EngineError, match="another user's"):
        mps.own_folder(tmp_path / "mine")


def test_a_share_of_a_gpu_is_not_changed_while_it_runs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="fixed when the CUDA context is made"):
        ProcessLauncher(tmp_path).resize(build.server(share("a", 30)), 50)


def test_active_shares_above_a_whole_gpu_are_refused() -> None:
    running = [share("a", 60), share("b", 30), share("b", 40, role=Role.SHADOW), share("z", 90, gpu=OTHER)]
    gpus.check_shares(share("c", 10), running)
    with pytest.raises(InputError, match=r"active shares of GPU-1.* would add up to 105 %"):
        gpus.check_shares(share("c", 15), running)
    gpus.check_shares(share("c", 100, role=Role.SHADOW), running)
    with pytest.raises(InputError, match="destroy the other fleet"):
        gpus.check_shares(share("c", 20, fleet="g", plan="other"), running)


def test_while_a_plan_changes_the_sum_may_exceed_a_whole_gpu() -> None:
    before = [share("a", 60, plan="before"), share("b", 40, plan="before")]
    gpus.check_shares(share("b", 60), before)
    gpus.check_shares(share("a", 60), [share("a", 60), share("b", 40)])


def test_a_user_behind_another_users_clients_is_refused(daemons: MpsDaemons, tmp_path: Path) -> None:
    client = daemons.client(share("a", 30), start=True)
    mps.check_user(client, os.getuid())
    # This very process stands for the MPS server: it runs as us.
    (daemons.pipes(UUID) / "server").write_text(f"{os.getpid()}\n")
    (daemons.pipes(UUID) / "clients").write_text("100\n")
    mps.check_user(client, os.getuid())
    roots = replace(client, daemon_uid=0)
    with pytest.raises(EngineError, match=f"serves user {os.getuid()}.* one launcher and one user"):
        mps.check_user(roots, os.getuid() + 4000)
    (daemons.pipes(UUID) / "clients").write_text("")
    mps.check_user(roots, os.getuid() + 4000)
