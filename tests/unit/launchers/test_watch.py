"""Several sources of events of the same servers, and faults of GPUs as one event.

NVML and MPS are fakes: nothing ran on a GPU.
"""

import subprocess
from collections.abc import Collection
from typing import Any

import build
import pytest
from fake_nvml import FakeNvml

from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import Server
from controlplane.domain.observation import Health, News
from launchers import watch as faults
from launchers.gpu.mps import MpsDaemons
from launchers.watch import LauncherWatch

ONE, TWO = "GPU-11111111-2222-3333-4444-555555555555", "GPU-99999999-2222-3333-4444-555555555555"


def server(partition: str, gpu: str = ONE) -> Server:
    return build.server(build.spec(partition, device=gpu, percent=30))


class Source:
    """Reports what it was given, once."""

    def __init__(self) -> None:
        self.left: list[News] = []

    def ended(self, *servers: Server) -> None:
        self.left = [News((s.name,), "its process ended") for s in servers]

    def news(self, servers: Collection[Server]) -> tuple[News, ...]:
        found, self.left = tuple(self.left), []
        return found

    def close(self) -> None:
        self.left = []


def test_an_end_is_reported_once_and_nothing_of_the_server_after_it() -> None:
    kernel, engine = Source(), Source()
    one = build.server(build.spec())
    watch = LauncherWatch((kernel, engine), MpsDaemons())
    impaired = News((one.name,), "a process of its models ended", health=Health.IMPAIRED)
    ended = News((one.name,), "its process ended", certain=True)
    engine.left = [impaired]
    assert watch.news((one,)) == (impaired,)
    kernel.left, engine.left = [ended], [impaired]
    assert watch.news((one,)) == (ended,)
    engine.left = [News((one.name,), "its container ended with exit code 137")]
    assert watch.news((one,)) == ()
    watch.close()


def test_a_gpu_that_is_gone_takes_all_its_servers_in_one_event(nvml: FakeNvml, daemons: MpsDaemons) -> None:
    a, b, other = server("a"), server("b"), server("c", TWO)
    ends = Source()
    watch = LauncherWatch((ends,), daemons)
    assert watch.news((a, b, other)) == ()
    nvml.xids.append((nvml.gpus[0], 79))
    ends.ended(a)
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
    watch = LauncherWatch((Source(),), daemons)
    daemons.client(a.spec, start=True)
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
        daemons.client(server("d").spec, start=True)


def test_a_daemon_that_hangs_over_a_fault_holds_no_look_up(
    daemons: MpsDaemons, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = server("a"), server("b")
    ends, waited, run = Source(), list[float](), subprocess.run

    def watched(*given: Any, timeout: float, **named: Any) -> Any:
        waited.append(timeout)
        return run(*given, timeout=min(timeout, 0.1), **named)

    watch = LauncherWatch((ends,), daemons)
    daemons.client(a.spec, start=True)
    (daemons.pipes(ONE) / "deaf").write_text("")
    ends.ended(a)
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", watched)
        assert watch.news((a, b)) == (News((a.name,), "its process ended"),)
    assert max(waited) <= 0.5


def test_all_servers_of_a_gpu_that_end_together_are_one_event(daemons: MpsDaemons) -> None:
    a, b, other = server("a"), server("b"), server("c", TWO)
    ends = Source()
    watch = LauncherWatch((ends,), daemons)
    ends.ended(a, b, other)
    fault, single = watch.news((a, b, other))
    assert (fault.device, fault.servers) == (ONE, (a.name, b.name))
    assert (single.device, single.servers) == (None, (other.name,)), "one server alone is its own fault"


def test_without_a_driver_deaths_are_still_heard(
    nvml: FakeNvml, daemons: MpsDaemons, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise nvml.NVMLError

    monkeypatch.setattr(nvml, "nvmlInit", refuse)
    ends = Source()
    watch = LauncherWatch((ends,), daemons)
    ends.ended(server("a"))
    (news,) = watch.news((server("a"), server("b")))
    assert news.servers == (server("a").name,)
    watch.close()
