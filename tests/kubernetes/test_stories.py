"""What a fleet on a cluster goes through, with real Tritons in pods, under load."""

import time
from collections.abc import Iterator
from pathlib import Path

import gateway_rig as rig
import pytest
from background import until
from ctl_fleet import plan
from kube.cluster import Cluster
from kube.story import (
    PATIENCE_S,
    RATE_RPS,
    WITHOUT_API_S,
    Blow,
    ClusterHost,
    active,
    kill,
    partition,
    under_load,
    without_api_server,
)

from controlplane.domain.observation import OUT_OF_MEMORY

FLEET = "lived"
"""No word of the command that runs this file, which would count as left over."""
REDIRECTED_S = 1.2
"""From the end of a pod's server to another one's answer."""
SLOW_PERCENT = 10


@pytest.fixture(scope="module")
def host(
    cluster: Cluster, triton_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterHost]:
    """A fleet of one partition and its shadow."""
    # A folder of the node is no volume that the restricted profile admits; the pods are as it demands.
    cluster.namespace("stories", security="privileged")
    with ClusterHost(cluster, tmp_path_factory.mktemp("stories"), FLEET, "stories") as made:
        made.apply(plan(partition(40)))
        yield made
    cluster.forget("stories")


def test_the_same_plan_again_changes_nothing(host: ClusterHost) -> None:
    before = {pod["metadata"]["uid"] for pod in host.pods()}
    again = host.apply(plan(partition(40)))
    assert again.stdout.strip() == "nothing to do"
    assert {pod["metadata"]["uid"] for pod in host.pods()} == before


def test_a_changed_share_under_load_fails_no_request(host: ClusterHost) -> None:
    before = host.ready()

    def change(load: rig.Load) -> None:
        host.apply(plan(partition(60)))

    load = under_load(host, change)
    sent, failed = len(load.outcomes), len(load.failed())
    print(f"\nshare changed under {RATE_RPS} req/s: {sent} requests, {failed} failed")
    assert load.failed() == []
    assert before.isdisjoint(host.ready())


def test_a_deleted_pod_loses_no_request_beyond_those_in_flight(host: ClusterHost) -> None:
    blows: list[Blow] = []

    def delete(load: rig.Load) -> None:
        name, began = active(load), time.monotonic()
        host.cluster.api.delete(f"/api/v1/namespaces/{host.namespace}/pods/{name}").raise_for_status()
        blows.append(Blow(name, began, time.monotonic()))
        until(lambda: active(load) != name, PATIENCE_S)
        until(host.settled, PATIENCE_S)

    assert report("active pod deleted", under_load(host, delete), blows) < REDIRECTED_S


def test_an_out_of_memory_kill_loses_no_request_beyond_those_in_flight(host: ClusterHost) -> None:
    blows: list[Blow] = []

    def run_out(load: rig.Load) -> None:
        name = active(load)
        node, container = host.container(name)
        blows.append(Blow(name, *node.exhaust(container)))
        until(lambda: active(load) != name, PATIENCE_S)
        until(lambda: host.restarts(name) != 0, PATIENCE_S)
        until(host.settled, PATIENCE_S)

    assert report("active server out of memory", under_load(host, run_out), blows) < REDIRECTED_S
    told = host.ctl("events", "--json")
    assert OUT_OF_MEMORY in told.stdout, told.stdout + told.stderr


def test_without_the_api_server_a_killed_server_loses_no_request_beyond_those_in_flight(
    host: ClusterHost,
) -> None:
    blows: list[Blow] = []

    def stop(load: rig.Load) -> None:
        name = active(load)
        node, container = host.container(name)
        with without_api_server(host.cluster, elected=True):
            blows.append(kill(name, node.pids(container)))
            until(lambda: active(load) != name, PATIENCE_S)
        until(host.settled, PATIENCE_S)

    what = f"API server stopped for {WITHOUT_API_S:g} s, active server killed"
    assert report(what, under_load(host, stop), blows) < REDIRECTED_S


def test_without_the_api_server_the_guard_redirects_from_a_slow_server(host: ClusterHost) -> None:
    host.apply(plan(partition(60, slo_ms=250)))
    blows: list[Blow] = []

    def stop(load: rig.Load) -> None:
        name = active(load)
        node, container = host.container(name)
        with without_api_server(host.cluster, elected=False):
            began = time.monotonic()
            node.cut(container, SLOW_PERCENT)
            blows.append(Blow(name, began, began))
            until(lambda: active(load) != name, PATIENCE_S)
        until(host.settled, PATIENCE_S)

    load = under_load(host, stop)
    report(f"API server stopped for {WITHOUT_API_S:g} s, active server slow", load, blows)
    told = host.document("events")["events"]
    redirects = [event["reason"] for event in told if event["kind"] == "redirect"]
    print(f"the guard's reason: {redirects[-1]}")
    assert load.failed() == []


def report(what: str, load: rig.Load, blows: list[Blow]) -> float:
    """Print what was seen; no request may be lost beyond those in flight.

    Returns the seconds until another pod answered.
    """
    (blow,) = blows
    beyond, redirected_s = blow.lost(load), blow.redirected_s(load)
    print(
        f"\n{what} under {RATE_RPS} req/s: {len(load.outcomes)} requests, {len(load.failed())} failed, "
        f"{len(beyond)} of them not in flight; another server after {redirected_s:.2f} s"
    )
    assert beyond == []
    return redirected_s


def test_fleets_of_two_namespaces_do_not_see_each_other(
    host: ClusterHost, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.namespace("apart", security="privileged")
    until(lambda: len(host.pods()) == 2, PATIENCE_S)  # what was redirected from has drained
    before = {pod["metadata"]["uid"] for pod in host.pods()}
    with ClusterHost(cluster, tmp_path / "apart", FLEET, "apart") as other:
        other.apply(plan(partition(30)))
        assert len(other.pods()) == 2
        assert {pod["metadata"]["uid"] for pod in host.pods()} == before
        other.ctl("destroy", "--yes")
        until(lambda: other.pods() == [], PATIENCE_S)
    cluster.forget("apart")
    assert {pod["metadata"]["uid"] for pod in host.pods()} == before
