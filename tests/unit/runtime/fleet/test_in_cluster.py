"""A fleet whose Fleet object controllers keep, from outside: what is written, awaited and refused."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from ctl_fleet import partition, plan

from controlplane.domain.errors import EngineError, InputError
from controlplane.domain.fleet import Cluster
from controlplane.domain.observation import FleetReport
from controlplane.domain.plan import Plan
from controlplane.domain.serving import FollowLoad, Serving
from controlplane.files.documents import Document
from controlplane.files.fleets import FleetFiles, FleetSettings
from controlplane.files.plans import plan_of
from controlplane.runtime.fleet import in_cluster
from controlplane.runtime.fleet.in_cluster import FleetInCluster

SETTINGS = FleetSettings("kubernetes", "/models", "/rendered", {}, cluster=Cluster(installed=True))


def made(endpoint: str = "a", percent: float = 30.0) -> Plan:
    one = partition("a", percent)
    one["workloads"][0]["endpoint"] = endpoint
    return plan_of(Document("plan", "", plan(one)))


@dataclass
class FakeOrders:
    """An object that controllers report on as a test says."""

    running: tuple[str, ...] = ("c-1",)
    reason: str = "Applied"
    manifest: Mapping[str, Any] | None = None
    generations: list[Mapping[str, Any]] = field(default_factory=list)
    profiles: dict[str, str] = field(default_factory=dict)

    def controllers(self) -> tuple[str, ...]:
        return self.running

    def plan(self) -> Mapping[str, Any] | None:
        return None if self.manifest is None else self.manifest["spec"]["plan"]

    def put(self, manifest: Mapping[str, Any]) -> int:
        if manifest != self.manifest:
            self.generations.append(manifest)
        self.manifest = manifest
        return len(self.generations)

    def put_profiles(self, profiles: Mapping[str, str]) -> None:
        self.profiles = dict(profiles)

    def report(self) -> FleetReport | None:
        if not self.running:
            return None
        return FleetReport(len(self.generations), self.reason == "Applied", self.reason, "2 servers")

    def delete(self) -> None:
        if self.running:
            self.manifest = None


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> FakeOrders:
    monkeypatch.setattr(in_cluster, "_POLL_S", 0.001)
    monkeypatch.setattr(in_cluster, "_WITHOUT_CONTROLLER_S", 0.01)
    return FakeOrders()


@pytest.fixture
def fleet(orders: FakeOrders, tmp_path: Path) -> FleetInCluster:
    return FleetInCluster(FleetFiles(tmp_path, "f"), orders, lambda text: None)


def apply(fleet: FleetInCluster, plan: Plan, *, renames: bool = False, **more: Any) -> FleetReport:
    return fleet.apply(plan, SETTINGS, allow_violations=False, rename_endpoints=renames, **more)


def test_an_apply_writes_the_object_and_a_rollback_the_plan_before(
    fleet: FleetInCluster, orders: FakeOrders
) -> None:
    for percent in (30.0, 40.0):
        assert apply(fleet, made(percent=percent)).applied
    first, second = orders.generations
    assert (first["kind"], first["metadata"]["name"]) == ("Fleet", "f")
    assert fleet.rollback().applied
    assert orders.plan() == first["spec"]["plan"]
    assert orders.plan() != second["spec"]["plan"]


def test_without_an_earlier_plan_there_is_no_rollback(fleet: FleetInCluster) -> None:
    apply(fleet, made())
    with pytest.raises(InputError, match="applied no plan of fleet 'f' before"):
        fleet.rollback()


def test_a_renamed_endpoint_is_refused_before_anything_is_written(
    fleet: FleetInCluster, orders: FakeOrders
) -> None:
    apply(fleet, made())
    with pytest.raises(InputError, match="would end though their workloads stay: a"):
        apply(fleet, made("b"))
    assert len(orders.generations) == 1
    apply(fleet, made("b"), renames=True)
    assert len(orders.generations) == 2


@pytest.mark.parametrize(("reason", "error"), [("Invalid", InputError), ("Failed", EngineError)])
def test_what_the_controllers_report_is_the_result(
    fleet: FleetInCluster, orders: FakeOrders, reason: str, error: type[Exception]
) -> None:
    orders.reason = reason
    with pytest.raises(error, match="2 servers"):
        apply(fleet, made())


def test_a_destroyed_fleet_leaves_nothing_here(fleet: FleetInCluster, orders: FakeOrders) -> None:
    apply(fleet, made())
    fleet.destroy()
    assert orders.manifest is None
    assert not fleet.files.exists()


def test_without_a_controller_nothing_waits_for_ever(fleet: FleetInCluster, orders: FakeOrders) -> None:
    orders.running = ()
    for call in (lambda: apply(fleet, made()), fleet.destroy):
        with pytest.raises(EngineError, match="no controller of fleet 'f' runs"):
            call()


def test_the_profiles_go_with_a_plan_that_follows_its_load(
    fleet: FleetInCluster, orders: FakeOrders, tmp_path: Path
) -> None:
    (tmp_path / "measured" / "cpu").mkdir(parents=True)
    (tmp_path / "measured" / "cpu" / "m.json").write_text("{}")
    follows = Serving(follow_load=FollowLoad())
    for serve, given in ((None, {}), (follows, {"cpu/m.json": "{}"})):
        apply(fleet, replace(made(), serve=serve), profiles=tmp_path / "measured")
        assert orders.profiles == given
