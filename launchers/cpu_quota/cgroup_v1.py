"""A quota by the cpu controller of cgroups version 1."""

from __future__ import annotations

from pathlib import Path

from controlplane.domain.fleet import ShareUsage
from launchers.cpu_quota import cgroup_files as files
from launchers.cpu_quota.cgroup import Cgroup
from launchers.cpu_quota.mechanism import bandwidth
from launchers.process_table import cpu_seconds

_SHARES = 32768
"""Against everything outside a partition, so that a busy host takes little of what a share promises."""


class CgroupV1(Cgroup):
    """`cpu.cfs_quota_us` in a group of its own for each server."""

    name = "cgroup-v1"
    _absent = "no cpu controller of cgroups version 1 is mounted"

    def _mounts(self) -> list[Path]:
        return files.mount_points("cgroup", "cpu")

    def _controller(self) -> str:
        return "cpu"

    def _prepare(self, base: Path) -> None:
        """The controller's hierarchy rules every group in it."""

    def _limit(self, folder: Path, percent: float) -> None:
        quota, period = bandwidth(percent)
        files.write(folder / "cpu.cfs_period_us", str(period))
        files.write(folder / "cpu.cfs_quota_us", str(quota))
        files.write(folder / "cpu.shares", str(_SHARES))

    def _count(self, folder: Path, pids: tuple[int, ...]) -> ShareUsage:
        """The kernel's count of periods; its time where cpuacct is mounted with cpu, else the processes'."""
        told = files.counters((folder / "cpu.stat").read_text())
        accounted = folder / "cpuacct.usage"
        used = int(accounted.read_text()) / 1e9 if accounted.exists() else cpu_seconds(pids)
        return ShareUsage(told["nr_periods"], told["nr_throttled"], used)
