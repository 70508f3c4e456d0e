"""What a fleet's processes hold: memory, descriptors, sockets, shared memory and files, over time."""

import contextlib
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import psutil
from background import Background
from ctl_fleet import Ctl
from rich.console import Console
from rich.table import Table

PROGRAMS = {
    "server": "tritonserver",
    "model": "triton_python_backend_stub",
    "haproxy": "haproxy -",
    "supervisor": "controlplane.gateway.supervise",
    "facade": "controlplane.gateway.facade",
    "monitor": "controlplane.monitor.collect",
    "controller": "controller --fleet",
}
MB = 1 << 20
SPARE_DESCRIPTORS = 16
"""Connections that come and go, and a file that is just written."""
GROWTH, GROWTH_MB = 1.5, 24.0
"""Memory may grow by this factor and so much: caches fill, and a process that was replaced is younger."""
SPARE_FILES = 8
LOGS = 101
"""A fleet keeps the logs of its newest servers, and of one that starts."""
SLOPE_S = 200.0
"""A slope is judged from this time on; before, caches that fill are most of it."""
SLOPE_MB_PER_MINUTE = 1.0


def processes(host: Ctl, program: str) -> list[psutil.Process]:
    """The fleet's processes of one of PROGRAMS."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if PROGRAMS[program] in line and (host.fleet in line or str(host.directory) in line):
            found.append(process)
    return found


@dataclass(frozen=True)
class Program:
    """All processes of one program: how many, and of the largest one memory, descriptors and sockets."""

    count: int = 0
    memory_mb: float = 0.0
    descriptors: int = 0
    sockets: int = 0


@dataclass(frozen=True)
class Held:
    """What a fleet holds at one time; `logs` are those of its servers, `files` all others of its state.

    What servers of late were asked by the fleet itself is a file for each, as a log is, and bounded.
    """

    programs: Mapping[str, Program]
    shared_memory: tuple[str, ...]
    files: int
    logs: int
    files_mb: float

    @staticmethod
    def by(host: Ctl) -> "Held":
        sizes = _sizes(host.files)
        return Held(
            {name: _program(host, name) for name in PROGRAMS},
            tuple(sorted(p.name for p in Path("/dev/shm").iterdir() if host.fleet in p.name)),
            sum(path.parent.name not in ("logs", "discounts") for path in sizes),
            sum(path.parent.name == "logs" for path in sizes),
            sum(sizes.values()) / MB,
        )

    def leaks(self, before: Self) -> list[str]:
        """What is held now beyond what was held `before`, in words."""
        found = []
        for name, now in self.programs.items():
            then = before.programs[name]
            if now.count != then.count:
                found.append(f"{name}: {now.count} processes, {then.count} before")
            if now.descriptors > then.descriptors + SPARE_DESCRIPTORS:
                found.append(f"{name}: {now.descriptors} descriptors, {then.descriptors} before")
            if now.sockets > then.sockets + SPARE_DESCRIPTORS:
                found.append(f"{name}: {now.sockets} sockets, {then.sockets} before")
            if now.memory_mb > GROWTH * then.memory_mb + GROWTH_MB:
                found.append(f"{name}: {now.memory_mb:.0f} MB, {then.memory_mb:.0f} before")
        if len(self.shared_memory) > len(before.shared_memory):
            found.append(f"shared memory: {set(self.shared_memory) - set(before.shared_memory)}")
        if self.files > before.files + SPARE_FILES:
            found.append(f"{self.files} files, {before.files} before")
        if self.logs > LOGS:
            found.append(f"{self.logs} logs of servers")
        return found


def _sizes(folder: Path) -> dict[Path, int]:
    """The sizes of all files below a folder, of those that stay while they are looked at."""
    found = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISREG((seen := path.lstat()).st_mode):
                found[path] = seen.st_size
    return found


def _program(host: Ctl, name: str) -> Program:
    memory, descriptors, sockets = [0.0], [0], [0]
    found = processes(host, name)
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess, OSError):
            links = []
            for entry in Path(f"/proc/{process.pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    links.append(os.readlink(entry))
            memory.append(process.memory_info().rss / MB)
            descriptors.append(len(links))
            sockets.append(sum(link.startswith("socket:") for link in links))
    return Program(len(found), max(memory), max(descriptors), max(sockets))


class MemorySlopes(Background):
    """The growth of each process's memory while it is watched, inside the context."""

    def __init__(self, host: Ctl, every_s: float = 2.0) -> None:
        super().__init__()
        self._host = host
        self._every_s = every_s
        self._seen: dict[tuple[str, int], list[tuple[float, float]]] = {}

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            for name in PROGRAMS:
                for process in processes(self._host, name):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        seen = time.monotonic(), process.memory_info().rss / MB
                        self._seen.setdefault((name, process.pid), []).append(seen)

    def mb_per_minute(self) -> dict[str, tuple[float, float]]:
        """By program the steepest slope of a process, and how many seconds that one was watched."""
        steepest: dict[str, tuple[float, float]] = {}
        for (name, _), seen in self._seen.items():
            at_s, memory_mb = np.array(seen).T
            watched_s = float(at_s[-1] - at_s[0])
            if len(seen) < 5 or watched_s <= 0.0:
                continue
            slope = 60.0 * float(np.polyfit(at_s - at_s[0], memory_mb, 1)[0])
            if name not in steepest or slope > steepest[name][0]:
                steepest[name] = slope, watched_s
        return steepest

    def leaks(self) -> list[str]:
        """The programs whose memory grew all the time."""
        return [
            f"{name}: {slope:.1f} MB a minute"
            for name, (slope, watched_s) in self.mb_per_minute().items()
            if watched_s >= SLOPE_S and slope > SLOPE_MB_PER_MINUTE
        ]


def report(before: Held, after: Held, slopes: MemorySlopes) -> None:
    """Print what was held before and after."""
    table = Table(title="held by the largest process of each program, before -> after")
    for heading in ("program", "processes", "memory, MB", "MB a minute, calm", "descriptors", "sockets"):
        table.add_column(heading, justify="left" if heading == "program" else "right")
    steepest = slopes.mb_per_minute()
    for name, then in before.programs.items():
        now = after.programs[name]
        slope = f"{steepest[name][0]:+.2f} in {steepest[name][1]:.0f} s" if name in steepest else "–"
        table.add_row(
            name,
            f"{then.count} -> {now.count}",
            f"{then.memory_mb:.0f} -> {now.memory_mb:.0f}",
            slope,
            f"{then.descriptors} -> {now.descriptors}",
            f"{then.sockets} -> {now.sockets}",
        )
    Console(width=120).print(table)
    print(
        f"state: {before.files} -> {after.files} files, {before.logs} -> {after.logs} logs of servers, "
        f"{before.files_mb:.1f} -> {after.files_mb:.1f} MB; "
        f"shared memory: {len(before.shared_memory)} -> {len(after.shared_memory)} regions"
    )
