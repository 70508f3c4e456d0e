"""A followed plan in a cluster: pods that wait for nodes, and what is applied without them."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from load_rig import Fleet, Load, Planning, plan

from controlplane.control.autoscaler.state import LoadState, Propose
from controlplane.domain.device import HeldDevice, Stock
from controlplane.domain.errors import EngineError, NotNow
from controlplane.domain.observation import Event
from controlplane.domain.plan import PlannedGpu, Violation
from controlplane.files.following import Following
from controlplane.files.plans import plan_hash, write_plan
from controlplane.runtime.autoscaler import running
from controlplane.runtime.autoscaler.running import Applying
from controlplane.runtime.fleet.preflight import ApplyRequest


@dataclass
class Surroundings:
    """A cluster with three cores; `brings` is how many more a wait brings."""

    fleet: Fleet
    brings: int = 0
    away: int = 0
    refuses: str = ""
    heard_since_s: float = 0.0
    asked: list[int] = field(default_factory=list)
    cores: int = 1
    heard: Callable[[], None] = lambda: None

    @property
    def counts(self) -> dict[str, int]:
        return {"cpu": self.cores}

    def devices(self) -> dict[str, tuple[HeldDevice, ...]]:
        return {"cpu": tuple(HeldDevice("cpu", f"n{i}/cpu-0", f"n{i}") for i in range(self.cores))}

    def apply(self, request: ApplyRequest) -> None:
        if self.away:
            self.away -= 1
            raise NotNow("the API server does not answer")
        self.fleet.apply(request)

    def ask_for(self, gpus: Sequence[PlannedGpu]) -> None:
        self.asked.append(len(gpus))
        self.heard()
        if self.refuses:
            raise EngineError(self.refuses)
        self.cores += self.brings if gpus else 0


@pytest.fixture
def around(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Surroundings:
    made = Surroundings(fleet)
    monkeypatch.setattr(running, "devices_of", lambda launcher: made.devices())
    monkeypatch.setattr(running, "_POLL_S", 0.001)
    monkeypatch.setattr(running, "NODES_S", 0.05)
    return made


def in_cluster(load: Load, around: Surroundings) -> list[Stock]:
    """What the searches of a controller in a cluster may use."""
    stocks: list[Stock] = []

    class OfStock(Planning):
        def ask(self, asked: Propose, state: LoadState, stock: Stock) -> None:
            stocks.append(stock)
            self.gpus = 2 if stock.grows else stock.counts["cpu"]
            super().ask(asked, state, stock)

    load.follow(lambda: OfStock(load.fleet.files), cluster=around)
    return stocks


def test_pods_wait_for_a_node_that_the_plan_needs(
    load: Load, around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "NODES_S", 60.0)
    around.brings, around.away = 1, 2
    stocks = in_cluster(load, around)
    load.run([45] * 30 + [150] * 30)
    assert stocks[0] == Stock({"cpu": 1}, grows=True)
    assert around.asked == [1, 0]
    assert load.fleet.applied == ["following the load"], "though the API server was away"
    assert [event.level for event in load.told if event.kind == "nodes"] == ["info"]


def test_without_a_node_the_plan_is_for_what_is_there(load: Load, around: Surroundings) -> None:
    write_plan(load.fleet.files.following.without_more, plan(100.0))
    stocks = in_cluster(load, around)
    load.run([45] * 30 + [150] * 20)
    assert around.asked[-1] == 0, "nothing waits any more"
    applied = load.fleet.files.plan()
    assert applied is not None
    assert len(applied.gpus) == 1
    assert [event.level for event in load.told if event.kind == "nodes"] == ["info", "warning"]
    # No other node is asked for at once; one that comes by itself is used.
    around.cores = 2
    load.run([150] * 20)
    assert stocks[-1] == Stock({"cpu": 2}, grows=False)
    applied = load.fleet.files.plan()
    assert applied is not None
    assert len(applied.gpus) == 2


def test_pods_that_the_cluster_refuses_are_one_event(load: Load, around: Surroundings) -> None:
    around.refuses = "quota exceeded"
    in_cluster(load, around)
    load.run([45] * 30 + [150] * 20)
    said = [event.reason for event in load.told if event.kind == "nodes" and event.level == "warning"]
    assert said == ["quota exceeded"], "once, though many tries failed"


@pytest.mark.parametrize("broken", [(), (Violation("W", "its P99 is 120 ms and its SLO 100 ms"),)])
def test_a_plan_that_breaks_promises_is_applied_on_a_host_and_proposed_in_a_cluster(
    fleet: Fleet, around: Surroundings, broken: tuple[Violation, ...]
) -> None:
    made_from, proposed = fleet.files.plan(), replace(plan(60.0), violations=broken)
    assert made_from is not None
    write_plan(fleet.files.following.proposal, proposed)
    told: list[Event] = []
    for cluster in (around, None):
        applying = Applying(cast(Any, fleet), told.append, cluster)
        applying.begin("slower", plan_hash(made_from), breaks=bool(broken))
        applying.wait()
        applied, _ = applying.outcome()
        assert applied is not (cluster is not None and bool(broken))
        applying.close()
        fleet.files.write_plans(made_from, None)
    said = [event.reason for event in told if event.kind == "would apply"]
    assert len(said) == len(broken)
    assert all("proposal.json --fleet f --allow violations`" in reason for reason in said)


def test_no_pod_waits_again_soon_for_nodes_that_did_not_come(fleet: Fleet, around: Surroundings) -> None:
    applying = Applying(cast(Any, fleet), lambda event: None, around)
    write_plan(fleet.files.following.proposal, plan(150.0, 2))
    for asked in ([1, 0], []):
        applying.begin("asked", plan_hash(plan(50.0)), breaks=False)
        applying.wait()
        applied, failed = applying.outcome()
        assert not applied
        assert failed is not None
        assert sorted(set(around.asked), reverse=True) == asked
        around.asked.clear()
    applying.close()


def test_pods_wait_no_longer_once_another_plan_runs(
    fleet: Fleet, around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "NODES_S", 30.0)
    asked = threading.Event()
    around.heard = asked.set
    applying = Applying(cast(Any, fleet), lambda event: None, around)
    write_plan(fleet.files.following.proposal, plan(150.0, 2))
    applying.begin("asked", plan_hash(plan(50.0)), breaks=False)
    assert asked.wait(10)
    fleet.files.write_plans(plan(60.0), None)
    began_s = time.monotonic()
    applying.wait()
    assert time.monotonic() - began_s < 20.0
    assert around.asked[-1] == 0
    assert applying.may_grow, "the wait did not fail"
    applying.close()


def test_seconds_that_one_replica_did_not_report_are_no_low_load(load: Load, around: Surroundings) -> None:
    load.fleet.files.following.write(Following(follow=True, dwell_s=40.0))
    load.fleet.files.write_plans(plan(200.0, 2), None)
    around.cores = 2
    in_cluster(load, around)
    load.run([190] * 30)
    around.heard_since_s = float("inf")
    load.run([20] * 130)
    assert load.fleet.applied == []
    around.heard_since_s = 0.0
    load.run([20] * 130)
    assert load.fleet.applied == ["following the load"]
