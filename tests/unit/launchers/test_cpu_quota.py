"""The mechanisms on this host, on real processes."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from background import until

from launchers.cpu_quota import CHAIN, Group, Mechanism, first_that_holds
from launchers.cpu_quota import counters as kernel
from launchers.cpu_quota.cgroup import Cgroup, trial_folder, usage_of, write
from launchers.cpu_quota.mechanism import Weight, bandwidth

BUSY = "import os\nif os.fork() == 0:\n    while True: pass\nos.wait()"
"""As a Triton with one model: a parent that waits and a child that computes."""
COMPUTES = [sys.executable, "-c", BUSY]
HOLDING = [m for m in CHAIN if m.obstacle() is None]


@contextlib.contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def computing(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Its child that computes."""
    found = []
    for child in psutil.Process(process.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.cmdline() == COMPUTES:
                found.append(child)
    return found


@pytest.mark.parametrize(
    ("percent", "expected"),
    [(25.0, (2500, 10000)), (100.0, (10000, 10000)), (10.0, (1000, 10000)), (2.5, (1000, 40000))],
)
def test_bandwidth_never_falls_below_what_the_kernel_takes(percent: float, expected: tuple[int, int]) -> None:
    assert bandwidth(percent) == expected


def test_something_holds_shares_here() -> None:
    mechanism = first_that_holds(CHAIN)
    assert mechanism is not None
    assert all(m.obstacle() for m in CHAIN[: CHAIN.index(mechanism)])


def test_nothing_left_to_try_is_said_so() -> None:
    assert first_that_holds(()) is None


def test_a_write_the_kernel_does_not_keep_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "kept", "2500 10000")
    with pytest.raises(OSError, match="/dev/null"):
        write(Path("/dev/null"), "2500")


def cpu_seconds(held: Mechanism, group: Group, members: tuple[int, ...]) -> float:
    told = held.usage(group, members).cpu_seconds
    assert told is not None
    return told


@pytest.mark.parametrize("held", HOLDING, ids=lambda m: m.name)
def test_a_busy_process_gets_its_share_from_its_first_instruction(held: Mechanism) -> None:
    group = Group(f"unit{os.getpid()}", "p", "0123456789ab")
    try:
        with running([*held.enter(group, 30.0), *COMPUTES]) as process:
            held.weigh(group, Weight.FULL)
            until(lambda: computing(process), what="it computes")
            (model,) = computing(process)
            members = (process.pid, model.pid)

            def throttled() -> int:
                return held.usage(group, members).throttled_periods or 0

            until(throttled, what="it is held")

            def stretch() -> tuple[float, float]:
                # However long the host takes for 0.3 s of it; the clock is read outside what is counted.
                start, before = time.monotonic(), cpu_seconds(held, group, members)
                until(lambda: cpu_seconds(held, group, members) - before >= 0.3, what="it goes on")
                used = cpu_seconds(held, group, members) - before
                return used, time.monotonic() - start

            throttled_before = throttled()
            used, wall = stretch()
            assert used / wall < 0.40
            until(lambda: throttled() > throttled_before, what="it is held still")
            if isinstance(held, Cgroup):  # what could be left over
                assert held.groups(group.fleet) == (group,)
    finally:
        held.leave(group)
    assert held.groups(group.fleet) == ()
    assert not held.leave(group)


def test_empty_groups_of_killed_programs_are_removed_by_the_next_trial(tmp_path: Path) -> None:
    profile = Group("profile-cpu-0-0a90dd", "echo.0", "0" * 12).folder
    for name in ("trisect-trial-999999999-1", profile, "another's"):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (0, 0))
    running = tmp_path / Group("f", "p", "0" * 12).folder
    (running / "process").mkdir(parents=True)  # the kernel refuses to remove a group with processes
    os.utime(running, (0, 0))
    (tmp_path / "trisect-trial-1-1").mkdir()  # under way
    with trial_folder(tmp_path) as mine:
        left = {mine.name, running.name, "trisect-trial-1-1", "another's"}
        assert {p.name for p in tmp_path.iterdir()} == left
    assert not mine.exists()


@pytest.mark.parametrize(
    ("stat", "accounted", "counted"),
    [
        (
            "usage_usec 1500000\nuser_usec 1\nsystem_usec 2\nnr_periods 90\nnr_throttled 70\n",
            "",
            (90, 70, 1.5),
        ),
        ("usage_usec 7\n", "", (None, None, 7e-6)),
        ("nr_periods 90\nnr_throttled 70\nthrottled_time 5\n", "2500000000\n", (90, 70, 2.5)),
        ("nr_periods 3\n\nodd\nnr_throttled 1\n", "", (3, 1, 0.0)),
    ],
)
def test_counters_of_both_versions(
    tmp_path: Path, stat: str, accounted: str, counted: tuple[int | None, int | None, float]
) -> None:
    (tmp_path / "cpu.stat").write_text(stat)
    if accounted:
        (tmp_path / "cpuacct.usage").write_text(accounted)
    told = usage_of(tmp_path)
    assert (told.periods, told.throttled_periods, told.cpu_seconds) == counted


def test_the_kernels_kills_for_lack_of_memory_are_read_from_the_groups_counters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version, line, file in (
        (1, "9:memory:/docker/c", "memory.oom_control"),
        (2, "0::/docker/c", "memory.events"),
    ):
        mounts = {("cgroup2", ""): [tmp_path / "two"], ("cgroup", "memory"): [tmp_path / "one"]}
        monkeypatch.setattr(
            kernel, "mount_points", lambda kind, one="", all_=mounts: all_.get((kind, one), [])
        )
        (tmp_path / str(version)).mkdir()
        (tmp_path / str(version) / "cgroup").write_text(line + "\n")
        group = tmp_path / ("one", "two")[version - 1] / "docker" / "c"
        group.mkdir(parents=True)
        (group / file).write_text("under_oom 0\noom_kill 2\n")
        assert kernel.memory_kills(version, tmp_path) == 2
    assert kernel.memory_kills(3, tmp_path) == 0
