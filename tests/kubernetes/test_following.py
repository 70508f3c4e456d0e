"""Following the load in the cluster: controllers in pods, requests through the gateway's Service."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import following_rig as rig
import httpx
import pytest
from background import Background, until
from guard_rig import Load
from kube import images
from kube.cluster import Cluster
from kube.installed import FLEET, Installation, is_applied
from kube.node import Node
from kube.story import PATIENCE_S, WITHOUT_API_S, ClusterHost, without_api_server
from service import service
from sleeping_triton import EACH_MS, Served, lay_out

NAMESPACE = "following"
POOL = {"pool": NAMESPACE}
"""The label of the nodes whose cores the fleet may use: one without other pods, and those that come."""
MODEL, FIXED_MS, SLO_MS = Served(1, 1, 0), 60.0, 1000.0
"""A core holds 15 requests/s, so that a few of them need another one."""
UNNEEDED_S = 15.0
"""A node without a pod for so long is ended."""


class NodeScaler(Background):
    """What Cluster Autoscaler does: a node with these labels for a pod that fits on none, ended once empty.

    `brought_s` and `ended_s` are since the epoch, as they are done.
    """

    def __init__(self, cluster: Cluster, labels: Mapping[str, str], image: Path) -> None:
        super().__init__()
        self._cluster = cluster
        self._labels = labels
        self._image = image
        self.node: Node | None = None
        self.brought_s = self.ended_s = 0.0

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if self.node is not None and not self.ended_s:
            self._cluster.remove_node(self.node)

    def _run(self) -> None:
        needed_s = time.monotonic()
        while not self._stop.wait(0.5) and not self.ended_s:
            try:
                pods = self._cluster.get("/api/v1/pods")["items"]
            except httpx.HTTPError:
                continue  # the API server is away
            if self.node is None:
                if any(map(self._is_for_a_new_node, pods)):
                    self.node = self._cluster.add_node(self._labels, self._image)
                    self.brought_s, needed_s = time.time(), time.monotonic()
            elif any(pod["spec"].get("nodeName") == self.node.name for pod in pods):
                needed_s = time.monotonic()
            elif time.monotonic() > needed_s + UNNEEDED_S:
                self._cluster.remove_node(self.node)
                self.ended_s = time.time()

    def _is_for_a_new_node(self, pod: dict[str, Any]) -> bool:
        """Whether the scheduler found no node for a pod, and one of the group would do."""
        selector = pod["spec"].get("nodeSelector") or {}
        return self._labels.items() >= selector.items() and any(
            c["type"] == "PodScheduled" and c.get("reason") == "Unschedulable"
            for c in pod["status"].get("conditions", ())
        )


def spec(rate_rps: float, cores: int) -> str:
    workload = f"name: W, model: {MODEL.name}, slo_ms: {SLO_MS:g}, rate_rps: {rate_rps:g}"
    return f"""
schema_version: 1
gpus: [{{type: cpu, count: {cores}, node_selector: {{pool: {NAMESPACE}}}}}]
workloads: [{{{workload}, shadow: {{policy: none}}}}]
"""


@dataclass(frozen=True)
class Followed:
    """The installation, and a user's host beside it."""

    made: Installation
    host: ClusterHost

    @property
    def plan(self) -> str:
        """The hash of the plan that is applied."""
        return str(self.made.cluster.get(self.made.fleet)["status"]["plan"])

    def begin(self, rate_rps: float, cores: int) -> None:
        """Apply a plan for a rate to a new fleet: what replaces servers would need cores beside theirs."""
        self.end()
        document = rig.planned_for(self.host, spec(rate_rps, cores))
        rig.applied(self.host, document, "--set", "serve.follow_load.stabilisation_s=20", ports=False)
        until(lambda: self.servers() == len(document["gpus"]), PATIENCE_S)

    def end(self) -> None:
        """Delete the fleet, and return once none is left."""
        api, fleet = self.made.cluster.api, self.made.fleet
        api.delete(fleet)
        until(lambda: api.get(fleet).status_code == 404, PATIENCE_S)

    def servers(self) -> int:
        return len(self.made.pods("server"))

    def nodes(self) -> set[str]:
        """The nodes with a server."""
        return {str(pod["spec"].get("nodeName")) for pod in self.made.pods("server")}

    def kept(self) -> Any:
        """The plan that the leader follows the load with, which the next one would go on with."""
        label = "labelSelector=app.kubernetes.io/component=following"
        return self.made.cluster.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps?{label}")["items"]

    def await_change(self, what: Callable[[], None]) -> tuple[float, float]:
        """Wait until a plan is kept, do something before it is applied, wait until it is.

        Returns the times of the first and the last.
        """
        kept, before = self.kept(), self.plan
        until(lambda: self.kept() != kept, PATIENCE_S, "a plan is kept")
        kept_s = time.time()
        assert self.plan == before, "the change is under way"
        what()
        self.await_other_plan(before)
        return kept_s, time.time()

    def await_other_plan(self, before: str) -> None:
        fleet = self.made.fleet
        self.made.cluster.await_until(fleet, lambda f: is_applied(f) and f["status"]["plan"] != before)

    @contextlib.contextmanager
    def loaded(self, rate_rps: float) -> Iterator[Load]:
        """Requests through both replicas of the gateway; none may fail."""
        until(lambda: len(self.made.targets(8001)) == 2, PATIENCE_S)
        with service(lambda: self.made.targets(8001)) as (grpc,):
            load = Load(grpc, MODEL.name, rate_rps, work_s=0.0, connections=2)
            with load:
                load.await_answers(20)
                yield load
                load.await_answers(20, time.time())
        assert load.failed() == []


@contextlib.contextmanager
def cordoned(cluster: Cluster, node: str) -> Iterator[None]:
    """Within, no pod is placed on a node."""
    path = f"/api/v1/nodes/{node}"
    cluster.merge(path, {"spec": {"unschedulable": True}})
    try:
        yield
    finally:
        cluster.merge(path, {"spec": {"unschedulable": False}})


def placed(pods: list[dict[str, Any]]) -> int:
    return sum("nodeName" in pod["spec"] for pod in pods)


@pytest.fixture(scope="module")
def followed(
    cluster: Cluster, trisect_image: str, triton_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Followed]:
    """Gateway, controllers and the model, which has a profile for whole cores alone."""
    # A folder of the node is no volume that the restricted profile admits; the pods are as it demands.
    cluster.namespace(NAMESPACE, security="privileged")
    host = ClusterHost(cluster, tmp_path_factory.mktemp(NAMESPACE), FLEET, NAMESPACE)
    lay_out(host.repository, MODEL, FIXED_MS)
    rig.profile(host, {(100.0, 1): FIXED_MS + EACH_MS + 2.0}, MODEL)
    made = Installation(cluster, NAMESPACE, host.repository)
    free = cluster.nodes[1].name
    with cordoned(cluster, free):
        made.install()
        until(lambda: placed(made.pods("gateway")) == placed(made.pods("controller")) == 2, PATIENCE_S)
    cluster.merge(f"/api/v1/nodes/{free}", {"metadata": {"labels": POOL}})
    here = Followed(made, host)
    yield here
    here.end()
    cluster.forget(NAMESPACE)


def test_a_rate_that_rises_is_followed_though_the_leader_is_killed_in_the_change(followed: Followed) -> None:
    made = followed.made
    followed.begin(8.0, cores=2)
    leader, term = made.leader(), made.lease()["leaseTransitions"]

    def kill() -> None:
        for pid in made.processes(leader):
            with contextlib.suppress(ProcessLookupError):  # they end with the first of their container
                os.kill(pid, signal.SIGKILL)

    with followed.loaded(8.0) as load:
        load.rate_rps, since_s = 20.0, time.time()
        kept_s, served_s = followed.await_change(kill)
    assert made.lease()["leaseTransitions"] > term
    print(
        f"\n8 requests/s planned, 20 arrive: a plan after {kept_s - since_s:.1f} s, the leader killed in the "
        f"change, another one has completed it after {served_s - kept_s:.1f} s; "
        f"{len(load.requests)} requests, {len(load.failed())} failed; {followed.servers()} servers"
    )


def test_a_change_is_completed_though_the_api_server_is_away_in_it_for_a_minute(followed: Followed) -> None:
    followed.begin(7.0, cores=2)

    def away() -> None:
        with without_api_server(followed.made.cluster, elected=False):
            pass

    with followed.loaded(7.0) as load:
        # More than is promised for, and not more than a core can do, so that no request waits for the change.
        load.rate_rps = 13.5
        kept_s, served_s = followed.await_change(away)
    print(
        f"\n7 requests/s planned, 13.5 arrive; the API server is away for {WITHOUT_API_S:g} s in the change, "
        f"which is completed after {served_s - kept_s:.1f} s; {len(load.requests)} requests, "
        f"{len(load.failed())} failed; {followed.servers()} servers"
    )


def test_a_node_comes_for_more_requests_and_one_is_left_without_a_server_once_they_are_fewer(
    followed: Followed, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cluster = followed.made.cluster
    image = images.triton(tmp_path_factory.mktemp("image"))
    followed.begin(20.0, cores=4)
    assert followed.servers() == 2, "all cores of the pool are used"
    with NodeScaler(cluster, POOL, image) as nodes:
        with followed.loaded(20.0) as load:
            before = followed.plan
            load.rate_rps, more_s = 32.0, time.time()
            until(lambda: nodes.brought_s, PATIENCE_S, "a pod that waits brings a node")
            followed.await_other_plan(before)
            served_s, most = time.time(), followed.servers()
            assert nodes.node is not None
            assert followed.nodes() == {cluster.nodes[1].name, nodes.node.name}
            load.rate_rps, fewer_s = 5.0, time.time()
            until(lambda: len(followed.nodes()) == 1, PATIENCE_S, "one of them is left without a server")
            emptied_s, fewest = time.time(), followed.servers()
        followed.end()
    print(
        f"\n20 requests/s planned, 32 arrive: a node is ready after {nodes.brought_s - more_s:.1f} s, "
        f"{most} servers answer after {served_s - more_s:.1f} s; 5 arrive: {fewest} on one node after "
        f"{emptied_s - fewer_s:.1f} s; {len(load.requests)} requests, {len(load.failed())} failed"
    )
