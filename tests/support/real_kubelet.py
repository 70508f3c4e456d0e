"""A real node of the test cluster, as the contract suite of launchers sees it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil
from kube.cluster import Cluster
from kube.node import Node

from controlplane.domain.fleet import ShareUsage

_CGROUPS = Path("/sys/fs/cgroup")


@dataclass
class RealKubelet:
    """`kubernetes_rig.Kubelet` by the cgroups of version 1 that containerd makes."""

    cluster: Cluster
    node: Node
    namespace: str

    def pid(self, uid: str) -> int:
        return min(self.node.pids(self._container(uid)))

    def usage(self, uid: str) -> ShareUsage:
        counted = dict(line.split() for line in self._file("cpu", uid, "cpu.stat").read_text().splitlines())
        used_ns = int(self._file("cpuacct", uid, "cpuacct.usage").read_text())
        return ShareUsage(int(counted["nr_periods"]), int(counted["nr_throttled"]), used_ns / 1e9)

    def leftovers(self, fleet: str) -> list[str]:
        """Processes whose command line names a server of the fleet, on any node."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            if any(word.startswith(f"--id={fleet}.") for word in process.info["cmdline"] or ()):
                found.append(f"process {process.pid}")
        return found

    def _file(self, controller: str, uid: str, name: str) -> Path:
        return next((_CGROUPS / controller / self.node.group).rglob(self._container(uid))) / name

    def _container(self, uid: str) -> str:
        pods = self.cluster.get(f"/api/v1/namespaces/{self.namespace}/pods")["items"]
        (pod,) = [one for one in pods if one["metadata"]["uid"] == uid]
        return str(pod["status"]["containerStatuses"][0]["containerID"]).removeprefix("containerd://")
