"""A quota by the cpu controller of cgroups version 1."""

from __future__ import annotations

import functools
from pathlib import Path

from controlplane.domain.fleet import ShareUsage
from launchers.cpu_quota import cgroup_files as files
from launchers.cpu_quota.mechanism import Group, bandwidth
from launchers.process_table import cpu_seconds

_SHARES = 32768
"""Against everything outside a partition, so that a busy host takes little of what a share promises."""


class CgroupV1:
    """`cpu.cfs_quota_us` in a group of its own for each server."""

    name = "cgroup-v1"

    def obstacle(self) -> str | None:
        """Why not; None after a quota was written, read back and entered."""
        problem = "no cpu controller of cgroups version 1 is mounted"
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

    def usage(self, group: Group, pids: tuple[int, ...]) -> ShareUsage:
        """The kernel's count of periods, and the processes' time."""
        folder = files.groups_below(self._bases(), group.fleet).get(group)
        if folder is None:
            return ShareUsage(None, None, None)
        told = files.counters((folder / "cpu.stat").read_text())
        accounted = folder / "cpuacct.usage"
        used = int(accounted.read_text()) / 1e9 if accounted.exists() else cpu_seconds(pids)
        return ShareUsage(told["nr_periods"], told["nr_throttled"], used)

    def leave(self, group: Group) -> bool:
        """Remove the group."""
        folder = files.groups_below(self._bases(), group.fleet).get(group)
        return folder is not None and files.remove(folder)

    def groups(self, fleet: str) -> tuple[Group, ...]:
        """The fleet's groups."""
        return tuple(files.groups_below(self._bases(), fleet))

    @functools.cached_property
    def _base(self) -> Path:
        for base in self._bases():
            try:
                self._try(base)
                return base
            except OSError:
                continue
        raise OSError("no cgroup of version 1 can be made here")

    def _bases(self) -> list[Path]:
        # From the top: the same place whichever session this program runs in, so that it finds its groups.
        own = files.own_path("cpu")
        return [p for mount in files.mount_points("cgroup", "cpu") for p in files.chain(mount, own)]

    def _try(self, base: Path) -> None:
        with files.trial_folder(base) as folder:
            self._limit(folder, 20.0)
            if not files.enters(folder):
                raise OSError(f"no process can be moved into {folder}")

    def _limit(self, folder: Path, percent: float) -> None:
        quota, period = bandwidth(percent)
        files.write(folder / "cpu.cfs_period_us", str(period))
        files.write(folder / "cpu.cfs_quota_us", str(quota))
        files.write(folder / "cpu.shares", str(_SHARES))
