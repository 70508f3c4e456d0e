"""The gateway's waits, from counters as the kernel writes them, and of a real process."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from controlplane.control.guard.rule import contention
from controlplane.domain.observation import HostSeen
from controlplane.monitor.host import READ_S, STALE_S, WINDOW_S, GatewayHost


@dataclass
class Kernel:
    """/proc and cgroups of one gateway with two threads, and a clock."""

    root: Path
    now_s: float = 100.0
    cgroup: str = "0::/box"

    def write(
        self, *, run_s: float, wait_s: float, steal: int, ticks: int, throttled_s: float, runs: int = 12
    ) -> None:
        for thread in ("7", "8"):
            task = self.root / "proc" / "7" / "task" / thread
            task.mkdir(parents=True, exist_ok=True)
            (task / "schedstat").write_text(f"{int(run_s * 5e8)} {int(wait_s * 5e8)} {runs}\n")
        (self.root / "proc" / "7" / "cgroup").write_text(f"{self.cgroup}\n")
        (self.root / "proc" / "stat").write_text(f"cpu  {ticks - steal} 0 0 0 0 0 0 {steal} 5 0\ncpu0 1\n")
        for folder, line in (
            ("box", f"throttled_usec {int(throttled_s * 1e6)}"),
            ("cpu,cpuacct/box", f"throttled_time {int(throttled_s * 1e9)}"),
        ):
            (self.root / "groups" / folder).mkdir(parents=True, exist_ok=True)
            (self.root / "groups" / folder / "cpu.stat").write_text(f"nr_periods 3\n{line}\n")

    def host(self) -> GatewayHost:
        return GatewayHost(lambda: [7], self.root / "proc", self.root / "groups", lambda: self.now_s)


@pytest.mark.parametrize("cgroup", ["0::/box", "4:cpu,cpuacct:/box"])
def test_waits_stolen_and_throttled_time_are_of_the_last_moments(tmp_path: Path, cgroup: str) -> None:
    kernel = Kernel(tmp_path, cgroup=cgroup)
    kernel.write(run_s=50.0, wait_s=900.0, steal=1000, ticks=90_000, throttled_s=70.0)
    host = kernel.host()
    assert host.seen() is None, "one reading says nothing"
    kernel.write(run_s=50.1, wait_s=900.3, steal=1020, ticks=90_200, throttled_s=70.5)
    kernel.now_s += WINDOW_S / 2
    assert host.seen() is None, "too soon"
    kernel.now_s += WINDOW_S / 2
    seen = host.seen()
    assert seen is not None
    assert (seen.waiting, seen.steal, seen.throttled) == pytest.approx((0.75, 0.1, 0.5))


@pytest.mark.parametrize(
    ("run_us", "wait_us", "runs", "contended"),
    [
        (13, 10, 705, False),
        (16, 23, 638, False),
        (15, 41, 638, False),  # as long as it runs three times, and nothing for a request
        (20, 169, 451, True),
        (20, 358, 396, True),
        (19, 606, 410, True),
    ],
)
def test_a_thread_that_wakes_on_a_free_core_is_not_contended(
    tmp_path: Path, run_us: float, wait_us: float, runs: int, contended: bool
) -> None:
    """Means of one second of a HAProxy at 400 requests/s: with its cores free, and beside two busy loops."""
    kernel = Kernel(tmp_path)
    kernel.write(run_s=5.0, wait_s=5.0, steal=0, ticks=100, throttled_s=0.0, runs=0)
    host = kernel.host()
    host.seen()
    ran_s, waited_s = 5.0 + 1e-6 * run_us * runs, 5.0 + 1e-6 * wait_us * runs
    kernel.write(run_s=ran_s, wait_s=waited_s, steal=0, ticks=300, throttled_s=0.0, runs=runs // 2)
    kernel.now_s += WINDOW_S
    assert bool(contention(host.seen())) is contended


def test_what_is_old_says_nothing_of_now(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    kernel.write(run_s=1.0, wait_s=1.0, steal=0, ticks=100, throttled_s=0.0)
    host = kernel.host()
    host.seen()
    kernel.write(run_s=1.1, wait_s=1.9, steal=0, ticks=300, throttled_s=0.0)
    kernel.now_s += STALE_S
    assert host.seen() is None, "the reading before is too old to compare with"
    kernel.write(run_s=1.1, wait_s=1.9, steal=0, ticks=500, throttled_s=0.0)
    kernel.now_s += WINDOW_S
    assert host.seen() == HostSeen(0.0, 0.0, 0.0, stood_s=WINDOW_S), (
        "a gateway that was not ready waited for nothing"
    )


def test_a_gateway_that_is_gone_is_looked_for_again(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    kernel.write(run_s=1.0, wait_s=1.0, steal=0, ticks=100, throttled_s=0.0)
    present = [9]
    host = GatewayHost(lambda: present, tmp_path / "proc", tmp_path / "groups", lambda: kernel.now_s)
    assert host.seen() is None
    present = [7]
    for _ in range(2):
        kernel.now_s += WINDOW_S
        host.seen()
    kernel.write(run_s=1.1, wait_s=1.1, steal=0, ticks=200, throttled_s=0.0, runs=22)
    kernel.now_s += WINDOW_S
    assert host.seen() == HostSeen(pytest.approx(0.495), 0.0, 0.0, wait_s=pytest.approx(0.005))


def test_how_long_a_wait_is_follows_at_once_and_its_part_of_the_time_later(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    host = kernel.host()
    quiet_s = (0.0, 0.5, WINDOW_S - 2 * READ_S)
    for at_s in (*quiet_s, WINDOW_S):
        contended = at_s == WINDOW_S
        wait_s, runs = (0.1, 30) if contended else (0.0, 20)
        kernel.write(run_s=0.1 * at_s, wait_s=wait_s, steal=0, ticks=100, throttled_s=0.0, runs=runs)
        kernel.now_s = 100.0 + at_s
        seen = host.seen()
    assert seen == HostSeen(pytest.approx(0.495), 0.0, 0.0, wait_s=pytest.approx(0.005))


def test_a_gateway_that_is_not_here_is_looked_for_now_and_then(tmp_path: Path) -> None:
    kernel, searches = Kernel(tmp_path), []
    kernel.write(run_s=1.0, wait_s=1.0, steal=0, ticks=100, throttled_s=0.0)

    def search() -> list[int]:
        searches.append(kernel.now_s)
        return []

    host = GatewayHost(search, tmp_path / "proc", tmp_path / "groups", lambda: kernel.now_s)
    for _ in range(11):
        host.seen()
        kernel.now_s += WINDOW_S
    assert searches == [100.0, 100.0 + STALE_S, 100.0 + 2 * STALE_S]


def test_this_host_tells() -> None:
    now_s = [0.0]
    host = GatewayHost(lambda: [os.getpid()], now=lambda: now_s[0])
    host.seen()
    now_s[0] = WINDOW_S
    seen = host.seen()
    assert seen is not None
    assert 0.0 <= seen.waiting <= 1.0
    assert 0.0 <= seen.steal <= 1.0
