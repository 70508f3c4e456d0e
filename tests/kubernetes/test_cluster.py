"""The cluster that the other tests stand on does what they rely on."""

from collections.abc import Iterator
from typing import Any

import pytest
from kube import images
from kube.cluster import Cluster, is_true

NAMESPACE = "cluster-test"


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> Iterator[str]:
    cluster.namespace(NAMESPACE)
    yield f"/api/v1/namespaces/{NAMESPACE}"
    cluster.forget(NAMESPACE)


def waiting_pod(name: str, node: str, cpu: str) -> dict[str, Any]:
    """A pod of the strictest kind that only waits."""
    resources = {kind: {"cpu": cpu, "memory": "32Mi"} for kind in ("requests", "limits")}
    container = {
        "name": "wait",
        "image": images.PAUSE,
        "imagePullPolicy": "Never",
        "command": ["/usr/bin/sleep", "infinity"],
        "resources": resources,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }
    return {
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [container],
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 1000,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        },
    }


def container_id(pod: dict[str, Any]) -> str:
    return str(pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://"))


def test_a_pod_runs_on_the_node_that_it_selects(cluster: Cluster, namespace: str) -> None:
    for node in cluster.nodes:
        cluster.create(f"{namespace}/pods", waiting_pod(f"on-{node.name}", node.name, "50m"))
    for node in cluster.nodes:
        pod = cluster.await_until(f"{namespace}/pods/on-{node.name}", is_true("Ready"))
        assert pod["spec"]["nodeName"] == node.name


def test_a_cpu_limit_is_a_quota_and_resizes_without_a_restart(cluster: Cluster, namespace: str) -> None:
    node = cluster.nodes[0]
    cluster.create(f"{namespace}/pods", waiting_pod("resized", node.name, "200m"))
    pod = cluster.await_until(f"{namespace}/pods/resized", is_true("Ready"))
    uid, container = pod["metadata"]["uid"], container_id(pod)
    assert node.quota(uid, container) == (2000, 10000)

    grown = {"cpu": "400m", "memory": "32Mi"}
    container_patch = {"name": "wait", "resources": {"requests": grown, "limits": grown}}
    cluster.merge(f"{namespace}/pods/resized/resize", {"spec": {"containers": [container_patch]}})
    pod = cluster.await_until(
        f"{namespace}/pods/resized",
        lambda p: p["status"]["containerStatuses"][0]["resources"]["limits"]["cpu"] == "400m",
    )
    assert node.quota(uid, container) == (4000, 10000)
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
