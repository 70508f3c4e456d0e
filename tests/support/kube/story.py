"""A fleet in a namespace of the cluster, run by `ctl` as a user runs it."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ctl_fleet
import gateway_rig as rig
import psutil
from background import until
from ctl_fleet import Ctl

from controlplane.gateway.haproxy import HaproxyGateway
from kube import images
from kube.cluster import Cluster, is_true
from kube.node import Node

ECHO = Path(__file__).parents[1] / "gateway_models" / "echo"
RATE_RPS = 200
PATIENCE_S = 180.0
WITHOUT_API_S = 60.0


def partition(percent: float, slo_ms: float = 5000) -> dict[str, Any]:
    """With an SLO that the guard has no cause to act on, unless it is given."""
    return ctl_fleet.partition("echo", percent, batch=1, rate_rps=RATE_RPS, slo_ms=slo_ms)


class ClusterHost(Ctl):
    """`ctl` with the cluster's kubeconfig; gateway and controller run on this host."""

    def __init__(self, cluster: Cluster, directory: Path, fleet: str, namespace: str) -> None:
        super().__init__(directory)
        self.fleet = fleet
        self.launcher_options = ["--set=serve.launcher=kubernetes", f"--set=serve.namespace={namespace}"]
        self.cluster = cluster
        self.namespace = namespace
        self._write_model()
        self.environment |= {
            "KUBECONFIG": str(cluster.kubeconfig),
            "TRISECT_IMAGE": images.TRITON,
            "TRISECT_PULL": "never",
            "TRISECT_MODELS": f"host:{self.repository}",
        }

    def _write_model(self) -> None:
        """The echo model, which answers with its pod's name."""
        model = (ECHO / "1" / "model.py").read_text()
        (self.repository / "echo" / "1" / "model.py").write_text(
            model.replace('os.environ["SERVER_NAME"]', "os.uname().nodename")
        )
        (self.repository / "echo" / "config.pbtxt").write_text((ECHO / "config.pbtxt").read_text())

    def processes(self, **environment: str) -> list[psutil.Process]:
        """Those with its state, for another namespace's fleet may have its name; pods are the cluster's."""
        return super().processes(XDG_STATE_HOME=self.environment["XDG_STATE_HOME"], **environment)

    def all_processes(self) -> list[psutil.Process]:
        return self.processes()

    def pods(self) -> list[dict[str, Any]]:
        """The fleet's pods."""
        where = f"/api/v1/namespaces/{self.namespace}/pods"
        found: list[dict[str, Any]] = self.cluster.get(where)["items"]
        return [pod for pod in found if pod["metadata"]["labels"].get("trisect.dev/fleet") == self.fleet]

    def ready(self) -> set[str]:
        """The names of its pods that are ready and stay."""
        ready = is_true("Ready")
        return {
            pod["metadata"]["name"]
            for pod in self.pods()
            if ready(pod) and "deletionTimestamp" not in pod["metadata"]
        }

    def settled(self) -> bool:
        """Whether the endpoint is routed to a pod, with another one as its backup, and both are ready."""
        route = HaproxyGateway(self.files / "gateway").routes().get("echo")
        return route is not None and route.backup is not None and len(self.ready()) == 2

    def restarts(self, pod_name: str) -> int | None:
        """How often the kubelet restarted a pod's container; None for a pod that is gone."""
        for pod in self.pods():
            if pod["metadata"]["name"] == pod_name and pod["status"].get("containerStatuses"):
                return int(pod["status"]["containerStatuses"][0]["restartCount"])
        return None

    def container(self, pod_name: str) -> tuple[Node, str]:
        """The node and the container of a pod."""
        pod = next(pod for pod in self.pods() if pod["metadata"]["name"] == pod_name)
        container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        return self.cluster.node(pod["spec"]["nodeName"]), container


def under_load(host: ClusterHost, happens: Callable[[rig.Load], None]) -> rig.Load:
    """Load on the fleet's gateway while something happens, and for a while afterwards."""
    return loaded(rig.Ports(host.http, host.grpc, host.metrics), RATE_RPS, happens)


def loaded(ports: rig.Ports, rate_rps: int, happens: Callable[[rig.Load], None]) -> rig.Load:
    """Load while something happens, and for five seconds' worth of requests afterwards."""
    load = rig.Load(ports)

    with rig.under_load(partial(load.unary, rate_rps)):
        until(lambda: len(load.outcomes) > rate_rps)
        happens(load)
        enough = len(load.outcomes) + 5 * rate_rps
        until(lambda: len(load.outcomes) > enough)
    return load


@contextlib.contextmanager
def without_api_server(cluster: Cluster, *, elected: bool) -> Iterator[None]:
    """Within, and for a minute from its beginning on, the API server is away.

    A controller manager that was `elected` ends with it and begins anew. One that goes on takes nodes, which
    it does not hear of, for lost, for up to a minute after the API server is back. At the end they take pods.
    """
    before, manager = cluster.renewals(), cluster.control_plane.controller_manager
    cluster.control_plane.stop_api_server()
    if elected:
        manager.end(signal.SIGKILL)
    try:
        began = time.monotonic()
        yield
        until(lambda: time.monotonic() > began + WITHOUT_API_S, 2 * WITHOUT_API_S)
    finally:
        cluster.control_plane.start_api_server()
        back = time.monotonic()
        if elected:
            manager.start()
        until(lambda: before.items().isdisjoint(cluster.renewals().items()), PATIENCE_S, "nodes are heard of")
        until(lambda: elected or time.monotonic() > back + _LOST_S, PATIENCE_S)
        for node in cluster.nodes:
            cluster.await_until(f"/api/v1/nodes/{node.name}", _takes_pods)


_LOST_S = 15.0
"""The time after which no node is taken for lost any more: they are looked at every 5 s."""


def _takes_pods(node: dict[str, Any]) -> bool:
    """Whether a node is ready; the taint of a lost one is taken from it some time later."""
    return is_true("Ready")(node) and not node["spec"].get("taints")


def active(load: rig.Load) -> str:
    """The pod that answers now."""
    name = next(o.server for o in reversed(load.outcomes) if o.server is not None)
    assert name is not None
    return name


def kill(pod: str, pids: tuple[int, ...]) -> "Blow":
    """End a pod's server at once: until its processes are gone, they accept requests that nothing answers."""
    began = time.monotonic()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: not any(map(psutil.pid_exists, pids)), PATIENCE_S)
    return Blow(pod, began, time.monotonic())


@dataclass(frozen=True)
class Blow:
    """What happened to a pod, between two times."""

    pod: str
    began: float
    ended: float

    def lost(self, load: rig.Load) -> list[rig.Outcome]:
        """Failed requests that were not in flight then."""
        return [o for o in load.failed() if o.started > self.ended or o.ended < self.began]

    def redirected_s(self, load: rig.Load) -> float:
        """Seconds until another pod answered."""
        others = [o.ended for o in load.outcomes if o.server not in (None, self.pod)]
        return min(ended for ended in others if ended > self.began) - self.began
