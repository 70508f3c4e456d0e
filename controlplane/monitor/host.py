"""The time that the gateway waits for a core, from the kernel's counters.

/proc/pressure/cpu and /proc/loadavg are not usable: they also count servers that wait for their own quotas.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from controlplane.domain.fleet import waited_for_others_s
from controlplane.domain.observation import HostSeen

READ_S = 0.1
"""The shortest time between two readings, which say how long a wait is now; ..."""
WINDOW_S = 1.0
"""... and the time that fractions are of: in a shorter one the gateway is hardly ever ready."""
STALE_S = 5.0
_LEAST_READY_S = 0.005
"""The shortest ready time of the gateway from which a fraction is computed."""
_STEAL = 7
"""The column of stolen time in /proc/stat; the guests' times after it are part of user time."""


class _Counters(NamedTuple):
    at_s: float
    pids: tuple[int, ...]
    run_s: float
    wait_s: float
    runs: int
    steal_ticks: int
    all_ticks: int
    throttled_s: float
    moved_s: float
    """When the processes were last seen to have run."""


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
        self._readings: deque[_Counters] = deque()
        self._absent_s = -math.inf
        self._seen: tuple[float, HostSeen] | None = None

    def seen(self) -> HostSeen | None:
        """Return the delays since the reading before, if that was recent; None where nothing is known yet."""
        now, known = self._now(), self._readings
        before = known[-1] if known else None
        if before is None or now - before.at_s >= READ_S:
            with contextlib.suppress(OSError, ValueError, IndexError):
                present = self._read(now, before)
                if before is not None and (now - before.at_s >= STALE_S or before.pids != present.pids):
                    known.clear()
                known.append(present)
                while len(known) > 2 and now - known[1].at_s >= WINDOW_S:
                    known.popleft()
                if now - known[0].at_s >= WINDOW_S:
                    self._seen = now, _between(known[0], known[-2], present)
        return self._seen[1] if self._seen is not None and now - self._seen[0] < STALE_S else None

    def _read(self, now: float, before: _Counters | None) -> _Counters:
        known = before.pids if before is not None else ()
        alive = known and all((self._proc / str(pid)).exists() for pid in known)
        pids = known if alive else self._search(now)
        ticks = [int(n) for n in (self._proc / "stat").read_text().split("\n", 1)[0].split()[1:]]
        run_s, wait_s, runs = self._scheduled(pids)
        throttled_s = sum(map(self._throttled_s, pids))
        # HAProxy checks its servers each second, so a counter that rests is a process that does.
        rests = before is not None and before.pids == pids and before.run_s == run_s
        moved_s = before.moved_s if before is not None and rests else now
        return _Counters(
            now, pids, run_s, wait_s, runs, ticks[_STEAL], sum(ticks[: _STEAL + 1]), throttled_s, moved_s
        )

    def _search(self, now: float) -> tuple[int, ...]:
        """Find the gateway's processes, which reads of all others: not each time where there are none."""
        if now - self._absent_s < STALE_S:
            return ()
        pids = tuple(self._pids())
        self._absent_s = -math.inf if pids else now
        return pids

    def _scheduled(self, pids: Sequence[int]) -> tuple[float, float, int]:
        """Return for how many seconds all threads ran and waited for a core, and how often they got one."""
        run_ns = wait_ns = runs = 0
        for pid in pids:
            for file in (self._proc / str(pid) / "task").glob("*/schedstat"):
                ran, waited, times = map(int, file.read_text().split())
                run_ns, wait_ns, runs = run_ns + ran, wait_ns + waited, runs + times
        return run_ns / 1e9, wait_ns / 1e9, runs

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
        """Yield the folders where a process's cgroup may count throttled time: version 2, then version 1."""
        for line in (self._proc / str(pid) / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            inside = path.lstrip("/")
            if not controllers:
                yield self._cgroups / inside
            elif "cpu" in controllers.split(","):
                yield self._cgroups / controllers / inside
                yield self._cgroups / "cpu" / inside


def _between(before: _Counters, lately: _Counters, after: _Counters) -> HostSeen:
    """Return the delays since `before`, and how long a wait has been since `lately`."""
    ran, waited = after.run_s - before.run_s, after.wait_s - before.wait_s
    others_s = waited_for_others_s(waited, after.runs - before.runs)
    ticks = after.all_ticks - before.all_ticks
    return HostSeen(
        waiting=others_s / (ran + waited) if ran + waited >= _LEAST_READY_S else 0.0,
        steal=(after.steal_ticks - before.steal_ticks) / ticks if ticks > 0 else 0.0,
        throttled=(after.throttled_s - before.throttled_s) / (after.at_s - before.at_s),
        stood_s=after.at_s - after.moved_s if after.pids else 0.0,
        wait_s=(after.wait_s - lately.wait_s) / max(1, after.runs - lately.runs),
    )
