"""A fleet of pods as a user has it: `ctl` on a served fake API whose kubelet runs pods as processes."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from background import until
from ctl_fleet import ROOT, Ctl, partition, plan
from fake_kubelet import FakeKubelet
from fake_kubernetes import FakeCluster, served
from steady_clients import Traffic

from launchers.kubernetes import names


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[FakeCluster, FakeKubelet]]:
    monkeypatch.setenv("TRISECT_TRITON_HOME", str(ROOT / ".tools" / "triton"))
    with served() as (made, _):
        made.add_node("node-1")
        made.add_node("node-2")
        (tmp_path / "nodes").mkdir()
        kubelet = FakeKubelet(made, tmp_path / "nodes")
        try:
            yield made, kubelet
        finally:
            kubelet.close()


@pytest.fixture
def host(cluster: tuple[FakeCluster, FakeKubelet], tmp_path: Path) -> Iterator[Ctl]:
    made = Ctl(tmp_path / "host", "k")
    kubeconfig = cluster[0].kubeconfig(tmp_path / "kubeconfig", namespace="default")
    made.environment |= {
        "KUBECONFIG": str(kubeconfig),
        "TRISECT_IMAGE": "trisect.test/triton:1",
        "TRISECT_MODELS": f"host:{made.repository}",
    }
    with made:
        yield made


WHERE = ("--set=serve.launcher=kubernetes", "--set=serve.namespace=trisect")


def test_a_fleet_on_a_cluster_from_its_apply_to_its_end(
    host: Ctl, cluster: tuple[FakeCluster, FakeKubelet]
) -> None:
    api, kubelet = cluster
    first = plan(partition("a", 30.0))
    host.apply(first, *WHERE)
    assert {server["device"] for server in host.servers()} == {"node-1/cpu-0"}
    assert {key[1] for key in api.store.objects if key[0] == "pods"} == {"trisect"}
    again = host.apply(first)
    assert "nothing to do" in again.stdout, again.stderr

    with Traffic(host, pause_s=0.0) as traffic:
        host.apply(plan(partition("a", 40.0)))
        host.ctl("redirect", "a")
    assert traffic.failed == []
    assert traffic.done > 0

    (serving,) = [server["role"] for server in host.servers() if server["routed"]]
    pods = [obj["metadata"] for key, obj in api.store.objects.items() if key[0] == "pods"]
    (uid,) = [about["uid"] for about in pods if about["labels"][names.ROLE] == serving]
    os.kill(kubelet.pid(uid), signal.SIGKILL)
    until(lambda: any("its container ended" in e.reason for e in host.events()), what="its end is an event")
    until(lambda: host.answers("a"), what="answers after the end")

    host.ctl("destroy", "--yes")
    assert {key[0] for key in api.store.objects} == {"nodes"}


def test_a_fleet_stays_in_its_namespace_and_a_wrong_device_is_refused(host: Ctl) -> None:
    document = plan(partition("a", 30.0, shadow=False))
    document["gpus"][0]["id"] = "cpu-x"
    refused = host.apply(document, *WHERE, exit_code=2)
    assert "cpu-x: there are 4: node-1/cpu-0, node-1/cpu-1, node-2/cpu-0, node-2/cpu-1" in refused.stderr
    document["gpus"][0]["id"] = "cpu-7"  # nodes come and go: a number is only where the search begins
    shown = host.apply(document, *WHERE, "--dry-run", "-v")
    assert re.search(r"node-\d/cpu-\d", shown.stdout)
    assert "kind: Pod\n" in shown.stdout


def test_the_doctor_of_a_cluster_names_what_is_missing(
    host: Ctl, cluster: tuple[FakeCluster, FakeKubelet]
) -> None:
    cluster[0].faults.denied = {("create", "pods")}
    found = host.bare("doctor", "--launcher", "kubernetes", "--json")
    lines = {one["name"]: one for one in json.loads(found.stdout)["capabilities"]}
    assert lines["kubernetes"]["available"]
    assert (
        '{apiGroups: [""], resources: ["pods"], verbs: [create]}' in lines["kubernetes permissions"]["detail"]
    )
    assert not any(name.startswith(("docker", "quota")) for name in lines)


def test_what_measures_this_host_refuses_a_cluster(host: Ctl) -> None:
    refused = host.bare("profile", "--launcher", "kubernetes", exit_code=2)
    assert "--launcher: measures a device of this host" in refused.stderr
