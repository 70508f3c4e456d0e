"""Every launcher there is, behind one fixture."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import triton_image
from fake_kubelet import FakeKubelet
from fake_kubernetes import served
from kube.cluster import Cluster
from kube.node import CGROUPS
from launcher_rig import ROOT, DockerEngine, Engine, Fleet, ProcessEngine, engines
from lightkube.resources.core_v1 import ConfigMap, Pod
from lightkube.resources.policy_v1 import PodDisruptionBudget
from private_engine import PrivateEngine

from controlplane.domain.fleet import Cluster as Place
from controlplane.domain.fleet import Server, ShareUsage
from controlplane.ports import Launcher
from launchers.host import process_table
from launchers.kubernetes import names
from launchers.kubernetes.api import ClusterApi
from launchers.kubernetes.launcher import KubernetesLauncher
from launchers.kubernetes.options import PodOptions

CONTRACT = "contract"
"""The namespace of these tests in a real cluster."""


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
                pids = _read(group).split()
                found += [pid for pid in pids if f"={fleet}." in _read(Path("/proc", pid, "cmdline"))]
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


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""  # the group or the process is gone


@dataclass
class KubernetesEngine(Engine):
    """A namespace of the cluster in the environment's kubeconfig, with one of its nodes."""

    state: Path
    node: str
    kubelet: FakeKubelet | RealKubelet
    options: PodOptions
    place: Place

    def launcher(self) -> Launcher:
        return KubernetesLauncher(self.state, self.place, self.options)

    def pid(self, server: Server) -> int:
        return self.kubelet.pid(server.id)

    def end(self, server: Server) -> None:
        with contextlib.closing(ClusterApi(self.place)) as api:
            api.delete(Pod, names.server_object(server.spec))

    def leftovers(self, fleet: str) -> list[str]:
        selector = names.fleet_labels(fleet)
        with contextlib.closing(ClusterApi(self.place)) as api:
            found = [*api.find(Pod, selector), *api.find(ConfigMap, selector)]
            left = [names.object_of(one) for one in (*found, *api.find(PodDisruptionBudget, selector))]
        return left + self.kubelet.leftovers(fleet)

    def device(self, core: str) -> str:
        return f"{self.node}/{core}"

    def usage(self, server: Server) -> ShareUsage:
        return self.kubelet.usage(server.id)


@pytest.fixture(autouse=True)
def _triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRISECT_TRITON_HOME", str(ROOT / ".tools" / "triton"))


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[tuple[PrivateEngine, str]]:
    with triton_image.docker_engine() as made:
        yield made


@pytest.fixture
def kubernetes_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesEngine]:
    """A served fake of the API, and a kubelet that runs its pods as processes of this host."""
    with served() as (cluster, _):
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path / "kubeconfig")))
        cluster.add_node("node-1", cores=4)
        kubelet = FakeKubelet(cluster, tmp_path)
        try:
            options = PodOptions("trisect.test/triton:1", "Never")
            yield KubernetesEngine(tmp_path / "state", "node-1", kubelet, options, Place())
        finally:
            kubelet.close()


@pytest.fixture
def cluster_engine(
    cluster: Cluster, triton_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> KubernetesEngine:
    """A namespace of the real cluster that admits only the strictest pods."""
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    cluster.namespace(CONTRACT)
    kubelet = RealKubelet(cluster, CONTRACT)
    options = PodOptions(triton_image, "Never")
    return KubernetesEngine(tmp_path / "state", "a", kubelet, options, Place(namespace=CONTRACT))


@pytest.fixture(params=engines())
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    match request.param:
        case "process":
            return ProcessEngine(tmp_path / "state")
        case "docker":
            made, image = request.getfixturevalue("docker_engine")
            return DockerEngine(tmp_path / "state", made.address, image)
        case "kubernetes":
            return cast(Engine, request.getfixturevalue("kubernetes_engine"))
        case _:
            return cast(Engine, request.getfixturevalue("cluster_engine"))


@pytest.fixture
def fleet(engine: Engine, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(f"lt{os.getpid()}x{time.monotonic_ns() % 10**6}", engine, tmp_path, engine.launcher())
    try:
        yield made
    finally:
        for server in made.launcher.servers(made.name):
            made.launcher.stop(server, drain_s=0.0)
        made.launcher.sweep(made.name)
        left = made.leftovers()
        for member in process_table.members(fleet=made.name):
            process_table.send(member, signal.SIGKILL)
        assert left == []
