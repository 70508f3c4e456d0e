"""The gateway's Deployment as `deploy/kubernetes` installs it."""

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import gateway_rig as rig
import pytest
from background import Background, until
from kube import images
from kube.cluster import Cluster, is_true
from kube.installed import TOKEN, Installation
from service import service

from controlplane.domain.fleet import Backend, GatewayConfig, Route
from controlplane.gateway.replicas.gateway import ReplicatedGateway

NAMESPACE = "gateway-test"
DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/trisect-gateway"
RATE_RPS = 400
STREAMS = 20
ECHO = rig.MODELS / "echo"
CONFINED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
UNPRIVILEGED = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}


def echo_server(cluster: Cluster, namespace: str, name: str) -> Backend:
    """Start a Triton in a pod, without Trisect's launcher; return where it answers once it is ready."""
    where = f"/api/v1/namespaces/{namespace}"
    files = {"config.pbtxt": ECHO / "config.pbtxt", "model.py": ECHO / "1" / "model.py"}
    data = {file: path.read_text() for file, path in files.items()}
    cluster.create(f"{where}/configmaps", {"metadata": {"name": name}, "data": data})
    cluster.create(f"{where}/pods", _pod(name))
    pod = cluster.await_until(f"{where}/pods/{name}", is_true("Ready"))
    return Backend(name, pod["status"]["podIP"], 8000, 8001)


def _pod(name: str) -> dict[str, Any]:
    items = [{"key": "config.pbtxt", "path": "config.pbtxt"}, {"key": "model.py", "path": "1/model.py"}]
    container = {
        "name": "triton",
        "image": images.TRITON,
        "imagePullPolicy": "Never",
        "command": [
            *("/opt/tritonserver/bin/tritonserver", f"--id={name}", "--model-repository=/models"),
            *("--backend-directory=/opt/tritonserver/backends", "--disable-auto-complete-config"),
        ],
        "env": [{"name": "SERVER_NAME", "value": name}, {"name": "OPENBLAS_NUM_THREADS", "value": "1"}],
        "readinessProbe": {"httpGet": {"path": "/v2/health/ready", "port": 8000}, "periodSeconds": 1},
        "securityContext": CONFINED,
        "volumeMounts": [
            {"name": "model", "mountPath": "/models/echo"},
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "memory", "mountPath": "/dev/shm"},
        ],
    }
    volumes = [
        {"name": "model", "configMap": {"name": name, "items": items}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
    ]
    spec = {"containers": [container], "volumes": volumes, "securityContext": UNPRIVILEGED}
    return {"metadata": {"name": name}, "spec": spec}


@pytest.fixture(scope="module")
def installed(
    cluster: Cluster, trisect_image: str, triton_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    """The gateway alone."""
    cluster.namespace(NAMESPACE)
    made = Installation(cluster, NAMESPACE, tmp_path_factory.mktemp("no-models"))
    made.install("gateway.yaml")
    yield made
    cluster.forget(NAMESPACE)


def replicas(installed: Installation) -> dict[str, str]:
    """Name and address of each pod that has one."""
    found = installed.pods("gateway")
    return {p["metadata"]["name"]: p["status"]["podIP"] for p in found if p["status"].get("podIP")}


class KeptUp(Background):
    """New replicas get routes, as the controller's look at the routes gives them."""

    def __init__(self, gateway: ReplicatedGateway) -> None:
        super().__init__()
        self._gateway = gateway

    def _run(self) -> None:
        while not self._stop.wait(0.2):
            self._gateway.routes()


def rolled_out(deployment: dict[str, Any]) -> bool:
    wanted, status = deployment["spec"]["replicas"], deployment["status"]
    return status.get("observedGeneration") == deployment["metadata"]["generation"] and all(
        status.get(count) == wanted for count in ("replicas", "updatedReplicas", "readyReplicas")
    )


def all_open(load: rig.Load) -> bool:
    """Whether each stream had an answer; none may end before."""
    ended = [o.error for o in load.outcomes if o.kind == "stream" and o.error is not None]
    assert ended == []
    return len(load.streamed) == STREAMS


def test_a_rolling_update_of_the_gateway_loses_no_request(installed: Installation) -> None:
    cluster = installed.cluster
    one, two = (echo_server(cluster, NAMESPACE, name) for name in ("one", "two"))
    gateway = ReplicatedGateway(lambda: [f"{ip}:8003" for ip in replicas(installed).values()], TOKEN)
    gateway.start(GatewayConfig())
    gateway.commit({"echo": Route((one,), two)})
    with (
        KeptUp(gateway),
        service(lambda: installed.targets(8000), lambda: installed.targets(8001)) as (http, grpc),
    ):
        cluster.await_until(DEPLOYMENT, rolled_out)
        before = replicas(installed).keys()
        load = rig.Load(rig.Ports(http, grpc, 0))

        def replace() -> None:
            note = {"metadata": {"annotations": {"restarted": "once"}}}
            cluster.merge(DEPLOYMENT, {"spec": {"template": note}})
            cluster.await_until(DEPLOYMENT, rolled_out)
            until(lambda: before.isdisjoint(replicas(installed)), 120)

        streams = [partial(load.stream, 0.2, n) for n in range(STREAMS)]
        with rig.under_load(partial(load.unary, RATE_RPS), *streams):
            until(partial(all_open, load))
            replace()
            done = time.monotonic()
            until(lambda: load.answered("one", done) != [])
    unary = [o for o in load.outcomes if o.kind != "stream"]
    ended = [o for o in load.outcomes if o.kind == "stream" and o.error is not None]
    print(
        f"\nboth gateways replaced under {RATE_RPS} req/s and {STREAMS} streams: {len(unary)} unary, "
        f"{sum(o.error is not None for o in unary)} failed, {len(ended)} streams ended"
    )
    assert [o for o in unary if o.error is not None] == []
