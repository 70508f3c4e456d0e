"""The cluster as tests use it."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from background import until
from filelock import FileLock

from kube import leftovers, processes
from kube.control_plane import ControlPlane, Credentials
from kube.node import Node

_NODE_NAMES = ("a", "b")
_ADDED = "c"
"""What joins later has its token from the beginning: the API server reads them once."""
_FIRST_SUBNET = 10
_PATIENCE_S = 180.0


@dataclass(frozen=True)
class Cluster:
    """Two nodes, and at times a third, under one API server, which `api` calls with all rights."""

    folder: Path
    control_plane: ControlPlane
    nodes: list[Node]
    kubeconfig: Path
    api: httpx.Client

    def get(self, path: str) -> dict[str, Any]:
        return self._value(self.api.get(path))

    def create(self, path: str, document: dict[str, Any]) -> dict[str, Any]:
        return self._value(self.api.post(path, json=document))

    def delete(self, path: str) -> None:
        self.api.delete(path, params={"gracePeriodSeconds": 0}).raise_for_status()

    def merge(self, path: str, patch: dict[str, Any]) -> dict[str, Any]:
        kind = {"Content-Type": "application/strategic-merge-patch+json"}
        return self._value(self.api.patch(path, json=patch, headers=kind))

    def _value(self, answer: httpx.Response) -> dict[str, Any]:
        assert answer.is_success, f"{answer.request.method} {answer.request.url}: {answer.text}"
        value: dict[str, Any] = answer.json()
        return value

    def await_until(self, path: str, accepts: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The object at `path` once it is as expected."""
        deadline = time.monotonic() + _PATIENCE_S
        while not accepts(value := self.get(path)):
            assert time.monotonic() < deadline, value
            time.sleep(0.1)
        return value

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def renewals(self) -> dict[str, str]:
        """When each node said last that it is alive."""
        leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        return {n.name: self.get(f"{leases}/{n.name}")["spec"]["renewTime"] for n in self.nodes}

    def add_node(self, labels: Mapping[str, str], *archives: Path) -> Node:
        """Start a further node with these labels and images, and return it once it is ready."""
        number = _FIRST_SUBNET + len(self.nodes)
        node = Node(self.folder, _ADDED, number, self.control_plane.credentials)
        self.nodes.append(node)
        node.start(*archives)
        _await_node(self, node)
        self.merge(f"/api/v1/nodes/{node.name}", {"metadata": {"labels": {**labels}}})
        return node

    def remove_node(self, node: Node) -> None:
        """End a node as a cloud does, which takes back the machine."""
        node.lose()
        self.delete(f"/api/v1/nodes/{node.name}")
        self.nodes.remove(node)

    def namespace(self, name: str, *, security: str = "restricted") -> None:
        """Make a namespace where there is none yet, and return once pods can be created in it."""
        if self.api.get(f"/api/v1/namespaces/{name}").is_success:
            return
        labels = {"pod-security.kubernetes.io/enforce": security}
        self.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        self.await_until(
            f"/api/v1/namespaces/{name}/serviceaccounts",
            lambda found: any(item["metadata"]["name"] == "default" for item in found["items"]),
        )

    def forget(self, namespace: str) -> None:
        """Delete a namespace, and return once its pods are gone: later tests need their cores."""
        path = f"/api/v1/namespaces/{namespace}"
        self.api.delete(f"{path}/pods", params={"gracePeriodSeconds": 1}).raise_for_status()
        self.api.delete(path).raise_for_status()
        until(lambda: not self.get(f"{path}/pods")["items"], _PATIENCE_S, f"{namespace} has pods")


def is_true(condition: str) -> Callable[[dict[str, Any]], bool]:
    """Whether an object's status has this condition."""
    return lambda value: any(
        c["type"] == condition and c["status"] == "True" for c in value["status"].get("conditions", ())
    )


@contextlib.contextmanager
def running(names: Sequence[str] = _NODE_NAMES) -> Iterator[Cluster]:
    """A cluster with these ready nodes, for as long as the tests run, and nothing of it afterwards.

    Without a node there are no controllers either, which would find that nodes made as objects are not alive.
    """
    processes.check()
    # Its bridges and groups have fixed names, so that a killed run's are found.
    with FileLock(leftovers.FOLDERS / "tskube.lock"):
        leftovers.clear()
        with _started(tuple(names)) as cluster:
            yield cluster


@contextlib.contextmanager
def _started(names: tuple[str, ...]) -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix=leftovers.FOLDER_PREFIX, dir=leftovers.FOLDERS))
    started: list[processes.Process] = []
    nodes: list[Node] = []
    try:
        credentials = Credentials.make(folder, (*names, _ADDED))
        control_plane = ControlPlane(folder, credentials)
        started += control_plane.processes
        nodes += [Node(folder, name, _FIRST_SUBNET + i, credentials) for i, name in enumerate(names)]
        control_plane.start(controllers=bool(names))
        for node in nodes:
            node.start()
        with control_plane.client() as api:
            cluster = Cluster(folder, control_plane, nodes, credentials.kubeconfig("admin"), api)
            for node in nodes:
                _await_node(cluster, node)
            yield cluster
    finally:
        leftovers.clear()
        for process in (*started, *(p for node in nodes for p in (node.kubelet, node.containerd))):
            process.end()


def _await_node(cluster: Cluster, node: Node) -> None:
    path, ready, deadline = f"/api/v1/nodes/{node.name}", is_true("Ready"), time.monotonic() + _PATIENCE_S
    while True:
        node.kubelet.check_alive()
        answer = cluster.api.get(path)
        if answer.is_success and ready(answer.json()):
            return
        assert time.monotonic() < deadline, node.kubelet.last_lines()
        time.sleep(0.2)
