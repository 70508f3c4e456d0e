"""A node that is lost, with a fleet whose shadow stands on another one."""

import time
from collections.abc import Iterator
from typing import Any

import gateway_rig as rig
import pytest
from background import until
from ctl_fleet import plan
from kube.cluster import Cluster
from kube.story import PATIENCE_S, RATE_RPS, Blow, ClusterHost, active, partition, under_load

REDIRECTED_S = 3.0


def across_nodes() -> dict[str, Any]:
    """One partition whose shadow must be on another node."""
    one = partition(40)
    one["shadow"] |= {"gpu": "cpu-1", "other_node": True}
    document = plan(one)
    document["gpus"].append({"id": "cpu-1", "type": "cpu", "partitions": []})
    return document


@pytest.fixture(scope="module")
def host(
    cluster: Cluster, triton_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterHost]:
    cluster.namespace("nodes", security="privileged")
    with ClusterHost(cluster, tmp_path_factory.mktemp("nodes"), "parted", "nodes") as made:
        made.apply(across_nodes())
        yield made
    cluster.forget("nodes")


def test_active_and_shadow_are_on_two_nodes_and_the_status_says_which(host: ClusterHost) -> None:
    placed = {pod["spec"]["nodeName"] for pod in host.pods()}
    assert placed == {node.name for node in host.cluster.nodes}
    told = {row["role"]: row["device"] for row in host.servers()}
    assert {device.split("/")[0] for device in told.values()} == placed


def test_a_lost_node_loses_no_request_beyond_those_in_flight(host: ClusterHost) -> None:
    blows: list[Blow] = []

    def lose(load: rig.Load) -> None:
        name = active(load)
        (node,) = (pod["spec"]["nodeName"] for pod in host.pods() if pod["metadata"]["name"] == name)
        lost = host.cluster.node(node)
        began = time.monotonic()
        lost.lose()
        blows.append(Blow(name, began, time.monotonic()))
        try:
            until(lambda: active(load) != name, PATIENCE_S)
        finally:
            lost.revive()
        until(host.settled, PATIENCE_S)

    load = under_load(host, lose)
    (blow,) = blows
    beyond, redirected_s = blow.lost(load), blow.redirected_s(load)
    print(
        f"\nnode of the active server lost under {RATE_RPS} req/s: {len(load.outcomes)} requests, "
        f"{len(load.failed())} failed, {len(beyond)} of them not in flight; another node's server answers "
        f"after {redirected_s:.2f} s"
    )
    assert beyond == []
    assert redirected_s < REDIRECTED_S
