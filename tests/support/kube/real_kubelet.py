"""What the contract of launchers needs to see of a real cluster's nodes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlplane.domain.fleet import ShareUsage
from kube.cluster import Cluster
from kube.node import CGROUPS


@dataclass(frozen=True)
class RealKubelet:
    """The pods of one namespace, as their nodes' control groups show them."""

    cluster: Cluster
    namespace: str

    def pid(self, uid: str) -> int:
        """Triton itself, which is the first process of its container."""
        return min(int(pid) for pid in (self._group("cpu", uid) / "cgroup.procs").read_text().split())

    def usage(self, uid: str) -> ShareUsage:
        """The kernel's counters."""
        lines = (self._group("cpu", uid) / "cpu.stat").read_text().splitlines()
        counted = {name: int(value) for name, value in (line.split() for line in lines)}
        used_ns = int((self._group("cpuacct", uid) / "cpuacct.usage").read_text())
        return ShareUsage(counted["nr_periods"], counted["nr_throttled"], used_ns / 1e9)

    def leftovers(self, fleet: str) -> list[str]:
        """Processes of the fleet's servers, whose command lines begin their names with its."""
        found = []
        for node in self.cluster.nodes:
            for group in (CGROUPS / "cpu" / node.group).rglob("cgroup.procs"):
                found += [pid for pid in _pids(group) if f"={fleet}." in _command_line(pid)]
        return [f"process {pid}" for pid in found]

    def _group(self, hierarchy: str, uid: str) -> Path:
        """The control group of a pod's container."""
        pod = self._pod(uid)
        container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        node = self.cluster.node(pod["spec"]["nodeName"])
        return next((CGROUPS / hierarchy / node.group).rglob(container))

    def _pod(self, uid: str) -> dict[str, Any]:
        pods = self.cluster.get(f"/api/v1/namespaces/{self.namespace}/pods")["items"]
        return next(pod for pod in pods if pod["metadata"]["uid"] == uid)


def _pids(group: Path) -> list[str]:
    try:
        return group.read_text().split()
    except OSError:
        return []  # the group is gone


def _command_line(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""  # the process is gone
