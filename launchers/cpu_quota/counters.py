"""What a process's groups count: delays of a server under a quota, and kills for lack of memory."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from controlplane.domain.fleet import QuotaUse

SEARCH_S = 10.0
MOST_SEARCH_S = 80.0
"""The first search is repeated after SEARCH_S, each later one after twice as long, up to this.

A search reads every thread of a group, some hundred, which takes 2 ms; a reading of one takes 0.1 ms.

Paths are strings here: `Path` would take more of that time than the kernel does.
"""


_SLEEPS = 50
"""A thread sleeps while its group runs for so many times as long."""
_LEAST_NS = 1_000_000
"""A thread that sleeps is taken to have run for this long: a group that hardly runs says nothing."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A group, its busiest thread's folder, and how long each thread had run when that was found, in ns.

    The next search is at `again_s`, `every_s` after the last. `read_ns` is how long the thread and its group
    had run at the last reading.
    """

    group: Path
    thread: str
    every_s: float
    again_s: float
    ran_ns: dict[str, int]
    read_ns: tuple[int, int] | None = None

    def after(self, ran_ns: int, used_ns: int) -> _Found:
        """Return this after a reading; searched for at the next one where the load has left the thread."""
        found = replace(self, read_ns=(ran_ns, used_ns))
        if self.read_ns is None:
            return found
        ran, used = ran_ns - self.read_ns[0], used_ns - self.read_ns[1]
        if used > _SLEEPS * max(ran, _LEAST_NS):
            return replace(found, every_s=SEARCH_S / 2.0, again_s=-math.inf)
        return found


class QuotaCounters:
    """Reads the counters of servers' groups. A batch waits where the busiest thread of its server waits."""

    def __init__(self, proc: Path = Path("/proc"), now: Callable[[], float] = time.monotonic) -> None:
        self._proc, self._now = proc, now
        self._found: dict[int, _Found] = {}

    def read(self, pid: int) -> QuotaUse | None:
        """Return the counters of the group that this process leads; None where nothing here counts."""
        try:
            found = self._find(pid)
            if found is None:
                return None
            ran_ns, waited_ns, runs = _scheduled(found.thread)
            throttled_s, used_ns = _group_times(found.group)
        except (OSError, ValueError):
            self._found.pop(pid, None)
            return None
        self._found[pid] = found.after(ran_ns, used_ns)
        thread = int(os.path.basename(found.thread))
        return QuotaUse(thread, ran_ns / 1e9, waited_ns / 1e9, throttled_s, runs)

    def _find(self, pid: int) -> _Found | None:
        found, now = self._found.get(pid), self._now()
        if found is not None and now <= found.again_s:
            return found
        for group in _folders(pid, "cpu", self._proc):
            stat = group / "cpu.stat"
            if stat.exists() and "throttled_" in stat.read_text():
                break
        else:
            return None
        pids = map(int, (group / "cgroup.procs").read_text().split())
        before = found.ran_ns if found is not None else {}
        every_s = min(2.0 * found.every_s, MOST_SEARCH_S) if found is not None else SEARCH_S
        ran_ns = dict(self._threads(pids))
        thread = max(ran_ns, key=lambda one: ran_ns[one] - before.get(one, 0))
        self._found[pid] = _Found(group, thread, every_s, now + every_s, ran_ns)
        return self._found[pid]

    def _threads(self, pids: Iterable[int]) -> Iterator[tuple[str, int]]:
        for pid in pids:
            tasks = f"{self._proc}/{pid}/task"
            with contextlib.suppress(OSError):  # it has ended
                for name in os.listdir(tasks):
                    with contextlib.suppress(OSError):
                        yield (thread := f"{tasks}/{name}"), _scheduled(thread)[0]


def _scheduled(thread: str) -> tuple[int, int, int]:
    """Return how long a thread ran, how long it was ready without running, in ns, and how often it ran."""
    with open(f"{thread}/schedstat", "rb") as file:
        ran, waited, runs = file.read().split()
    return int(ran), int(waited), int(runs)


def _group_times(group: Path) -> tuple[float, int]:
    """Return for how long a group was throttled, in s, and has run, in ns: version 1 does not count that."""
    with open(f"{group}/cpu.stat") as file:
        counted = counters(file.read())
    if "throttled_usec" in counted:
        return counted["throttled_usec"] / 1e6, 1000 * counted.get("usage_usec", 0)
    return counted.get("throttled_time", 0) / 1e9, 0


def memory_kills(pid: int, proc: Path = Path("/proc")) -> int:
    """Return how many processes of its group were killed for lack of memory; 0 where that is unknown."""
    with contextlib.suppress(OSError):
        for folder in _folders(pid, "memory", proc):
            for told in (folder / "memory.events", folder / "memory.oom_control"):
                if told.exists():
                    return counters(told.read_text()).get("oom_kill", 0)
    return 0


def mount_points(kind: str, controller: str = "") -> list[Path]:
    """Return the mount points of hierarchies of this kind (`cgroup`, `cgroup2`), with this controller."""
    found = []
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, type_, options, *_ = line.split()
        if type_ == kind and (not controller or controller in options.split(",")):
            found.append(Path(place))
    return found


def counters(text: str) -> dict[str, int]:
    """Return a `cpu.stat` file as numbers."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}


def _folders(pid: int, controller: str, proc: Path) -> Iterator[Path]:
    """Yield a process's groups: of version 2, and of this controller in version 1. Raises OSError."""
    for controllers, path in group_paths(pid, proc):
        mounts = mount_points("cgroup2") if controllers == [""] else []
        if controller in controllers:
            mounts = mount_points("cgroup", controller)
        yield from (mount / path for mount in mounts)


def group_paths(pid: int | str, proc: Path = Path("/proc")) -> Iterator[tuple[list[str], str]]:
    """Yield the controllers, an empty one in version 2, and the path of each of a process's groups."""
    for line in (proc / str(pid) / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        yield controllers.split(","), path.strip("/")
