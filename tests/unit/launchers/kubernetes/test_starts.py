"""Starts and stops that a cluster refuses or never finishes, against a served fake without a kubelet."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_kubernetes import FakeCluster

from controlplane.domain.errors import EngineError, InputError, LaunchTimeout
from controlplane.domain.fleet import Cluster, Labels, Role, Server, ServerSpec, ServerState
from controlplane.domain.observation import OUT_OF_MEMORY
from launchers.kubernetes import launcher as module
from launchers.kubernetes import names
from launchers.kubernetes.launcher import KubernetesLauncher
from launchers.kubernetes.pods import PodState

TRITON = {"name": "triton", "image": "i", "imageID": "", "ready": False, "restartCount": 0}


@pytest.fixture(autouse=True)
def _node(cluster: FakeCluster) -> None:
    cluster.add_node("n")


@pytest.fixture(autouse=True)
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Server], bool]], None]:
    """Decides which servers answer, since these pods run nothing; at first all do."""

    def decide(answers: Callable[[Server], bool]) -> None:
        monkeypatch.setattr(module.readiness, "is_ready", answers)

    decide(lambda server: True)
    return decide


@pytest.fixture
def launcher(cluster: FakeCluster, tmp_path: Path) -> KubernetesLauncher:
    return KubernetesLauncher(tmp_path / "state", Cluster())


@pytest.fixture
def spec(tmp_path: Path) -> ServerSpec:
    (tmp_path / "r" / "m").mkdir(parents=True)
    (tmp_path / "r" / "m" / "config.pbtxt").write_text("x")
    labels = Labels("f", "p", "W1", Role.ACTIVE, "r")
    return ServerSpec(labels, str(tmp_path / "r"), ("m",), "n/cpu-0", 50)


def becomes(cluster: FakeCluster, **status: Any) -> None:
    """Give every pod this status as soon as it is created; a pod that is to end does."""
    store = cluster.store

    def on_change() -> None:
        _, event, key, obj = store.history[-1]
        if key[0] == "pods" and event == "ADDED":
            store.edit(key, lambda pod: pod.update(status=status))
        elif key[0] == "pods" and event == "MODIFIED" and "deletionTimestamp" in obj["metadata"]:
            store.remove(key)

    store.changed.append(on_change)


def waiting(reason: str, message: str) -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{**TRITON, "state": state}]}


def running(**more: Any) -> dict[str, Any]:
    statuses = [{**TRITON, "state": {"running": {}}, **more}]
    ready = [{"type": "Ready", "status": "True"}]
    return {"phase": "Running", "podIP": "10.1.2.3", "containerStatuses": statuses, "conditions": ready}


def nothing_left(cluster: FakeCluster) -> bool:
    return {key[0] for key in cluster.store.objects} == {"nodes"}


OOM_KILLED = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
UNSCHEDULED = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes: Insufficient cpu."}


@pytest.mark.parametrize(
    ("status", "answering", "error", "says"),
    [
        (waiting("ImagePullBackOff", 'Back-off pulling "i": not found'), True, EngineError, "not found"),
        (
            {"phase": "Running", "containerStatuses": [{**TRITON, "state": OOM_KILLED}]},
            True,
            EngineError,
            "memory_mb",
        ),
        ({"phase": "Pending", "conditions": [UNSCHEDULED]}, True, LaunchTimeout, "Insufficient cpu"),
        (running(), False, LaunchTimeout, r"10\.1\.2\.3, this host does not"),
    ],
)
def test_a_start_that_fails_says_why_and_leaves_nothing(
    cluster: FakeCluster,
    launcher: KubernetesLauncher,
    spec: ServerSpec,
    answers: Callable[[Callable[[Server], bool]], None],
    status: dict[str, Any],
    answering: bool,
    error: type[EngineError],
    says: str,
) -> None:
    becomes(cluster, **status)
    answers(lambda server: answering)
    with pytest.raises(error, match=says):
        launcher.start(spec, deadline_s=0.5 if error is LaunchTimeout else 20)
    assert nothing_left(cluster)


def test_a_full_node_refuses_a_replacement_soon_and_says_what_helps(
    cluster: FakeCluster, launcher: KubernetesLauncher, spec: ServerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    becomes(cluster, phase="Pending", conditions=[UNSCHEDULED])
    monkeypatch.setattr(module, "_UNPLACED_S", 0.3)
    with pytest.raises(EngineError, match=r"Insufficient cpu.*needs its share beside it .*smaller shares"):
        launcher.start(spec, deadline_s=60)
    assert nothing_left(cluster)


def test_a_missing_permission_leaves_nothing_behind(
    cluster: FakeCluster, launcher: KubernetesLauncher, spec: ServerSpec
) -> None:
    cluster.faults.denied = {("create", "pods")}
    with pytest.raises(EngineError, match=r"lacks the rule .*\"pods\".*create"):
        launcher.start(spec, deadline_s=20)
    assert nothing_left(cluster)


def test_two_programs_that_start_one_name_get_one_pod(
    cluster: FakeCluster, launcher: KubernetesLauncher, spec: ServerSpec, tmp_path: Path
) -> None:
    becomes(cluster, **running())
    other = KubernetesLauncher(tmp_path / "other", Cluster())
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda one: one.start(spec, deadline_s=20), (launcher, other))
    assert first == second
    assert first.host == "10.1.2.3"
    assert sum(key[0] == "pods" for key in cluster.store.objects) == 1


def test_a_killed_server_that_its_status_still_calls_ready_is_not_adopted(
    cluster: FakeCluster,
    launcher: KubernetesLauncher,
    spec: ServerSpec,
    answers: Callable[[Callable[[Server], bool]], None],
) -> None:
    becomes(cluster, **running())
    killed = launcher.start(spec, deadline_s=20)
    terminated = {"terminated": {"exitCode": 137, "reason": "Error"}}

    def answer(server: Server) -> bool:
        if server.id != killed.id:
            return True
        # The kubelet notices the end only now.
        late = {**running(), "containerStatuses": [{**TRITON, "state": terminated}]}
        cluster.store.edit(
            ("pods", "trisect", names.server_object(spec)), lambda pod: pod.update(status=late)
        )
        return False

    answers(answer)
    assert launcher.start(spec, deadline_s=20).id != killed.id


def test_a_fleet_of_another_name_or_namespace_is_not_seen(
    cluster: FakeCluster, launcher: KubernetesLauncher, spec: ServerSpec, tmp_path: Path
) -> None:
    becomes(cluster, **running())
    server = launcher.start(spec, deadline_s=20)
    elsewhere = KubernetesLauncher(tmp_path / "other", Cluster(namespace="elsewhere"))
    assert launcher.servers("f") == (server,)
    assert launcher.servers("g") == elsewhere.servers("f") == ()


def test_a_pod_whose_node_is_away_is_forgotten_after_its_grace(
    cluster: FakeCluster, launcher: KubernetesLauncher, spec: ServerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    becomes(cluster, **running())
    server = launcher.start(spec, deadline_s=20)
    cluster.store.changed.clear()  # no kubelet answers from now on
    monkeypatch.setattr(module, "_KUBELET_S", 0.5)
    launcher.stop(server, drain_s=0.0)
    assert nothing_left(cluster)


def test_a_pod_that_is_being_deleted_runs_until_it_has_ended_and_says_why(
    cluster: FakeCluster, launcher: KubernetesLauncher, spec: ServerSpec
) -> None:
    becomes(cluster, **running())
    server = launcher.start(spec, deadline_s=20)
    key = ("pods", "trisect", names.server_object(spec))
    cluster.store.changed.clear()
    cluster.store.edit(key, lambda pod: pod["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"))
    (found,) = launcher.servers("f")
    assert (found.id, found.state) == (server.id, ServerState.RUNNING)
    assert "being deleted" in str(found.end)


def test_a_sweep_removes_ended_pods_and_files_without_one(
    cluster: FakeCluster, launcher: KubernetesLauncher, spec: ServerSpec
) -> None:
    becomes(cluster, **running())
    launcher.start(spec, deadline_s=20)
    key = ("pods", "trisect", names.server_object(spec))
    evicted = {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}
    cluster.store.edit(key, lambda pod: pod.update(status=evicted))
    assert launcher.sweep("f") == (f"pod {spec.name}",)
    assert nothing_left(cluster)
    files = {
        "metadata": {"name": "c", "labels": names.fleet_labels("f"), "annotations": {names.NAME: "gone"}}
    }
    cluster.store.create(("configmaps", "trisect", "c"), files)
    assert launcher.sweep("f") == ("files of gone",)
    assert nothing_left(cluster)


def test_a_resize_that_the_node_defers_is_told(
    cluster: FakeCluster, launcher: KubernetesLauncher, spec: ServerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending = {"type": "PodResizePending", "status": "True", "reason": "Deferred", "message": "no CPU left"}
    status = running(resources={"limits": {"cpu": "500m"}})
    status["conditions"] = [*status["conditions"], pending]
    becomes(cluster, **status)
    server = launcher.start(spec, deadline_s=20)
    monkeypatch.setattr(module, "_KUBELET_S", 0.3)
    with pytest.raises(EngineError, match="keeps its share: Deferred: no CPU left"):
        launcher.resize(server, 80)


def test_a_resize_ends_with_a_pod_that_is_deleted_meanwhile(
    cluster: FakeCluster, launcher: KubernetesLauncher, spec: ServerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    becomes(cluster, **running(resources={"limits": {"cpu": "500m"}}))
    server = launcher.start(spec, deadline_s=20)
    key = next(key for key in cluster.store.objects if key[0] == "pods")

    left = PodState.resize_left
    now = {"deletionTimestamp": "2026-11-23T00:00:00Z"}

    def look(pod: PodState, limit: str) -> str | None:
        cluster.store.edit(key, lambda pod: pod["metadata"].update(now))
        return left(pod, limit)

    cluster.store.changed.clear()
    monkeypatch.setattr(PodState, "resize_left", look)
    launcher.resize(server, 80)


def test_a_listed_server_that_ended_says_why(
    cluster: FakeCluster, launcher: KubernetesLauncher, spec: ServerSpec
) -> None:
    becomes(cluster, **running())
    launcher.start(spec, deadline_s=20)
    key = next(key for key in cluster.store.objects if key[0] == "pods")
    ended = [{**TRITON, "state": OOM_KILLED}]
    cluster.store.edit(key, lambda pod: pod["status"].update(containerStatuses=ended))
    (found,) = launcher.servers(spec.labels.fleet)
    assert OUT_OF_MEMORY in str(found.end)


@pytest.mark.parametrize("device", ["other/cpu-0", "n/cpu-2", "cpu-0"])
def test_a_device_that_the_cluster_lacks_is_named(
    cluster: FakeCluster, launcher: KubernetesLauncher, spec: ServerSpec, device: str
) -> None:
    labels = spec.labels
    with pytest.raises(InputError, match=r"device: .*(it has: n|2 cores|NODE/cpu-0)"):
        launcher.start(ServerSpec(labels, spec.repository, ("m",), device, 50), deadline_s=20)
    assert nothing_left(cluster)


def test_the_command_is_the_pod_as_yaml(launcher: KubernetesLauncher, spec: ServerSpec) -> None:
    assert "kind: Pod\n" in launcher.command(spec)
    assert "cpu: 500m\n" in launcher.command(spec)


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("ContainerCreating", r"ContainerCreating.*MPSSupport"),
        ("ErrImagePull", r"ErrImagePull(?!.*MPSSupport)"),
    ],
)
def test_a_gpu_of_the_dra_driver_names_the_gate_that_shares_it(
    cluster: FakeCluster, launcher: KubernetesLauncher, spec: ServerSpec, reason: str, told: str
) -> None:
    """With the gate off, as by default, no node prepares the claim, and the pod waits: a fake says so."""
    uuid = "GPU-11111111-2222-3333-4444-555555555555"
    attributes = {"uuid": {"string": uuid}, "type": {"string": "gpu"}, "productName": {"string": "V100"}}
    device = {"name": "gpu-0", "attributes": attributes}
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    sliced = {"driver": "gpu.nvidia.com", "nodeName": "n", "pool": pool, "devices": [device]}
    cluster.store.create(("resourceslices", "", "n"), {"metadata": {"name": "n"}, "spec": sliced})
    nodes = next(one for one in launcher.capabilities() if one.name == "kubernetes nodes")
    assert "1 GPUs" in nodes.detail
    assert "MPSSupport" in nodes.detail
    becomes(cluster, **waiting(reason, ""))
    with pytest.raises(LaunchTimeout, match=told):
        launcher.start(replace(spec, device=f"n/{uuid}"), deadline_s=0.5)


def test_the_doctor_names_what_a_cluster_lacks(
    cluster: FakeCluster, launcher: KubernetesLauncher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = {one.name: one for one in launcher.capabilities()}
    assert found["kubernetes"].available
    assert found["kubernetes permissions"].available
    assert found["kubernetes pods"].available
    assert not found["kubernetes models"].available
    assert not found["live batches"].available
    cluster.faults.denied = {("patch", "pods/resize"), ("list", "nodes")}
    cluster.faults.refuses_pods = 'violates PodSecurity "restricted:latest"'
    found = {one.name: one for one in launcher.capabilities()}
    assert "pods/resize" in found["kubernetes permissions"].detail
    assert "nodes" in found["kubernetes permissions"].detail
    assert "violates PodSecurity" in found["kubernetes pods"].detail
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    (line,) = KubernetesLauncher(tmp_path, Cluster()).capabilities()
    assert not line.available
    assert "KUBECONFIG" in str(line.remedy)
