"""Controllers in the cluster, as `deploy/kubernetes` installs them: two of them, of which one leads."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gateway_rig as rig
import pytest
from background import until
from ctl_fleet import plan
from kube.cluster import Cluster
from kube.installed import Installation, condition, is_applied
from kube.story import PATIENCE_S, Blow, ClusterHost, active, kill, loaded, partition
from service import service

NAMESPACE = "controlled"
RATE_RPS = 100


def creates_no_pods(role: dict[str, Any]) -> dict[str, Any]:
    """The Role without one verb."""
    rules = [
        {**rule, "verbs": [verb for verb in rule["verbs"] if verb != "create"]}
        if rule["resources"] == ["pods"]
        else rule
        for rule in role["rules"]
    ]
    return {**role, "rules": rules}


@pytest.fixture(scope="module")
def installed(
    cluster: Cluster, trisect_image: str, triton_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    # A folder of the node is no volume that the restricted profile admits; the pods are as it demands.
    cluster.namespace(NAMESPACE, security="privileged")
    models = ClusterHost(cluster, tmp_path_factory.mktemp("controlled"), "default", NAMESPACE).repository
    made = Installation(cluster, NAMESPACE, models)
    made.install()
    yield made
    made.put_role(made.role())  # without it a Fleet never ends
    cluster.forget(NAMESPACE)


def uids(pods: list[dict[str, Any]]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def under_load(installed: Installation, happens: Callable[[rig.Load], None]) -> rig.Load:
    """Load on the Service while something happens, and for a while afterwards."""
    with service(lambda: installed.targets(8000), lambda: installed.targets(8001)) as (http, grpc):
        return loaded(rig.Ports(http, grpc, 0), RATE_RPS, happens)


def test_a_missing_rule_is_named_and_its_grant_is_enough_to_go_on(installed: Installation) -> None:
    role = installed.role()
    installed.put_role(creates_no_pods(role))
    installed.want(plan(partition(40)))
    found = installed.cluster.await_until(installed.fleet, lambda f: condition(f).get("status") == "False")
    assert 'resources: ["pods"], verbs: [create]' in condition(found)["message"], condition(found)
    print(f"\nwithout a rule: {condition(found)['message']}")
    installed.put_role(role)
    installed.cluster.await_until(installed.fleet, is_applied)
    assert len(installed.pods("server")) == 2


def test_all_commands_work_from_outside_with_a_users_rights(installed: Installation, tmp_path: Path) -> None:
    host = ClusterHost(installed.cluster, tmp_path, "default", NAMESPACE)
    host.environment["KUBECONFIG"] = str(installed.user("somebody"))
    for percent in (40, 50):
        done = host.apply(plan(partition(percent)), ports=False)
    again = host.apply(plan(partition(50)), ports=False)
    assert again.stdout == done.stdout, "the same plan is the same generation"
    assert {row["percent"] for row in host.servers()} == {50, 60}
    moved = host.ctl("redirect", "echo", "--json")
    assert ".shadow." in str(json.loads(moved.stdout)["routes"])
    told = host.ctl("events", "--json")
    assert "redirect" in {event["kind"] for event in json.loads(told.stdout)["events"]}, told.stderr
    host.ctl("rollback", "--yes")
    assert {row["percent"] for row in host.servers()} == {40, 50}


def test_another_controller_takes_over_and_redirects(installed: Installation) -> None:
    cluster = installed.cluster
    cluster.await_until(installed.fleet, is_applied)
    servers, before = uids(installed.pods("server")), installed.leader()
    stopped = installed.processes(before)
    seen: dict[str, float] = {}
    blows: list[Blow] = []

    def stop_leader(load: rig.Load) -> None:
        # It stands still, holds the Lease's record, and knows nothing of it afterwards: worse than dead.
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        until(lambda: installed.leader() not in ("", before), PATIENCE_S)
        seen["takeover"] = time.monotonic() - began
        cluster.await_until(installed.fleet, lambda f: f["status"]["leader"] == installed.leader())
        seen["adopted"] = time.monotonic() - began
        assert uids(installed.pods("server")) == servers, "nothing is started twice"
        name = active(load)
        blows.append(kill(name, installed.processes(name)))
        until(lambda: any(o.server not in (None, name) for o in load.outcomes[-20:]), PATIENCE_S)

    try:
        load = under_load(installed, stop_leader)
    finally:
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    (blow,) = blows
    beyond = blow.lost(load)
    print(
        f"\nleader stopped under {RATE_RPS} req/s: another has the Lease after {seen['takeover']:.1f} s, "
        f"adopted the fleet after {seen['adopted']:.1f} s; a killed server's requests go elsewhere after "
        f"{blow.redirected_s(load):.2f} s; {len(load.outcomes)} requests, {len(load.failed())} failed, "
        f"{len(beyond)} of them not in flight"
    )
    assert beyond == [], f"{blow}: {[(o.started, o.ended, o.server) for o in beyond]}"
    # The one that stood still finds out, ends, and waits as a candidate.
    until(lambda: set(stopped).isdisjoint(installed.processes(before)), PATIENCE_S)
    assert installed.leader() != before


def test_a_deleted_fleet_goes_with_its_servers(installed: Installation) -> None:
    installed.cluster.api.delete(installed.fleet).raise_for_status()
    until(lambda: installed.cluster.api.get(installed.fleet).status_code == 404, PATIENCE_S)
    assert installed.pods("server") == []
