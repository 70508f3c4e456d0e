"""The devices of a cluster's nodes, against a served fake."""

from pathlib import Path
from typing import Any

import pytest
from fake_kubernetes import FakeCluster

from controlplane.domain.fleet import Cluster
from launchers.kubernetes.launcher import KubernetesLauncher

CONTROL_PLANE = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
UNREACHABLE = {"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}
NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}


@pytest.fixture
def launcher(cluster: FakeCluster, tmp_path: Path) -> KubernetesLauncher:
    return KubernetesLauncher(tmp_path, Cluster())


def devices(launcher: KubernetesLauncher, *, lost: bool = False) -> list[str]:
    return [device.name for device in launcher.inventory() if device.lost is lost]


def become(
    cluster: FakeCluster,
    name: str,
    *,
    ready: str = "True",
    taint: dict[str, Any] | None = None,
    cordoned: bool = False,
) -> None:
    def change(node: dict[str, Any]) -> None:
        node["status"]["conditions"] = [{"type": "Ready", "status": ready}]
        node["spec"] = {"taints": [taint] if taint else [], "unschedulable": cordoned}

    cluster.store.edit(("nodes", "", name), change)


def test_the_cores_of_nodes_that_take_pods(cluster: FakeCluster, launcher: KubernetesLauncher) -> None:
    assert devices(launcher) == []
    cluster.add_node("b", cores=1)
    cluster.add_node("a")
    assert devices(launcher) == ["a/cpu-0", "a/cpu-1", "b/cpu-0"]
    become(cluster, "a", cordoned=True)
    assert devices(launcher) == ["b/cpu-0"]
    become(cluster, "b", taint=CONTROL_PLANE, ready="Unknown")
    assert devices(launcher) == devices(launcher, lost=True) == []


@pytest.mark.parametrize(
    ("ready", "taint"), [("Unknown", None), ("False", None), ("True", UNREACHABLE), ("True", NOT_READY)]
)
def test_those_of_a_lost_node_are_said_to_be_lost(
    cluster: FakeCluster, launcher: KubernetesLauncher, ready: str, taint: dict[str, Any] | None
) -> None:
    cluster.add_node("a")
    cluster.add_node("b", cores=1)
    become(cluster, "a", ready=ready, taint=taint)
    assert (devices(launcher), devices(launcher, lost=True)) == (["b/cpu-0"], ["a/cpu-0", "a/cpu-1"])
    become(cluster, "a")
    assert devices(launcher, lost=True) == []
