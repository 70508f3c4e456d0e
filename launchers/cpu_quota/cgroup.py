"""A quota by one cgroup for each server; the versions differ by the names of their files."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from controlplane.domain.fleet import ShareUsage
from launchers.cpu_quota.counters import counters, group_paths, mount_points
from launchers.cpu_quota.mechanism import Group, Mechanism, Weight, bandwidth
from launchers.host.process_table import cpu_seconds

_TRIAL_PERCENT = 20.0
_ENTER = 'echo $$ > "$0/cgroup.procs" || exit 126; exec "$@"'
_REMOVE_S = 20.0
_ABANDONED_S = 60.0


@dataclass(frozen=True, slots=True)
class Version:
    """A version of cgroups: how its hierarchy is mounted, and its files' names with their contents.

    `absent` is the obstacle where it is not. `controller` is empty where all are in one hierarchy.
    """

    name: str
    absent: str
    mount: str
    controller: str
    files: Mapping[str, str]
    weights: Mapping[Weight, tuple[str, int]]


V1 = Version(
    "cgroup-v1",
    "no cpu controller of cgroups version 1 is mounted",
    "cgroup",
    "cpu",
    {"cpu.cfs_period_us": "{period}", "cpu.cfs_quota_us": "{quota}"},
    {weight: ("cpu.shares", weight.shares) for weight in Weight},
)
V2 = Version(
    "cgroup-v2",
    "no hierarchy of cgroups version 2 is mounted",
    "cgroup2",
    "",
    {"cpu.max": "{quota} {period}"},
    {weight: ("cpu.weight", weight.weight) for weight in Weight},
)
"""The group was delegated to us, or root makes it."""


class Cgroup(Mechanism):
    """Finds a place for groups, enters, lists and removes them."""

    def __init__(self, version: Version) -> None:
        self.name = version.name
        self._version = version

    def obstacle(self) -> str | None:
        """Return the obstacle; None after a quota was written, read back and entered."""
        try:
            self._place()
        except OSError as error:
            return str(error)
        return None

    def enter(self, group: Group, percent: float) -> list[str]:
        """Make the group with its quota, and with the weight of a start."""
        folder = self._base / group.folder
        folder.mkdir(exist_ok=True)
        self._limit(folder, percent)
        self._weigh(folder, Weight.START)
        return _entering(folder)

    def weigh(self, group: Group, weight: Weight) -> None:
        """Write another weight."""
        self._weigh(self._folder(group), weight)

    def resize(self, group: Group, percent: float) -> None:
        """Write another quota, which takes effect within a period."""
        self._limit(self._folder(group), percent)

    def usage(self, group: Group, pids: tuple[int, ...]) -> ShareUsage:
        """Return the kernel's counters."""
        folder = self._groups(group.fleet).get(group)
        return ShareUsage(None, None, None) if folder is None else usage_of(folder, pids)

    def leave(self, group: Group) -> bool:
        """Remove the group."""
        folder = self._groups(group.fleet).get(group)
        return folder is not None and _remove(folder)

    def groups(self, fleet: str) -> tuple[Group, ...]:
        """Return the fleet's groups."""
        return tuple(self._groups(fleet))

    def _folder(self, group: Group) -> Path:
        folder = self._groups(group.fleet).get(group)
        if folder is None:
            raise OSError(f"there is no group {group.folder}")
        return folder

    def _groups(self, fleet: str) -> dict[Group, Path]:
        found: dict[Group, Path] = {}
        for base in self._bases():
            with contextlib.suppress(OSError):
                for folder in base.iterdir():
                    group = Group.parse(folder.name)
                    if group is not None and group.fleet == fleet:
                        found[group] = folder
        return found

    @functools.cached_property
    def _base(self) -> Path:
        return self._place()

    def _place(self) -> Path:
        """Return the first folder in which a group with a quota can be made and entered. Raises OSError."""
        problem = OSError(self._version.absent)
        for base in self._bases():
            try:
                _give_cpu(base)
                with trial_folder(base) as folder:
                    self._limit(folder, _TRIAL_PERCENT)
                    self._weigh(folder, Weight.FULL)
                    # To make a group does not imply that a process can be moved into it.
                    line = [*_entering(folder), "cat", "/proc/self/cgroup"]
                    tried = subprocess.run(line, capture_output=True, text=True, timeout=10, check=False)
                    places = tried.stdout.splitlines() if tried.returncode == 0 else []
                    if not any(place.endswith(folder.name) for place in places):
                        raise OSError(f"no process can be moved into {folder}")
                return base
            except OSError as error:
                problem = error
        raise problem

    def _bases(self) -> list[Path]:
        """Return the folders in which groups may be, from the mount points down to our own.

        From the top: the same place whichever session this program runs in, so that it finds its groups.
        """
        places, controller = [], self._version.controller
        own = next((path for has, path in group_paths("self") if controller in has), "")
        for mount in mount_points(self._version.mount, controller):
            places.append(mount)
            for part in Path(own).parts:
                places.append(places[-1] / part)
        return [place for place in places if place.is_dir()]  # as far as a container shows them

    def _limit(self, folder: Path, percent: float) -> None:
        quota, period = bandwidth(percent)
        for file, content in self._version.files.items():
            write(folder / file, content.format(quota=quota, period=period))

    def _weigh(self, folder: Path, weight: Weight) -> None:
        file, value = self._version.weights[weight]
        write(folder / file, str(value))


def write(file: Path, value: str) -> None:
    """Write a control file and read it back: the kernel may round or refuse. Raises OSError."""
    with file.open("w") as opened:
        opened.write(value)
    told = file.read_text().split()
    if told != value.split():
        raise OSError(f"{file} says {' '.join(told)!r} after {value!r} was written")


def usage_of(folder: Path, pids: tuple[int, ...] = ()) -> ShareUsage:
    """Return a group's counters; its time by its processes, where its version counts that elsewhere."""
    told, accounted = counters((folder / "cpu.stat").read_text()), folder / "cpuacct.usage"
    if "usage_usec" in told:
        used_s = told["usage_usec"] / 1e6
    else:
        used_s = int(accounted.read_text()) / 1e9 if accounted.exists() else cpu_seconds(pids)
    return ShareUsage(told.get("nr_periods"), told.get("nr_throttled"), used_s)


@contextlib.contextmanager
def trial_folder(base: Path) -> Iterator[Path]:
    """A group for a trial, removed at the end. Raises OSError."""
    _remove_abandoned(base)
    folder = base / f"trisect-trial-{os.getpid()}-{threading.get_ident()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        _remove(folder)


def _give_cpu(base: Path) -> None:
    """Enable the cpu controller for groups below `base`, where that is not so by itself. Raises OSError."""
    given = base / "cgroup.subtree_control"
    if given.exists() and "cpu" not in given.read_text().split():
        # Refused where the group itself has processes, or the controller is not available in it.
        try:
            with given.open("w") as opened:
                opened.write("+cpu")
        except OSError as error:
            raise OSError(f"{base} has no cpu controller to give: {error.strerror}") from error


def _entering(folder: Path) -> list[str]:
    return ["sh", "-c", _ENTER, str(folder)]


def _remove_abandoned(base: Path) -> None:
    """Remove empty groups of programs that were killed: of trials, and of profiles that no command sweeps.

    The kernel refuses to remove one with processes. A group that a start is about to enter is younger.
    """
    for old in base.glob("trisect*"):
        with contextlib.suppress(OSError):
            if time.time() - old.stat().st_mtime > _ABANDONED_S:
                old.rmdir()


def _remove(folder: Path) -> bool:
    """Remove a group; wait for processes that are ending, and kill any other. Raises OSError."""
    deadline = time.monotonic() + _REMOVE_S
    while True:
        try:
            folder.rmdir()
            return True
        except FileNotFoundError:
            return False
        except OSError:
            if time.monotonic() > deadline:
                raise
            # One between fork and exec has no labels yet, but it is in the group.
            with contextlib.suppress(OSError):
                for pid in (folder / "cgroup.procs").read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.01)
