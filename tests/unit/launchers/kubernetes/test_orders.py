"""A Fleet object and commands in its leader's pod, from outside, against a served fake of the API."""

import base64
import gzip

import pytest
from fake_kubernetes import FakeCluster
from manifests import problems

from controlplane.domain.errors import EngineError, InputError
from controlplane.domain.fleet import Cluster
from controlplane.domain.observation import Event, FleetReport, FleetStanding
from controlplane.domain.plan import PlannedGpu
from launchers.kubernetes.api import ClusterApi
from launchers.kubernetes.leading import remote
from launchers.kubernetes.leading.fleets import FleetObject, FleetOrders
from launchers.kubernetes.leading.room import Room
from launchers.kubernetes.options import PodOptions

CONTROLLER = {"app.kubernetes.io/component": "controller", "trisect.dev/fleet": "f"}


WAITING = {"app.kubernetes.io/component": "room", "trisect.dev/fleet": "f"}


def manifest(percent: int) -> dict[str, object]:
    return {
        "apiVersion": "trisect.dev/v1alpha1",
        "kind": "Fleet",
        "metadata": {"name": "f"},
        "spec": {"plan": {"percent": percent}, "allowViolations": False},
    }


@pytest.fixture
def orders(cluster: FakeCluster) -> FleetOrders:
    cluster.faults.token = "good"
    return FleetOrders(Cluster(), "f")


def controller(name: str) -> FleetObject:
    """The object as a controller's pod has it."""
    return FleetObject(ClusterApi(Cluster()), "f", name)


def add_controller(cluster: FakeCluster, name: str, phase: str = "Running") -> None:
    pod = {"metadata": {"name": name, "labels": CONTROLLER}, "spec": {"containers": []}}
    cluster.store.create(("pods", "trisect", name), {**pod, "status": {"phase": phase}})


def test_a_changed_plan_is_a_new_generation_and_an_equal_one_is_none(orders: FleetOrders) -> None:
    assert orders.plan() is None
    assert [orders.put(manifest(p)) for p in (30, 30, 40)] == [1, 1, 2]
    assert orders.plan() == {"percent": 40}
    orders.delete()
    assert orders.plan() is None


def test_the_controllers_report_is_read(orders: FleetOrders) -> None:
    orders.put(manifest(30))
    assert orders.report() is None
    said = FleetReport(1, True, "Applied", "4 servers", "abc", 2, {"cpu-0": "a/cpu-0"})
    controller("c-1").report(said)
    assert orders.report() == said


def test_the_object_has_columns_conditions_and_events(cluster: FakeCluster, orders: FleetOrders) -> None:
    orders.put(manifest(30))
    kept = controller("c-1")
    assert kept.read() is not None
    kept.begin(1)
    kept.report(FleetReport(1, True, "Applied", "4 servers", "abc", 2, {}))
    kept.show(FleetStanding(1, 2, 3, 4, 1.25, "PartitionDown", "b: no server answers"))
    status = cluster.store.get(("fleets", "trisect", "f"))["status"]
    shown = {name: status[name] for name in ("ready", "gpus", "redirects", "covers", "leader")}
    assert shown == {"ready": "1/2", "gpus": 3, "redirects": 4, "covers": "1.25x", "leader": "c-1"}
    conditions = {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}
    assert conditions == {
        "Applied": ("True", "Applied"),
        "Progressing": ("False", "Applied"),
        "Ready": ("False", "PartitionDown"),
        "Degraded": ("True", "PartitionDown"),
    }
    kept.announce(Event(1e9, "warning", "would apply", "f", "more is needed"))
    (event,) = cluster.store.select("events", "trisect", {})
    assert (event["reason"], event["type"]) == ("WouldApply", "Warning")
    assert event["involvedObject"]["uid"] == cluster.store.get(("fleets", "trisect", "f"))["metadata"]["uid"]


def test_a_condition_keeps_its_time_while_it_holds(cluster: FakeCluster, orders: FleetOrders) -> None:
    orders.put(manifest(30))
    old = "2026-01-01T00:00:00Z"
    kept = {"type": "Applied", "status": "True", "reason": "", "message": "", "lastTransitionTime": old}
    cluster.store.edit(("fleets", "trisect", "f"), lambda obj: obj.update(status={"conditions": [kept]}))
    for applied, stays in ((True, True), (False, False)):
        fleet = controller("c-2")
        fleet.read()
        fleet.report(FleetReport(1, applied, "Said", ""))
        conditions = cluster.store.get(("fleets", "trisect", "f"))["status"]["conditions"]
        assert (conditions[0]["lastTransitionTime"] == old) is stays


def test_a_command_runs_in_the_leaders_pod(
    cluster: FakeCluster, orders: FleetOrders, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("c-1", "c-2"):
        add_controller(cluster, name)
        cluster.commands[name] = (f"from {name} – late\n", 1)
    orders.put(manifest(30))
    controller("c-2").report(FleetReport(1, True, "Applied", ""))
    assert orders.run_by_leader("ctl", "status", "--check") == 1
    assert cluster.executed == [("c-2", ["ctl", "status", "--check"])]
    assert capsys.readouterr().out == "from c-2 – late\n"


def test_without_a_running_controller_the_way_out_is_named(cluster: FakeCluster, orders: FleetOrders) -> None:
    add_controller(cluster, "c-1", "Pending")
    assert orders.controllers() == ()
    with pytest.raises(EngineError, match="no controller of fleet 'f' runs in namespace trisect"):
        orders.run_by_leader("ctl", "status")


def test_a_missing_rule_is_named(cluster: FakeCluster, orders: FleetOrders) -> None:
    add_controller(cluster, "c-1")
    cluster.faults.denied = {("get", "pods/exec")}
    with pytest.raises(EngineError, match=r'resources: \["pods/exec"\], verbs: \[get, create\]'):
        orders.run_by_leader("ctl", "status")


def test_a_command_that_did_not_start_is_an_error() -> None:
    assert remote.exit_code({"status": "Success"}) == 0
    with pytest.raises(EngineError, match="no such file"):
        remote.exit_code({"status": "Failure", "message": "ctl: no such file"})


def test_a_followed_plan_is_kept_for_its_generation_alone(cluster: FakeCluster, orders: FleetOrders) -> None:
    orders.put(manifest(30))
    orders.put_profiles({"cpu/m.json": "{}"})
    leader, following = (controller(name) for name in ("c-1", "c-2"))
    assert following.followed(1) is None
    leader.follow({"percent": 60}, 1)
    assert (following.followed(1), following.followed(2)) == ({"percent": 60}, None)
    assert following.profiles() == {"cpu/m.json": "{}"}
    leader.follow(None, 1)
    assert following.followed(1) is None
    following.read()
    following.release()
    assert cluster.store.select("configmaps", "trisect", {}) == []


@pytest.mark.parametrize(
    "content",
    [b"{}", gzip.compress(b"plan"), gzip.compress(b"[]"), b"", None],
    ids=["not compressed", "no JSON", "no object", "empty", "no base64"],
)
def test_a_document_that_was_changed_by_hand_is_named(
    cluster: FakeCluster, orders: FleetOrders, content: bytes | None
) -> None:
    orders.put(manifest(30))
    leader = controller("c-1")
    leader.follow({"percent": 60}, 1)
    (kept,) = cluster.store.select("configmaps", "trisect", {})
    text = "~" if content is None else base64.b64encode(content).decode()
    cluster.store.edit(
        ("configmaps", "trisect", kept["metadata"]["name"]),
        lambda found: found.update(binaryData={"content.json.gz": text}),
    )
    with pytest.raises(InputError, match="ConfigMap"):
        leader.followed(1)


def test_pods_that_wait_for_nodes_ask_for_whole_devices_of_other_nodes(cluster: FakeCluster) -> None:
    for node in ("a", "b"):
        cluster.add_node(node)
    add_controller(cluster, "c-1")
    leader = cluster.store.get(("pods", "trisect", "c-1"))["metadata"]["uid"]
    room = Room(ClusterApi(Cluster()), "f", "c-1", PodOptions(priority_class="high"))
    selector = {"zone": "b"}
    wanted = (PlannedGpu("cpu-2", "cpu", ()), PlannedGpu("v100-0", "v100", (), node_selector=selector))
    for gpus in (wanted, wanted):
        room.wait_for(gpus)
    pods = cluster.store.select("pods", "trisect", WAITING)
    assert problems(pods) == []
    owners = [one["uid"] for pod in pods for one in pod["metadata"]["ownerReferences"]]
    assert owners == [leader, leader], "they end with the controller"
    core, gpu = sorted((pod["spec"] for pod in pods), key=lambda spec: "nodeSelector" in spec)
    assert core["containers"][0]["resources"] == {"requests": {"cpu": "1"}}
    assert gpu["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": "1"}}
    assert (gpu["nodeSelector"], gpu["priorityClassName"]) == (selector, "high")
    required = core["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    fields = required["nodeSelectorTerms"][0]["matchFields"]
    assert [one["values"] for one in fields] == [["a"], ["b"]], "the API server takes one value"
    room.wait_for(wanted[:1])
    assert len(cluster.store.select("pods", "trisect", WAITING)) == 1
    room.wait_for(())
    assert cluster.store.select("pods", "trisect", WAITING) == []
