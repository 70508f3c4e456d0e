"""The tutorial with kubectl and helm, as its page has it, and an upgrade from the version before."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import former_version
import httpx
import pytest
from background import Background, until
from host_ports import free_ports
from kube import images
from kube.cluster import Cluster, is_true
from kube.installed import Installation, is_applied
from kube.own_image import FORMER, ROOT, TAG
from kube.processes import program
from kube.story import PATIENCE_S
from service import service

NAMESPACE = "trisect"
PAGE = (ROOT / "docs" / "kubernetes-tutorial.md").read_text()
INSTALL, FLEET, BREAK, WRONG, END = (
    re.findall(r"^\$ (.*)$", block, re.MULTILINE)
    for block in re.findall(r"^```console\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    if "port-forward" not in block
)
CHART, EXAMPLE = "deploy/kubernetes", "examples/kubernetes/fleet.yaml"
CALL = "curl --retry 20 --retry-all-errors --fail --silent localhost:{port}/v2/models/alexnet"


@dataclass(frozen=True)
class User:
    """Somebody with the page, a kubeconfig and a clone."""

    folder: Path

    def run(self, *commands: str, image: str = TAG) -> str:
        """Run commands of the page, with this cluster's images; return what they print."""
        text = "\n".join(("set -e", *commands))
        text = text.replace(
            "image=REGISTRY/trisect:0.1.0", f"image={image} --set servers.image={images.TRITON}"
        )
        text = text.replace("examples/kubernetes/models.yaml", str(self.folder / "models.yaml"))
        path = f"{ROOT / '.tools' / 'helm'}:{Path(program('kubectl')).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "KUBECONFIG": str(self.folder / "kubeconfig"), "PATH": path}
        done = subprocess.run(
            ["bash", "-c", text],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}"
        return done.stdout


def is_gone(cluster: Cluster, path: str) -> bool:
    return cluster.api.get(path).status_code == 404


@pytest.fixture
def user(cluster: Cluster, trisect_image: str, triton_image: str, tmp_path: Path) -> Iterator[User]:
    shutil.copy(cluster.kubeconfig, tmp_path / "kubeconfig")
    copying = (ROOT / "examples" / "kubernetes" / "models.yaml").read_text()
    (tmp_path / "models.yaml").write_text(copying.replace("debian:bookworm-slim", TAG))
    # What a storage class would provide; no container's user owns a folder of the node.
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume").chmod(0o777)
    volume = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": str(tmp_path / "volume")},
    }
    volumes = "/api/v1/persistentvolumes"
    cluster.create(volumes, {"metadata": {"name": "tutorial"}, "spec": volume})
    # Another test's, which are none of helm's.
    remove(
        cluster,
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/fleets.trisect.dev",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/trisect-devices",
    )
    yield User(tmp_path)
    cluster.forget(NAMESPACE)
    remove(cluster, f"/api/v1/namespaces/{NAMESPACE}", f"{volumes}/tutorial")


def remove(cluster: Cluster, *paths: str) -> None:
    """Delete objects, and return once they are gone."""
    for path in paths:
        cluster.api.delete(path)
        until(partial(is_gone, cluster, path), PATIENCE_S)


class Requests(Background):
    """One request after the other to the tutorial's endpoint, each on a connection of its own."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._url = f"http://127.0.0.1:{port}/v2/models/alexnet/infer"
        self.answered = 0
        self.failed: list[str] = []

    def _run(self) -> None:
        shape = [1, 3, 64, 64]
        tensor = {"name": "INPUT", "datatype": "FP32", "shape": shape, "data": [0.0] * (3 * 64 * 64)}
        while not self._stop.wait(0.05):
            try:
                httpx.post(self._url, json={"inputs": [tensor]}, timeout=60.0).raise_for_status()
                self.answered += 1
            except httpx.HTTPError as error:
                self.failed.append(repr(error))

    def await_more(self, count: int) -> None:
        enough = self.answered + count
        until(lambda: self.answered >= enough, PATIENCE_S)


def test_the_page_holds_from_the_installation_to_the_end(user: User, cluster: Cluster) -> None:
    user.run(*INSTALL)
    (port,) = free_ports(1)
    shown = user.run(*FLEET)
    assert re.search(r"^default\s+1/1\s+1\s+0\s+1\.00x", shown, re.MULTILINE), shown
    forward = f"kubectl port-forward service/trisect {port}:8000 >/dev/null & trap 'kill $!' EXIT"
    assert '"name":"alexnet"' in user.run(forward, CALL.format(port=port))

    assert len(user.run(BREAK[0]).splitlines()) == 3, "a header, the server and its shadow"
    user.run(BREAK[1])
    until(lambda: re.search(r"^default\s+1/1\s+1\s+1\s", user.run(BREAK[2]), re.MULTILINE), PATIENCE_S)
    assert "Redirect" in user.run(BREAK[3])
    user.run("kubectl wait fleet/default --for=condition=Degraded=False --timeout=3m")

    (wrong,) = WRONG
    told = user.run(f"({wrong}) && exit 1 || true")
    assert "spec.plan.gpus[0].partitions[0].percent" in told, told

    user.run(*END)
    user.run('test -z "$(kubectl get pods --selector app.kubernetes.io/component=server --output name)"')


def test_a_release_of_the_version_before_is_upgraded_without_a_lost_request(
    user: User, cluster: Cluster
) -> None:
    """Gateway and controllers are replaced; the servers are not until the fleet is changed."""
    former = former_version.unpack(user.folder / "former", "deploy")
    if former is None:
        pytest.skip(former_version.NOT_RUN)
    user.run(*(command.replace(CHART, str(former / CHART)) for command in INSTALL), image=FORMER)
    user.run(*FLEET)
    release = Installation(cluster, NAMESPACE, user.folder)
    until(lambda: len(serving(release)) == 2, PATIENCE_S)
    before = serving(release)
    replicas = {pod["metadata"]["uid"] for pod in release.pods("gateway")}
    with service(lambda: release.targets(8000)) as (port,), Requests(port) as requests:
        requests.await_more(20)
        user.run(f"helm upgrade trisect {CHART} --reuse-values --set image={TAG}")
        for name in ("gateway", "controller"):
            user.run(f"kubectl rollout status deployment/trisect-{name} --timeout=5m")
        until(
            lambda: replicas.isdisjoint(pod["metadata"]["uid"] for pod in release.pods("gateway")), PATIENCE_S
        )
        # The one that leads now has adopted the fleet.
        cluster.await_until(release.fleet, lambda fleet: fleet["status"]["leader"] == release.leader())
        requests.await_more(20)
        assert serving(release) == before
        user.run(f"sed 's/percent: 40.0/percent: 35.0/' {EXAMPLE} | kubectl apply --server-side -f -")
        cluster.await_until(release.fleet, is_applied)
        requests.await_more(20)
    print(f"\nhelm upgrade: {requests.answered} requests answered, {len(requests.failed)} failed")
    assert requests.failed == []
    user.run(*END)


def serving(release: Installation) -> set[str]:
    """The servers' pods, where all are ready and none ends; else nothing."""
    pods = release.pods("server")
    stay = all(is_true("Ready")(pod) and "deletionTimestamp" not in pod["metadata"] for pod in pods)
    return {pod["metadata"]["uid"] for pod in pods} if stay else set()
