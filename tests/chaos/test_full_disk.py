"""What dies while the disk of the fleet's state is full comes back, before there is room again."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from background import until
from ctl_fleet import Ctl, partition, plan, small_disk
from held_resources import processes
from steady_clients import CLIENTS, PAUSE_S, Traffic

pytestmark = pytest.mark.timeout(240)

GATEWAY = ("haproxy", "facade", "monitor", "supervisor")
KILLS = (*((one,) for one in GATEWAY), ("controller",), GATEWAY[:3], GATEWAY)
BACK_S = 60.0
PLAN = plan(partition("a", 30, shadow=False))


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Ctl]:
    """With its state on a small disk of its own, where this user may mount one."""
    with small_disk(tmp_path / "state", 12), Ctl(tmp_path, "full") as here:
        yield here


def fill(disk: Path) -> None:
    """Every byte: a file of a byte that is written later needs a block of its own."""
    with (disk / "filler").open("ab", buffering=0) as stream:
        for size in (1 << 16, 1 << 12):
            try:
                while stream.write(bytes(size)) == size:
                    pass
            except OSError:
                continue


def await_back(host: Ctl, programs: tuple[str, ...], before: set[int]) -> float:
    """Return how long it took until another process of each program runs, and the gateway is whole."""
    began = time.monotonic()
    while True:
        status = host.document("status")
        whole = status["gateway_missing"] == [] and status["controller"] is not None
        if whole and all({p.pid for p in processes(host, name)} - before for name in programs):
            return time.monotonic() - began
        assert time.monotonic() - began < BACK_S, (programs, status["gateway_missing"])
        time.sleep(0.2)


def test_what_is_killed_on_a_full_disk_comes_back_at_once(host: Ctl) -> None:
    host.apply(PLAN)
    state = host.files.parents[1]
    with Traffic(host) as traffic:
        traffic.await_more(20)
        for programs in KILLS:
            if os.path.ismount(state):
                fill(state)
                left = os.statvfs(state).f_bavail
                assert left == 0
            victims = [process for name in programs for process in processes(host, name)]
            assert len(victims) >= len(programs)
            failed, began = len(traffic.failed), time.monotonic()
            for victim in victims:
                victim.kill()
            psutil.wait_procs(victims, timeout=10)
            took_s = await_back(host, programs, {victim.pid for victim in victims})
            traffic.await_more(1)
            served_s = time.monotonic() - began
            traffic.await_more(20)
            lost = len(traffic.failed) - failed
            print(f"killed {', '.join(programs)}: back after {took_s:.1f} s, {lost} requests lost")
            # Without the supervisor and the facade nobody holds the ports until the controller has looked.
            closed_s = served_s if programs == GATEWAY else 0.0
            allowed = CLIENTS * (1 + closed_s / PAUSE_S) if "haproxy" in programs else 0
            assert lost <= allowed, traffic.failed[failed:]
        (state / "filler").unlink(missing_ok=True)


def test_a_killed_controller_is_started_again_unless_it_was_ended_on_purpose(host: Ctl) -> None:
    host.apply(PLAN)
    (first,) = processes(host, "controller")
    first.kill()
    first.wait(10)
    await_back(host, ("controller",), {first.pid})
    (second,) = processes(host, "controller")
    # Nor where the last command wants none.
    host.apply(PLAN, "--no-controller", ports=False)
    second.kill()
    second.wait(10)
    (supervisor,) = processes(host, "supervisor")
    supervisor.kill()
    supervisor.wait(10)
    until(lambda: "supervisor" not in host.document("status")["gateway_missing"])
    until(lambda: len(told(host)) > 1)
    assert processes(host, "controller") == []
    # The killed supervisor may have said so too.
    assert ["not started again" in reason for reason in told(host)][:2] == [False, True], told(host)
    assert len(told(host)) <= 3, told(host)


def told(host: Ctl) -> list[str]:
    """What the supervisors said of the controller."""
    events = host.document("events")["events"]
    return [e["reason"] for e in events if e["subject"] == "controller"]
