"""A quota by the cpu controller of cgroups version 1."""

from __future__ import annotations

from pathlib import Path

from controlplane.domain.fleet import ShareUsage
from launchers.cpu_quota import cgroup_files as files
from launchers.cpu_quota.cgroup import Cgroup
from launchers.cpu_quota.mechanism import bandwidth
from launchers.host.process_table import cpu_seconds

_SHARES = 32768
"""The weight against all processes without a share, so that a busy host takes little from a partition."""


class CgroupV1(Cgroup):
    """`cpu.cfs_quota_us` in a group of its own for each server."""

    name = "cgroup-v1"
    _absent = "no cpu controller of cgroups version 1 is mounted"

    def _mounts(self) -> list[Path]:
        return files.mount_points("cgroup", "cpu")

    def _controller(self) -> str:
        return "cpu"

    def _prepare(self, base: Path) -> None:
        """Do nothing: the controller is enabled for every group of its hierarchy."""

    def _limit(self, folder: Path, percent: float) -> None:
        quota, period = bandwidth(percent)
        files.write(folder / "cpu.cfs_period_us", str(period))
        files.write(folder / "cpu.cfs_quota_us", str(quota))
        files.write(folder / "cpu.shares", str(_SHARES))

    def _count(self, folder: Path, pids: tuple[int, ...]) -> ShareUsage:
        """Return the kernel's counters of periods, and of time where cpuacct is mounted with cpu."""
        told = files.counters((folder / "cpu.stat").read_text())
        accounted = folder / "cpuacct.usage"
        used = int(accounted.read_text()) / 1e9 if accounted.exists() else cpu_seconds(pids)
        return ShareUsage(told["nr_periods"], told["nr_throttled"], used)
