"""The gateway's Deployment as `deploy/kubernetes` installs it."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import gateway_rig as rig
import pytest
import yaml
from background import until
from kube import echo_server, own_image
from kube.cluster import Cluster
from service import service

from controlplane.domain.fleet import GatewayConfig, Route
from controlplane.gateway.replicas.gateway import ReplicatedGateway

NAMESPACE = "gateway-test"
TOKEN = "the-token"
SELECTOR = "app.kubernetes.io/component=gateway,trisect.dev/fleet=default"
PLACES = {
    "ServiceAccount": f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
    "Service": f"/api/v1/namespaces/{NAMESPACE}/services",
    "Deployment": f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments",
    "PodDisruptionBudget": f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets",
}
DEPLOYMENT = f"{PLACES['Deployment']}/trisect-gateway"
RATE_RPS = 400
STREAMS = 20


@dataclass(frozen=True)
class Installed:
    """The gateway in the cluster."""

    cluster: Cluster

    def pods(self) -> list[dict[str, Any]]:
        found = self.cluster.get(f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={SELECTOR}")
        return [pod for pod in found["items"] if pod["status"].get("podIP")]

    def control_ports(self) -> list[str]:
        return [f"{pod['status']['podIP']}:8003" for pod in self.pods()]

    def targets(self, port: int) -> list[tuple[str, int]]:
        """The Service's ready addresses, as kube-proxy has them."""
        where = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
        slices = self.cluster.get(f"{where}?labelSelector=kubernetes.io/service-name=trisect")["items"]
        ends = [end for one in slices for end in one["endpoints"] if end["conditions"]["ready"]]
        return [(address, port) for end in ends for address in end["addresses"]]


@pytest.fixture(scope="module")
def installed(cluster: Cluster, trisect_image: str, triton_image: str) -> Iterator[Installed]:
    cluster.namespace(NAMESPACE)
    secret = {"token": base64.b64encode(TOKEN.encode()).decode()}
    where = f"/api/v1/namespaces/{NAMESPACE}/secrets"
    cluster.create(where, {"metadata": {"name": "trisect-gateway"}, "data": secret})
    manifests = yaml.safe_load_all((own_image.ROOT / "deploy/kubernetes/gateway.yaml").read_text())
    for manifest in manifests:
        cluster.create(PLACES[manifest["kind"]], manifest)
    yield Installed(cluster)
    cluster.forget(NAMESPACE)


@contextmanager
def kept_up(gateway: ReplicatedGateway) -> Iterator[None]:
    """New replicas get routes, as the controller's look at the routes gives them."""
    ending = threading.Event()

    def look() -> None:
        while not ending.wait(0.2):
            gateway.routes()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


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


def test_a_rolling_update_of_the_gateway_loses_no_request(installed: Installed) -> None:
    cluster = installed.cluster
    one, two = (echo_server.start(cluster, NAMESPACE, name) for name in ("one", "two"))
    gateway = ReplicatedGateway(installed.control_ports, TOKEN)
    gateway.start(GatewayConfig())
    gateway.commit({"echo": Route((one,), two)})
    with (
        kept_up(gateway),
        service(lambda: installed.targets(8000), lambda: installed.targets(8001)) as (http, grpc),
    ):
        cluster.await_until(DEPLOYMENT, rolled_out)
        before = {pod["metadata"]["name"] for pod in installed.pods()}
        load = rig.Load(rig.Ports(http, grpc, 0))

        def replace() -> None:
            note = {"metadata": {"annotations": {"restarted": "once"}}}
            cluster.merge(DEPLOYMENT, {"spec": {"template": note}})
            cluster.await_until(DEPLOYMENT, rolled_out)
            until(lambda: before.isdisjoint(pod["metadata"]["name"] for pod in installed.pods()), 120)

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
