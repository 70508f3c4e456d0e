"""Every launcher there is, behind one fixture."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
import triton_image
from fake_kubelet import FakeKubelet
from fake_kubernetes import served
from kube.cluster import Cluster
from kube.real_kubelet import RealKubelet
from kubernetes_rig import KubernetesEngine
from launcher_rig import ROOT, DockerEngine, Engine, Fleet, ProcessEngine, engines
from private_engine import PrivateEngine

from controlplane.domain.fleet import Cluster as Place
from launchers.host import process_table
from launchers.kubernetes.options import PodOptions

CONTRACT = "contract"
"""The namespace of these tests in a real cluster."""


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
            yield KubernetesEngine(tmp_path / "state", "node-1", kubelet)
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
