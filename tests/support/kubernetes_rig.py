"""The launcher `kubernetes` under test, on a cluster whose kubelet may be a fake."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from background import until
from lightkube.resources.core_v1 import ConfigMap, Pod
from lightkube.resources.policy_v1 import PodDisruptionBudget

from controlplane.domain.fleet import Cluster, Server, ShareUsage
from controlplane.ports import Launcher
from launchers.kubernetes import names
from launchers.kubernetes.api import ClusterApi
from launchers.kubernetes.launcher import KubernetesLauncher
from launchers.kubernetes.options import PodOptions

OPTIONS = PodOptions("trisect.test/triton:1", "Never")
CURRENT = Cluster()


class Kubelet(Protocol):
    """What a test needs of a node."""

    def pid(self, uid: str) -> int:
        """The first process of a pod's container."""

    def usage(self, uid: str) -> ShareUsage:
        """The counters of a pod's container."""

    def leftovers(self, fleet: str) -> list[str]:
        """What of this fleet still runs."""


@dataclass
class KubernetesEngine:
    """A namespace of the cluster in the environment's kubeconfig, with one of its nodes."""

    state: Path
    node: str
    kubelet: Kubelet
    options: PodOptions = OPTIONS
    place: Cluster = CURRENT

    def launcher(self) -> Launcher:
        return KubernetesLauncher(self.state, self.place, self.options)

    def pid(self, server: Server) -> int:
        return self.kubelet.pid(server.id)

    def kill(self, server: Server) -> None:
        pid = self.pid(server)
        os.kill(pid, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{pid}").exists(), 30.0)

    def end(self, server: Server) -> None:
        api = ClusterApi(self.place)
        try:
            api.delete(Pod, names.server_object(server.spec))
        finally:
            api.close()

    def leftovers(self, fleet: str) -> list[str]:
        api = ClusterApi(self.place)
        try:
            selector = names.fleet_labels(fleet)
            found = [*api.find(Pod, selector), *api.find(ConfigMap, selector)]
            left = [names.object_of(one) for one in (*found, *api.find(PodDisruptionBudget, selector))]
        finally:
            api.close()
        return left + self.kubelet.leftovers(fleet)

    def device(self, core: str) -> str:
        return f"{self.node}/{core}"

    def usage(self, server: Server) -> ShareUsage:
        return self.kubelet.usage(server.id)
