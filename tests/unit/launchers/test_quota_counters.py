"""What delays a server under a quota, from counters as the kernel writes them."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from controlplane.domain.fleet import Delays, QuotaUse
from launchers.cpu_quota import counters as module
from launchers.cpu_quota.counters import SEARCH_S, QuotaCounters


@dataclass
class Kernel:
    """/proc and the group of a Triton, process 7, and its model's process 9; a clock."""

    root: Path
    now_s: float = 100.0

    def __post_init__(self) -> None:
        (self.root / "group").mkdir()
        (self.root / "group" / "cgroup.procs").write_text("7\n9\n")
        (self.root / "7").mkdir()
        (self.root / "7" / "cgroup").write_text("0::/group\n")

    def write(self, throttled: str, **threads: tuple[float, float]) -> None:
        (self.root / "group" / "cpu.stat").write_text(f"nr_periods 9\n{throttled}\n")
        for name, (run_s, wait_s) in threads.items():
            pid, thread = name.removeprefix("t").split("_")
            task = self.root / pid / "task" / thread
            task.mkdir(parents=True, exist_ok=True)
            (task / "schedstat").write_text(f"{int(run_s * 1e9)} {int(wait_s * 1e9)} 5\n")


def read(reader: QuotaCounters) -> QuotaUse:
    found = reader.read(7)
    assert found is not None
    return found


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    monkeypatch.setattr(module, "mount_points", lambda *_: [tmp_path])
    return Kernel(tmp_path)


def test_the_busiest_thread_speaks_for_its_server(kernel: Kernel) -> None:
    reader = QuotaCounters(kernel.root, lambda: kernel.now_s)
    kernel.write("throttled_usec 500000", t7_7=(0.5, 0.1), t7_8=(0.1, 0.0), t9_9=(2.0, 3.0))
    before = read(reader)
    assert before == QuotaUse(9, 2.0, 3.0, 0.5, 5)
    kernel.write("throttled_usec 900000", t9_9=(2.5, 3.5))
    delays = read(reader).since(before)
    assert delays is not None
    assert (delays.starved, delays.throttled) == pytest.approx((0.1, 0.4))


def test_version_1_counts_nanoseconds(kernel: Kernel) -> None:
    kernel.write("throttled_time 700000000", t7_7=(1.0, 1.0))
    assert QuotaCounters(kernel.root).read(7) == QuotaUse(7, 1.0, 1.0, 0.7, 5)


def test_the_thread_that_ran_most_since_the_search_before_takes_over(kernel: Kernel) -> None:
    reader = QuotaCounters(kernel.root, lambda: kernel.now_s)
    kernel.write("throttled_usec 0", t7_7=(9.0, 0.0), t9_9=(1.0, 0.0))  # Triton has just started
    first = read(reader)
    kernel.now_s += SEARCH_S + 1.0
    kernel.write("throttled_usec 0", t7_7=(9.1, 0.0), t9_9=(3.0, 0.0))
    second = read(reader)
    assert (first.thread, second.thread) == (7, 9)
    assert second.since(first) is None


def test_a_thread_that_stays_the_busiest_is_searched_less_and_less_often(kernel: Kernel) -> None:
    reader = QuotaCounters(kernel.root, lambda: kernel.now_s)
    kernel.write("throttled_usec 0", t7_7=(9.0, 0.0), t9_9=(1.0, 0.0))
    read(reader)
    kernel.now_s += SEARCH_S + 1.0
    read(reader)
    kernel.write("throttled_usec 0", t7_7=(9.0, 0.0), t9_9=(8.0, 0.0))
    kernel.now_s += SEARCH_S + 1.0
    early = read(reader)
    kernel.now_s += SEARCH_S
    assert (early.thread, read(reader).thread) == (7, 9)


def test_a_thread_that_sleeps_while_its_group_runs_is_soon_replaced(kernel: Kernel) -> None:
    reader = QuotaCounters(kernel.root, lambda: kernel.now_s)
    ran_s = {7: 0.0, 9: 0.0}
    threads = []
    for second in range(120):
        ran_s[7 if second < 100 else 9] += 0.5  # the load moves to another model
        used_us = int(sum(ran_s.values()) * 1e6)
        kernel.write(f"usage_usec {used_us}\nthrottled_usec 0", t7_7=(ran_s[7], 0.0), t9_9=(ran_s[9], 0.0))
        threads.append(read(reader).thread)
        kernel.now_s += 1.0
    assert threads == [7] * 103 + [9] * 17


def test_a_group_that_is_gone_or_has_no_quota_counts_nothing(kernel: Kernel) -> None:
    reader = QuotaCounters(kernel.root)
    kernel.write("usage_usec 5", t7_7=(1.0, 1.0))
    assert reader.read(7) is None
    kernel.write("throttled_usec 0")
    assert reader.read(7) is not None
    (kernel.root / "7" / "task" / "7" / "schedstat").unlink()
    assert reader.read(7) is None


def test_more_throttled_than_waited_is_all_waited() -> None:
    before, after = QuotaUse(1, 0.0, 0.0, 0.0), QuotaUse(1, 0.5, 0.5, 0.8)
    assert after.since(before) == Delays(starved=0.0, throttled=0.5)
    assert QuotaUse(1, 0.001, 0.001, 0.0).since(before) is None, "hardly ready"


def test_a_small_model_that_wakes_often_is_not_starved() -> None:
    before, woken = QuotaUse(1, 1.0, 1.0, 0.0, 1000), QuotaUse(1, 1.2, 1.04, 0.0, 2000)
    assert woken.since(before) == Delays(starved=0.0, throttled=0.0)
    starved = QuotaUse(1, 1.2, 1.3, 0.0, 2000).since(before)
    assert starved is not None
    assert starved.starved == pytest.approx(0.5)
