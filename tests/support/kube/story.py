"""A fleet in a namespace of the cluster, run by `ctl` as a user runs it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from ctl_host import Host

from controlplane.gateway.haproxy import HaproxyGateway
from kube import images
from kube.cluster import Cluster, is_true

ECHO = Path(__file__).parents[1] / "gateway_models" / "echo"
RATE_RPS = 200
PATIENCE_S = 180.0


def partition(percent: float, name: str = "echo") -> dict[str, Any]:
    """With an SLO that the guard has no cause to act on."""
    workload = {"name": name, "endpoint": name, "model": "echo", "rate_rps": RATE_RPS, "slo_ms": 5000}
    return {
        "id": name,
        "percent": percent,
        "shadow": {"policy": "hot", "gpu": "cpu-0", "extra_percent": 10, "percent": percent + 10},
        "models": [{"model": "echo", "batch": 1}],
        "workloads": [workload],
    }


class ClusterHost(Host):
    """`ctl` with the cluster's kubeconfig; gateway and controller run on this host."""

    def __init__(self, cluster: Cluster, directory: Path, fleet: str, namespace: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__(directory, fleet)
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

    def apply(
        self, document: dict[str, Any], *more: str, ports: bool = True
    ) -> subprocess.CompletedProcess[str]:
        where = ("--launcher", "kubernetes", "--namespace", self.namespace)
        return super().apply(document, *where, *more, ports=ports)

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

    def processes(self, pod_name: str) -> tuple[int, ...]:
        """The processes of a pod's container."""
        pod = next(pod for pod in self.pods() if pod["metadata"]["name"] == pod_name)
        container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        return self.cluster.node(pod["spec"]["nodeName"]).pids(container)
