"""Starts and stops that a cluster refuses or never finishes, against a served fake without a kubelet."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
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


Answers = Callable[[Callable[[Server], bool]], None]


@pytest.fixture(autouse=True)
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Decides which servers answer, since these pods run nothing; at first all do."""

    def decide(answers: Callable[[Server], bool]) -> None:
        monkeypatch.setattr(module.readiness, "is_ready", answers)

    decide(lambda server: True)
    return decide


@dataclass
class Rig:
    """A cluster with one node, the launcher and what it is to start."""

    cluster: FakeCluster
    launcher: KubernetesLauncher
    spec: ServerSpec

    def start(self, deadline_s: float = 20.0) -> Server:
        return self.launcher.start(self.spec, deadline_s=deadline_s)

    def started(self, **more: Any) -> Server:
        """The server whose pod runs."""
        self.becomes(**running(**more))
        return self.start()

    def becomes(self, **status: Any) -> None:
        """Give every pod this status as soon as it is created; a pod that is to end does."""
        store = self.cluster.store

        def on_change() -> None:
            _, event, key, obj = store.history[-1]
            if key[0] == "pods" and event == "ADDED":
                store.edit(key, lambda pod: pod.update(status=status))
            elif key[0] == "pods" and event == "MODIFIED" and "deletionTimestamp" in obj["metadata"]:
                store.remove(key)

        store.changed.append(on_change)

    def edit(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the server's pod."""
        self.cluster.store.edit(("pods", "trisect", names.server_object(self.spec)), change)

    def nothing_left(self) -> bool:
        return {key[0] for key in self.cluster.store.objects} == {"nodes"}


@pytest.fixture
def rig(cluster: FakeCluster, tmp_path: Path) -> Rig:
    cluster.add_node("n")
    (tmp_path / "r" / "m").mkdir(parents=True)
    (tmp_path / "r" / "m" / "config.pbtxt").write_text("x")
    labels = Labels("f", "p", "W1", Role.ACTIVE, "r")
    spec = ServerSpec(labels, str(tmp_path / "r"), ("m",), "n/cpu-0", 50)
    return Rig(cluster, KubernetesLauncher(tmp_path / "state", Cluster()), spec)


def waiting(reason: str, message: str) -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{**TRITON, "state": state}]}


def running(**more: Any) -> dict[str, Any]:
    statuses = [{**TRITON, "state": {"running": {}}, **more}]
    ready = [{"type": "Ready", "status": "True"}]
    return {"phase": "Running", "podIP": "10.1.2.3", "containerStatuses": statuses, "conditions": ready}


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
    rig: Rig, answers: Answers, status: dict[str, Any], answering: bool, error: type[EngineError], says: str
) -> None:
    rig.becomes(**status)
    answers(lambda server: answering)
    with pytest.raises(error, match=says):
        rig.start(0.5 if error is LaunchTimeout else 20.0)
    assert rig.nothing_left()


def test_a_full_node_refuses_a_replacement_soon_and_says_what_helps(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.becomes(phase="Pending", conditions=[UNSCHEDULED])
    monkeypatch.setattr(module, "_UNPLACED_S", 0.3)
    with pytest.raises(EngineError, match=r"Insufficient cpu.*needs its share beside it .*smaller shares"):
        rig.start(60.0)
    assert rig.nothing_left()


def test_a_missing_permission_leaves_nothing_behind(rig: Rig) -> None:
    rig.cluster.faults.denied = {("create", "pods")}
    with pytest.raises(EngineError, match=r"lacks the rule .*\"pods\".*create"):
        rig.start()
    assert rig.nothing_left()


def test_two_programs_that_start_one_name_get_one_pod(rig: Rig, tmp_path: Path) -> None:
    rig.becomes(**running())
    other = KubernetesLauncher(tmp_path / "other", Cluster())
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda one: one.start(rig.spec, deadline_s=20), (rig.launcher, other))
    assert first == second
    assert first.host == "10.1.2.3"
    assert sum(key[0] == "pods" for key in rig.cluster.store.objects) == 1


def test_a_killed_server_that_its_status_still_calls_ready_is_not_adopted(rig: Rig, answers: Answers) -> None:
    killed = rig.started()
    terminated = {"terminated": {"exitCode": 137, "reason": "Error"}}

    def answer(server: Server) -> bool:
        if server.id != killed.id:
            return True
        # The kubelet notices the end only now.
        late = {**running(), "containerStatuses": [{**TRITON, "state": terminated}]}
        rig.edit(lambda pod: pod.update(status=late))
        return False

    answers(answer)
    assert rig.start().id != killed.id


def test_a_fleet_of_another_name_or_namespace_is_not_seen(rig: Rig, tmp_path: Path) -> None:
    server = rig.started()
    elsewhere = KubernetesLauncher(tmp_path / "other", Cluster(namespace="elsewhere"))
    assert rig.launcher.servers("f") == (server,)
    assert rig.launcher.servers("g") == elsewhere.servers("f") == ()


def test_a_pod_whose_node_is_away_is_forgotten_after_its_grace(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = rig.started()
    rig.cluster.store.changed.clear()  # no kubelet answers from now on
    monkeypatch.setattr(module, "_KUBELET_S", 0.5)
    rig.launcher.stop(server, drain_s=0.0)
    assert rig.nothing_left()


def test_a_pod_that_is_being_deleted_runs_until_it_has_ended_and_says_why(rig: Rig) -> None:
    server = rig.started()
    rig.cluster.store.changed.clear()
    rig.edit(lambda pod: pod["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"))
    (found,) = rig.launcher.servers("f")
    assert (found.id, found.state) == (server.id, ServerState.RUNNING)
    assert "being deleted" in str(found.end)


def test_a_sweep_removes_ended_pods_and_files_without_one(rig: Rig) -> None:
    rig.started()
    evicted = {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}
    rig.edit(lambda pod: pod.update(status=evicted))
    assert rig.launcher.sweep("f") == (f"pod {rig.spec.name}",)
    assert rig.nothing_left()
    metadata = {"name": "c", "labels": names.fleet_labels("f"), "annotations": {names.NAME: "gone"}}
    rig.cluster.store.create(("configmaps", "trisect", "c"), {"metadata": metadata})
    assert rig.launcher.sweep("f") == ("files of gone",)
    assert rig.nothing_left()


def test_a_resize_that_the_node_defers_is_told(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    pending = {"type": "PodResizePending", "status": "True", "reason": "Deferred", "message": "no CPU left"}
    server = rig.started(resources={"limits": {"cpu": "500m"}})
    rig.edit(lambda pod: pod["status"]["conditions"].append(pending))
    monkeypatch.setattr(module, "_KUBELET_S", 0.3)
    with pytest.raises(EngineError, match="keeps its share: Deferred: no CPU left"):
        rig.launcher.resize(server, 80)


def test_a_resize_ends_with_a_pod_that_is_deleted_meanwhile(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, left = rig.started(resources={"limits": {"cpu": "500m"}}), PodState.resize_left

    def look(pod: PodState, limit: str) -> str | None:
        rig.edit(lambda pod: pod["metadata"].update(deletionTimestamp="2026-11-23T00:00:00Z"))
        return left(pod, limit)

    rig.cluster.store.changed.clear()
    monkeypatch.setattr(PodState, "resize_left", look)
    rig.launcher.resize(server, 80)


def test_a_listed_server_that_ended_says_why(rig: Rig) -> None:
    rig.started()
    rig.edit(lambda pod: pod["status"].update(containerStatuses=[{**TRITON, "state": OOM_KILLED}]))
    (found,) = rig.launcher.servers("f")
    assert OUT_OF_MEMORY in str(found.end)


@pytest.mark.parametrize("device", ["other/cpu-0", "n/cpu-2", "cpu-0"])
def test_a_device_that_the_cluster_lacks_is_named(rig: Rig, device: str) -> None:
    rig.spec = replace(rig.spec, device=device)
    with pytest.raises(InputError, match=r"device: .*(it has: n|2 cores|NODE/cpu-0)"):
        rig.start()
    assert rig.nothing_left()


def test_the_command_is_the_pod_as_yaml(rig: Rig) -> None:
    assert "kind: Pod\n" in rig.launcher.command(rig.spec)
    assert "cpu: 500m\n" in rig.launcher.command(rig.spec)


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("ContainerCreating", r"ContainerCreating.*MPSSupport"),
        ("ErrImagePull", r"ErrImagePull(?!.*MPSSupport)"),
    ],
)
def test_a_gpu_of_the_dra_driver_names_the_gate_that_shares_it(rig: Rig, reason: str, told: str) -> None:
    """With the gate off, as by default, no node prepares the claim, and the pod waits: a fake says so."""
    uuid = "GPU-11111111-2222-3333-4444-555555555555"
    attributes = {"uuid": {"string": uuid}, "type": {"string": "gpu"}, "productName": {"string": "V100"}}
    device = {"name": "gpu-0", "attributes": attributes}
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    sliced = {"driver": "gpu.nvidia.com", "nodeName": "n", "pool": pool, "devices": [device]}
    rig.cluster.store.create(("resourceslices", "", "n"), {"metadata": {"name": "n"}, "spec": sliced})
    nodes = next(one for one in rig.launcher.capabilities() if one.name == "kubernetes nodes")
    assert "1 GPUs" in nodes.detail
    assert "MPSSupport" in nodes.detail
    rig.becomes(**waiting(reason, ""))
    rig.spec = replace(rig.spec, device=f"n/{uuid}")
    with pytest.raises(LaunchTimeout, match=told):
        rig.start(0.5)


def test_the_doctor_names_what_a_cluster_lacks(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = {one.name.removeprefix("kubernetes "): one for one in rig.launcher.capabilities()}
    assert all(found[name].available for name in ("kubernetes", "permissions", "pods"))
    assert not found["models"].available
    assert not found["live batches"].available
    rig.cluster.faults.denied = {("patch", "pods/resize"), ("list", "nodes")}
    rig.cluster.faults.refuses_pods = 'violates PodSecurity "restricted:latest"'
    found = {one.name: one for one in rig.launcher.capabilities()}
    assert "pods/resize" in found["kubernetes permissions"].detail
    assert "nodes" in found["kubernetes permissions"].detail
    assert "violates PodSecurity" in found["kubernetes pods"].detail
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    (line,) = KubernetesLauncher(tmp_path, Cluster()).capabilities()
    assert not line.available
    assert "KUBECONFIG" in str(line.remedy)
