"""A quota by one cgroup for each server, for both versions of cgroups."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from pathlib import Path

from controlplane.domain.fleet import ShareUsage
from launchers.cpu_quota import cgroup_files as files
from launchers.cpu_quota.mechanism import Group

_TRIAL_PERCENT = 20.0


class Cgroup(ABC):
    """The common part of both versions: finding a place for groups, entering, listing and removing them."""

    name: str
    _absent: str
    """The obstacle where no hierarchy of this version is mounted."""

    def obstacle(self) -> str | None:
        """Return the obstacle; None after a quota was written, read back and entered."""
        problem = self._absent
        for base in self._bases():
            try:
                self._try(base)
                return None
            except OSError as error:
                problem = str(error)
        return problem

    def enter(self, group: Group, percent: float) -> list[str]:
        """Make the group with its quota."""
        folder = self._base / group.folder
        folder.mkdir(exist_ok=True)
        self._limit(folder, percent)
        return files.entering(folder)

    def resize(self, group: Group, percent: float, pids: tuple[int, ...]) -> None:
        """Write another quota, which takes effect within a period."""
        folder = self._folder(group)
        if folder is None:
            raise OSError(f"there is no group {group.folder}")
        self._limit(folder, percent)

    def usage(self, group: Group, pids: tuple[int, ...]) -> ShareUsage:
        """Return the kernel's counters."""
        folder = self._folder(group)
        return ShareUsage(None, None, None) if folder is None else self._count(folder, pids)

    def leave(self, group: Group) -> bool:
        """Remove the group."""
        folder = self._folder(group)
        return folder is not None and files.remove(folder)

    def groups(self, fleet: str) -> tuple[Group, ...]:
        """Return the fleet's groups."""
        return tuple(files.groups_below(self._bases(), fleet))

    def _folder(self, group: Group) -> Path | None:
        return files.groups_below(self._bases(), group.fleet).get(group)

    @functools.cached_property
    def _base(self) -> Path:
        for base in self._bases():
            try:
                self._try(base)
                return base
            except OSError:
                continue
        raise OSError(f"no group of {self.name} can be made here")

    def _try(self, base: Path) -> None:
        self._prepare(base)
        with files.trial_folder(base) as folder:
            self._limit(folder, _TRIAL_PERCENT)
            if not files.enters(folder):
                raise OSError(f"no process can be moved into {folder}")

    def _bases(self) -> list[Path]:
        """Return the folders in which groups may be.

        From the top: the same place whichever session this program runs in, so that it finds its groups.
        """
        own = files.own_path(self._controller())
        return [p for mount in self._mounts() for p in files.chain(mount, own)]

    @abstractmethod
    def _mounts(self) -> list[Path]:
        """Return the mount points of the hierarchy."""

    @abstractmethod
    def _controller(self) -> str:
        """The controller's name in /proc/self/cgroup."""

    @abstractmethod
    def _prepare(self, base: Path) -> None:
        """Enable the cpu controller for groups below `base`. Raises OSError."""

    @abstractmethod
    def _limit(self, folder: Path, percent: float) -> None:
        """Write the quota and read it back. Raises OSError."""

    @abstractmethod
    def _count(self, folder: Path, pids: tuple[int, ...]) -> ShareUsage:
        """Return the group's counters."""
