"""What is refused on a GPU, and its faults as one event; with fakes of NVML and MPS: nothing ran on a GPU."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_mps import fake_daemons
from fake_nvml import FakeGpu, FakeNvml

from controlplane.domain.errors import EngineError, InputError
from controlplane.domain.fleet import Labels, Role, Server, ServerSpec, ServerState
from controlplane.domain.observation import News
from launchers import watch as faults
from launchers.gpu import gpus, mps
from launchers.gpu.mps import MpsDaemons
from launchers.process import ProcessLauncher
from launchers.watch import LauncherWatch

pytestmark = pytest.mark.unit

ONE, TWO = "GPU-11111111-2222-3333-4444-555555555555", "GPU-99999999-2222-3333-4444-555555555555"


def spec(
    partition: str,
    percent: float,
    *,
    role: Role = Role.ACTIVE,
    fleet: str = "f",
    plan: str = "now",
    gpu: str = ONE,
) -> ServerSpec:
    return ServerSpec(Labels(fleet, plan, partition, role, "r"), "/m", ("m",), gpu, percent)


def server(partition: str, gpu: str = ONE) -> Server:
    made = spec(partition, 30, gpu=gpu)
    return Server("1", made, ServerState.RUNNING, "127.0.0.1", 1, 2, 3)


class Ends:
    """A launcher that heard these servers end."""

    def __init__(self) -> None:
        self.ended: list[Server] = []

    def news(self, servers: object) -> tuple[News, ...]:
        told = tuple(News((s.name,), "its process ended") for s in self.ended)
        self.ended = []
        return told

    def close(self) -> None:
        self.ended = []


@pytest.fixture
def nvml() -> FakeNvml:
    return FakeNvml(FakeGpu(ONE), FakeGpu(TWO))


@pytest.fixture
def daemons(tmp_path: Path, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> Iterator[MpsDaemons]:
    with fake_daemons(tmp_path / "mps", nvml, monkeypatch) as made:
        yield made


def test_a_gpu_that_is_gone_takes_all_its_servers_in_one_event(nvml: FakeNvml, daemons: MpsDaemons) -> None:
    a, b, other = server("a"), server("b"), server("c", TWO)
    ends = Ends()
    watch = LauncherWatch((ends,), daemons)
    assert watch.news((a, b, other)) == ()
    nvml.xids.append((nvml.gpus[0], 79))
    ends.ended = [a]
    (news,) = watch.news((a, b, other))
    assert news == News((a.name, b.name), f"{ONE}: Xid 79 (GPU has fallen off the bus)", ONE)
    assert watch.news((a, b, other)) == ()
    watch.close()
    assert nvml.listening == []


def test_an_xid_of_one_program_is_no_fault_unless_mps_says_so(
    nvml: FakeNvml, daemons: MpsDaemons, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "_ANSWER_S", 30.0)  # the fake is a shell, which a busy host holds up
    a, b = server("a"), server("b")
    watch = LauncherWatch((Ends(),), daemons)
    daemons.client(spec("a", 30), start=True)
    (daemons.pipes(ONE) / "clients").write_text("100\n101\n")
    watch.news((a, b))
    nvml.xids.append((nvml.gpus[0], 13))
    assert watch.news((a, b)) == ()
    (daemons.pipes(ONE) / "fault").write_text("")
    nvml.xids.append((nvml.gpus[0], 31))
    (news,) = watch.news((a, b))
    assert news.servers == (a.name, b.name)
    assert "MPS server reports a fatal fault, Xid 31" in news.reason
    with pytest.raises(EngineError, match="state FAULT and accepts no client"):
        daemons.client(spec("d", 10), start=True)


def test_a_daemon_that_hangs_over_a_fault_holds_no_look_up(
    daemons: MpsDaemons, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = server("a"), server("b")
    ends, waited, run = Ends(), list[float](), subprocess.run

    def watched(*given: Any, timeout: float, **named: Any) -> Any:
        waited.append(timeout)
        return run(*given, timeout=min(timeout, 0.1), **named)

    watch = LauncherWatch((ends,), daemons)
    daemons.client(spec("a", 30), start=True)
    (daemons.pipes(ONE) / "deaf").write_text("")
    ends.ended = [a]
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", watched)
        assert watch.news((a, b)) == (News((a.name,), "its process ended"),)
    assert max(waited) <= 0.5


def test_all_servers_of_a_gpu_that_end_together_are_one_event(daemons: MpsDaemons) -> None:
    a, b, other = server("a"), server("b"), server("c", TWO)
    ends = Ends()
    watch = LauncherWatch((ends,), daemons)
    ends.ended = [a, b, other]
    fault, single = watch.news((a, b, other))
    assert (fault.device, fault.servers) == (ONE, (a.name, b.name))
    assert (single.device, single.servers) == (None, (other.name,)), "one server alone is its own fault"


def test_without_a_driver_deaths_are_still_heard(
    nvml: FakeNvml, daemons: MpsDaemons, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise nvml.NVMLError

    monkeypatch.setattr(nvml, "nvmlInit", refuse)
    ends = Ends()
    watch = LauncherWatch((ends,), daemons)
    ends.ended = [server("a")]
    (news,) = watch.news((server("a"), server("b")))
    assert news.servers == (server("a").name,)
    watch.close()


def test_a_share_of_a_gpu_is_not_changed_while_it_runs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="fixed when the CUDA context is made"):
        ProcessLauncher(tmp_path).resize(server("a"), 50)


def test_active_shares_above_a_whole_gpu_are_refused() -> None:
    running = [spec("a", 60), spec("b", 30), spec("b", 40, role=Role.SHADOW), spec("z", 90, gpu=TWO)]
    gpus.check_shares(spec("c", 10), running)
    with pytest.raises(InputError, match=r"active shares of GPU-1.* would add up to 105 %"):
        gpus.check_shares(spec("c", 15), running)
    gpus.check_shares(spec("c", 100, role=Role.SHADOW), running)
    with pytest.raises(InputError, match="destroy the other fleet"):
        gpus.check_shares(spec("c", 20, fleet="g", plan="other"), running)


def test_while_a_plan_changes_the_sum_may_exceed_a_whole_gpu() -> None:
    before = [spec("a", 60, plan="before"), spec("b", 40, plan="before")]
    gpus.check_shares(spec("b", 60), before)
    gpus.check_shares(spec("a", 60), [spec("a", 60), spec("b", 40)])


def test_a_user_behind_another_users_clients_is_refused(daemons: MpsDaemons, tmp_path: Path) -> None:
    client = daemons.client(spec("a", 30), start=True)
    mps.check_user(client, os.getuid())
    # This very process stands for the MPS server: it runs as us.
    (daemons.pipes(ONE) / "server").write_text(f"{os.getpid()}\n")
    (daemons.pipes(ONE) / "clients").write_text("100\n")
    mps.check_user(client, os.getuid())
    roots = replace(client, daemon_uid=0)
    with pytest.raises(EngineError, match=f"serves user {os.getuid()}.* one launcher and one user"):
        mps.check_user(roots, os.getuid() + 4000)
    (daemons.pipes(ONE) / "clients").write_text("")
    mps.check_user(roots, os.getuid() + 4000)
