"""A quota by `cpu.max` of a cgroup of version 2 that was delegated to us, or that root may make."""

from __future__ import annotations

import functools
from pathlib import Path

from controlplane.domain.fleet import ShareUsage
from launchers.cpu_quota import cgroup_files as files
from launchers.cpu_quota.mechanism import Group, bandwidth

_WEIGHT = 1250
"""What 32768 shares of version 1 are."""


def usage_of(stat: str) -> ShareUsage:
    """A `cpu.stat` of version 2 as counters."""
    told = files.counters(stat)
    return ShareUsage(told.get("nr_periods"), told.get("nr_throttled"), told["usage_usec"] / 1e6)


class CgroupV2:
    """`cpu.max` in a group of its own for each server."""

    name = "cgroup-v2"

    def obstacle(self) -> str | None:
        """Why not; None after a quota was written, read back and entered."""
        problem = "no hierarchy of cgroups version 2 is mounted"
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
        """The kernel's counters."""
        folder = files.groups_below(self._bases(), group.fleet).get(group)
        if folder is None:
            return ShareUsage(None, None, None)
        return usage_of((folder / "cpu.stat").read_text())

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
        raise OSError("no cgroup of version 2 can be made here")

    def _bases(self) -> list[Path]:
        # From the top: the same place whichever session this program runs in, so that it finds its groups.
        own = files.own_path("")
        return [p for mount in files.mount_points("cgroup2") for p in files.chain(mount, own)]

    def _try(self, base: Path) -> None:
        given = base / "cgroup.subtree_control"
        if "cpu" not in given.read_text().split():
            # Refused where the group itself holds processes, or the controller is not there to be given.
            try:
                with given.open("w") as opened:
                    opened.write("+cpu")
            except OSError as error:
                raise OSError(f"{base} has no cpu controller to give: {error.strerror}") from error
        with files.trial_folder(base) as folder:
            self._limit(folder, 20.0)
            if not files.enters(folder):
                raise OSError(f"no process can be moved into {folder}")

    def _limit(self, folder: Path, percent: float) -> None:
        quota, period = bandwidth(percent)
        files.write(folder / "cpu.max", f"{quota} {period}")
        files.write(folder / "cpu.weight", str(_WEIGHT))
