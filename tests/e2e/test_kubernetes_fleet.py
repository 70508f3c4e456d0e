"""A fleet of pods as a user has it: `ctl` on a served fake API whose kubelet runs pods as processes."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tritonclient.http as triton_http
from ctl_host import ROOT, Host, ended, infer_http, partition, plan
from fake_kubelet import FakeKubelet
from fake_kubernetes import FakeCluster, served

from controlplane.runtime.fleet.history import History
from launchers.kubernetes import names

pytestmark = pytest.mark.e2e


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
def host(cluster: tuple[FakeCluster, FakeKubelet], tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path / "host", f"k{time.monotonic_ns() % 10**8}")
    kubeconfig = cluster[0].kubeconfig(tmp_path / "kubeconfig", namespace="default")
    made.environment |= {
        "KUBECONFIG": str(kubeconfig),
        "TRISECT_IMAGE": "trisect.test/triton:1",
        "TRISECT_MODELS": f"host:{made.repository}",
    }
    with ended(made):
        yield made


WHERE = ("--launcher", "kubernetes", "--namespace", "trisect")


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_a_fleet_on_a_cluster_from_its_apply_to_its_end(
    host: Host, cluster: tuple[FakeCluster, FakeKubelet]
) -> None:
    api, kubelet = cluster
    first = plan(partition("a", 30.0))
    applied = host.apply(first, *WHERE)
    assert applied.returncode == 0, applied.stderr
    assert {server["device"] for server in host.servers()} == {"node-1/cpu-0"}
    assert {key[1] for key in api.store.objects if key[0] == "pods"} == {"trisect"}
    again = host.apply(first)
    assert "nothing to do" in again.stdout, again.stderr

    client = triton_http.InferenceServerClient(f"127.0.0.1:{host.http}")
    answered, halt = [0], threading.Event()

    def load() -> None:
        with triton_http.InferenceServerClient(f"127.0.0.1:{host.http}") as one:
            while not halt.is_set():
                infer_http(one, "a")  # raises where a request fails
                answered[0] += 1

    with ThreadPoolExecutor(2) as pool:
        loading = pool.submit(load)
        try:
            changed = host.apply(plan(partition("a", 40.0)))
            assert changed.returncode == 0, changed.stderr
            redirected = host.ctl("redirect", "a")
            assert redirected.returncode == 0, redirected.stderr
        finally:
            halt.set()
        loading.result()
    assert answered[0] > 0

    (serving,) = [server["role"] for server in host.servers() if server["routed"]]
    pods = [obj["metadata"] for key, obj in api.store.objects.items() if key[0] == "pods"]
    (uid,) = [about["uid"] for about in pods if about["labels"][names.ROLE] == serving]
    os.kill(kubelet.pid(uid), signal.SIGKILL)
    history = History(host.files / "history.sqlite")
    until(lambda: any("its container ended" in e.reason for e in history.events()), "the end is no event")
    until(lambda: answers(client), "nothing answers after the end")
    client.close()

    destroyed = host.ctl("destroy", "--yes")
    assert destroyed.returncode == 0, destroyed.stderr
    assert {key[0] for key in api.store.objects} == {"nodes"}


def answers(client: triton_http.InferenceServerClient) -> bool:
    try:
        infer_http(client, "a")
    except Exception:
        return False
    return True


def test_a_fleet_stays_in_its_namespace_and_a_wrong_device_is_refused(host: Host) -> None:
    document = plan(partition("a", 30.0, shadow=False))
    document["gpus"][0]["id"] = "cpu-7"
    refused = host.apply(document, *WHERE)
    assert refused.returncode == 2
    assert "cpu-7: there are 4: node-1/cpu-0, node-1/cpu-1, node-2/cpu-0, node-2/cpu-1" in refused.stderr
    document["gpus"][0]["id"] = "cpu-3"
    shown = host.apply(document, *WHERE, "--dry-run")
    assert "node-2/cpu-1" in shown.stdout
    assert "kind: Pod\n" in shown.stdout


def test_the_doctor_of_a_cluster_names_what_is_missing(
    host: Host, cluster: tuple[FakeCluster, FakeKubelet]
) -> None:
    cluster[0].faults.denied = {("create", "pods")}
    found = host.bare("doctor", "--launcher", "kubernetes", "--json")
    assert found.returncode == 0, found.stderr
    lines = {one["name"]: one for one in json.loads(found.stdout)["capabilities"]}
    assert lines["kubernetes"]["available"]
    assert (
        '{apiGroups: [""], resources: ["pods"], verbs: [create]}' in lines["kubernetes permissions"]["detail"]
    )
    assert not any(name.startswith(("docker", "quota")) for name in lines)


def test_what_measures_this_host_refuses_a_cluster(host: Host) -> None:
    refused = host.bare("profile", "--launcher", "kubernetes")
    assert refused.returncode == 2
    assert "--launcher: measures a device of this host" in refused.stderr
