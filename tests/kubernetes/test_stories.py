"""What a fleet on a cluster goes through, with real Tritons in pods, under load."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import gateway_rig as rig
import pytest
from ctl_host import ended, plan
from kube.cluster import Cluster
from kube.story import PATIENCE_S, RATE_RPS, Blow, ClusterHost, active, partition, under_load

pytestmark = pytest.mark.kubernetes

WITHOUT_API_S = 60.0


@pytest.fixture(scope="module")
def host(
    cluster: Cluster, triton_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterHost]:
    """A fleet of one partition and its shadow."""
    # A folder of the node is no volume that the restricted profile admits; the pods are as it demands.
    cluster.namespace("stories", security="privileged")
    with ended(ClusterHost(cluster, tmp_path_factory.mktemp("stories"), "stories", "stories")) as made:
        done = made.apply(plan(partition(40)))
        assert done.returncode == 0, done.stderr
        yield made
    cluster.forget("stories")


def kill(pod: str, pids: tuple[int, ...]) -> Blow:
    """End a pod's server as the kernel's out-of-memory killer does."""
    began = time.monotonic()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return Blow(pod, began, time.monotonic())


def test_the_same_plan_again_changes_nothing(host: ClusterHost) -> None:
    before = {pod["metadata"]["uid"] for pod in host.pods()}
    again = host.apply(plan(partition(40)))
    assert (again.returncode, again.stdout.strip()) == (0, "nothing to do"), again.stderr
    assert {pod["metadata"]["uid"] for pod in host.pods()} == before


def test_a_changed_share_under_load_fails_no_request(host: ClusterHost) -> None:
    before = host.ready()

    def change(load: rig.Load) -> None:
        done = host.apply(plan(partition(60)))
        assert done.returncode == 0, done.stderr

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
        rig.until(lambda: active(load) != name, PATIENCE_S)
        rig.until(host.settled, PATIENCE_S)

    report("active pod deleted", under_load(host, delete), blows)


def test_an_out_of_memory_kill_loses_no_request_beyond_those_in_flight(host: ClusterHost) -> None:
    blows: list[Blow] = []

    def run_out(load: rig.Load) -> None:
        name = active(load)
        blows.append(kill(name, host.processes(name)))
        rig.until(lambda: active(load) != name, PATIENCE_S)
        rig.until(lambda: host.restarts(name) != 0, PATIENCE_S)
        rig.until(host.settled, PATIENCE_S)

    report("active server killed", under_load(host, run_out), blows)


def test_without_the_api_server_data_flows_and_redirects_happen(host: ClusterHost) -> None:
    blows: list[Blow] = []
    control_plane = host.cluster.control_plane

    def stop(load: rig.Load) -> None:
        name = active(load)
        pids = host.processes(name)
        control_plane.stop_api_server()
        try:
            began = time.monotonic()
            blows.append(kill(name, pids))
            rig.until(lambda: active(load) != name, PATIENCE_S)
            rig.until(lambda: time.monotonic() > began + WITHOUT_API_S, 2 * WITHOUT_API_S)
        finally:
            control_plane.start_api_server()
        rig.until(host.settled, PATIENCE_S)

    report(f"API server stopped for {WITHOUT_API_S:g} s, active server killed", under_load(host, stop), blows)


def report(what: str, load: rig.Load, blows: list[Blow]) -> None:
    """Print what was seen; no request may be lost beyond those in flight."""
    (blow,) = blows
    beyond = blow.lost(load)
    print(
        f"\n{what} under {RATE_RPS} req/s: {len(load.outcomes)} requests, {len(load.failed())} failed, "
        f"{len(beyond)} of them not in flight; another server after {blow.redirected_s(load):.2f} s"
    )
    assert beyond == []


def test_fleets_of_two_namespaces_do_not_see_each_other(
    host: ClusterHost, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.namespace("apart", security="privileged")
    before = {pod["metadata"]["uid"] for pod in host.pods()}
    with ended(ClusterHost(cluster, tmp_path / "apart", "stories", "apart")) as other:
        done = other.apply(plan(partition(30)))
        assert done.returncode == 0, done.stderr
        assert len(other.pods()) == 2
        assert {pod["metadata"]["uid"] for pod in host.pods()} == before
        assert other.ctl("destroy", "--yes").returncode == 0
        rig.until(lambda: other.pods() == [], PATIENCE_S)
    cluster.forget("apart")
    assert {pod["metadata"]["uid"] for pod in host.pods()} == before
