"""How long the gateway waits for its host, from the kernel's counters: a few small files.

Left out: /proc/pressure/cpu and /proc/loadavg count servers that our own quotas hold up as waiting, too.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from controlplane.domain.observation import HostSeen

WINDOW_S = 1.0
"""Counters are compared over at least so long."""
STALE_S = 5.0
_LEAST_READY_S = 0.005
"""A gateway that was ready for less shows nothing."""
_STEAL = 7
"""The place of stolen time in /proc/stat's line of all cores; guests' times, after it, are in user time."""


class _Counters(NamedTuple):
    at_s: float
    pids: tuple[int, ...]
    run_s: float
    wait_s: float
    steal_ticks: int
    all_ticks: int
    throttled_s: float


class GatewayHost:
    """`ports.Host` by /proc and the gateway's cgroup; `pids` finds the gateway's processes."""

    def __init__(
        self,
        pids: Callable[[], Sequence[int]],
        proc: Path = Path("/proc"),
        cgroups: Path = Path("/sys/fs/cgroup"),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pids, self._proc, self._cgroups, self._now = pids, proc, cgroups, now
        self._before: _Counters | None = None
        self._seen: tuple[float, HostSeen] | None = None

    def seen(self) -> HostSeen | None:
        """The host since the reading before, where that was of late; None where nothing is known yet."""
        now, before = self._now(), self._before
        if before is None or now - before.at_s >= WINDOW_S:
            with contextlib.suppress(OSError, ValueError, IndexError):
                self._before = self._read(now, before)
                if before is not None and now - before.at_s < STALE_S and before.pids == self._before.pids:
                    self._seen = now, _between(before, self._before)
        return self._seen[1] if self._seen is not None and now - self._seen[0] < STALE_S else None

    def _read(self, now: float, before: _Counters | None) -> _Counters:
        known = before.pids if before is not None else ()
        alive = known and all((self._proc / str(pid)).exists() for pid in known)
        pids = known if alive else tuple(self._pids())
        ticks = [int(n) for n in (self._proc / "stat").read_text().split("\n", 1)[0].split()[1:]]
        run_s, wait_s = self._scheduled(pids)
        throttled_s = sum(map(self._throttled_s, pids))
        return _Counters(now, pids, run_s, wait_s, ticks[_STEAL], sum(ticks[: _STEAL + 1]), throttled_s)

    def _scheduled(self, pids: Sequence[int]) -> tuple[float, float]:
        """Seconds that all threads ran, and that they were ready and waited for a core."""
        run_ns = wait_ns = 0
        for pid in pids:
            for file in (self._proc / str(pid) / "task").glob("*/schedstat"):
                ran, waited, _ = file.read_text().split()
                run_ns, wait_ns = run_ns + int(ran), wait_ns + int(waited)
        return run_ns / 1e9, wait_ns / 1e9

    def _throttled_s(self, pid: int) -> float:
        for folder in self._folders(pid):
            with contextlib.suppress(OSError):
                told = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
                if "throttled_usec" in told:
                    return int(told["throttled_usec"]) / 1e6
                if "throttled_time" in told:
                    return int(told["throttled_time"]) / 1e9
        return 0.0

    def _folders(self, pid: int) -> Iterator[Path]:
        """Where a process's cgroup may count its throttled time: version 2, then version 1."""
        for line in (self._proc / str(pid) / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            inside = path.lstrip("/")
            if not controllers:
                yield self._cgroups / inside
            elif "cpu" in controllers.split(","):
                yield self._cgroups / controllers / inside
                yield self._cgroups / "cpu" / inside


def _between(before: _Counters, after: _Counters) -> HostSeen:
    ran, waited = after.run_s - before.run_s, after.wait_s - before.wait_s
    ticks = after.all_ticks - before.all_ticks
    return HostSeen(
        waiting=waited / (ran + waited) if ran + waited >= _LEAST_READY_S else 0.0,
        steal=(after.steal_ticks - before.steal_ticks) / ticks if ticks > 0 else 0.0,
        throttled=(after.throttled_s - before.throttled_s) / (after.at_s - before.at_s),
    )
