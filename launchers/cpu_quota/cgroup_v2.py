"""A quota by `cpu.max` of a cgroup of version 2, which was delegated to us or which root makes."""

from __future__ import annotations

from pathlib import Path

from controlplane.domain.fleet import ShareUsage
from launchers.cpu_quota import cgroup_files as files
from launchers.cpu_quota.cgroup import Cgroup
from launchers.cpu_quota.mechanism import bandwidth

_WEIGHT = 1250
"""The equivalent of 32768 shares of version 1."""


def usage_of(stat: str) -> ShareUsage:
    """Return a `cpu.stat` of version 2 as counters."""
    told = files.counters(stat)
    return ShareUsage(told.get("nr_periods"), told.get("nr_throttled"), told["usage_usec"] / 1e6)


class CgroupV2(Cgroup):
    """`cpu.max` in one group for each server."""

    name = "cgroup-v2"
    _absent = "no hierarchy of cgroups version 2 is mounted"

    def _mounts(self) -> list[Path]:
        return files.mount_points("cgroup2")

    def _controller(self) -> str:
        return ""

    def _prepare(self, base: Path) -> None:
        given = base / "cgroup.subtree_control"
        if "cpu" not in given.read_text().split():
            # Refused where the group itself has processes, or the controller is not available in it.
            try:
                with given.open("w") as opened:
                    opened.write("+cpu")
            except OSError as error:
                raise OSError(f"{base} has no cpu controller to give: {error.strerror}") from error

    def _limit(self, folder: Path, percent: float) -> None:
        quota, period = bandwidth(percent)
        files.write(folder / "cpu.max", f"{quota} {period}")
        files.write(folder / "cpu.weight", str(_WEIGHT))

    def _count(self, folder: Path, pids: tuple[int, ...]) -> ShareUsage:
        return usage_of((folder / "cpu.stat").read_text())
