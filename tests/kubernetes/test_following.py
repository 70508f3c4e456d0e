"""Following the load in the cluster: controllers in pods, requests through the gateway's Service."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

import following_rig
import pytest
from background import until
from guard_rig import Load
from kube.cluster import Cluster
from kube.installed import FLEET, Installation, is_applied
from kube.story import PATIENCE_S, ClusterHost
from service import service

NAMESPACE = "following"
PLANNED_RPS, MORE_RPS, MOST_RPS = 5.0, 20.0, 40.0
"""For one partition, whose servers before and after a change have room on one node."""


@pytest.fixture(scope="module")
def installed(
    cluster: Cluster, trisect_image: str, triton_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Installation, ClusterHost]]:
    """Gateway, controllers and a fleet that follows its load."""
    # A folder of the node is no volume that the restricted profile admits; the pods are as it demands.
    cluster.namespace(NAMESPACE, security="privileged")
    host = ClusterHost(cluster, tmp_path_factory.mktemp(NAMESPACE), FLEET, NAMESPACE)
    following_rig.lay_out_profiled(host)
    made = Installation(cluster, NAMESPACE, host.repository)
    made.install()
    document = following_rig.planned(host, PLANNED_RPS)
    following_rig.applied(host, document, "--set", "serve.follow_load.stabilisation_s=20", ports=False)
    yield made, host
    cluster.api.delete(made.fleet).raise_for_status()
    until(lambda: cluster.api.get(made.fleet).status_code == 404, PATIENCE_S)
    cluster.forget(NAMESPACE)


@contextlib.contextmanager
def loaded(made: Installation, rate_rps: float) -> Iterator[Load]:
    """Requests through both replicas of the gateway; none may fail."""
    until(lambda: len(made.targets(8001)) == 2, PATIENCE_S)
    with service(lambda: made.targets(8001)) as (grpc,):
        load = Load(grpc, following_rig.MODEL.name, rate_rps, work_s=0.0, connections=2)
        with load:
            yield load
    assert load.failed() == []


def test_a_rate_that_rises_is_followed_though_the_leader_is_killed_in_the_change(
    installed: tuple[Installation, ClusterHost],
) -> None:
    made, host = installed
    cluster, leader = made.cluster, made.leader()
    maps = f"/api/v1/namespaces/{NAMESPACE}/configmaps?labelSelector=app.kubernetes.io/component=following"
    with loaded(made, MORE_RPS) as load:
        load.await_answers(20)
        before, kept = cluster.get(made.fleet)["status"]["plan"], cluster.get(maps)["items"]
        term = made.lease()["leaseTransitions"]
        load.rate_rps, since = MOST_RPS, time.time()
        # The plan is kept before the first of its servers starts.
        cluster.await_until(maps, lambda found: found["items"] != kept)
        killed = time.time()
        for pid in made.processes(leader):
            os.kill(pid, signal.SIGKILL)
        assert cluster.get(made.fleet)["status"]["plan"] == before, "the change is under way"
        until(lambda: made.lease()["leaseTransitions"] > term, PATIENCE_S)
        led_s = time.time() - killed
        cluster.await_until(made.fleet, lambda f: is_applied(f) and f["status"]["plan"] != before)
        served = time.time()
        load.await_answers(20, time.time())
        until(lambda: len(made.pods("server")) == 1, PATIENCE_S)
    print(
        f"\n{PLANNED_RPS:g} requests/s planned, {MOST_RPS:g} arrive: a plan after {killed - since:.1f} s, "
        f"the leader killed in the change, another one leads after {led_s:.1f} s and has completed it after "
        f"{served - killed:.1f} s; {len(load.requests)} requests, {len(load.failed())} failed; now "
        f"{[server['percent'] for server in host.servers()]} % of a core"
    )
