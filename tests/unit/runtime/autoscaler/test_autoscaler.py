"""Load control in a controller: what is proposed and applied, and what the next controller goes on from."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from controlplane.control.autoscaler.state import Kind, LoadState, Proposal, Propose, Unheld
from controlplane.control.guard.effects import Learn
from controlplane.domain.device import HeldDevice, Stock
from controlplane.domain.errors import EngineError, NotNow
from controlplane.domain.observation import Answer, Event
from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Rule, ServedModel
from controlplane.files.fleets import FleetFiles, FleetSettings
from controlplane.files.following import Following, read_rates
from controlplane.files.plans import plan_hash, write_plan
from controlplane.monitor.metrics import Page
from controlplane.runtime.autoscaler import running
from controlplane.runtime.autoscaler.autoscaler import Autoscaler
from controlplane.runtime.autoscaler.running import Applying, InCluster
from controlplane.runtime.autoscaler.search import Begin
from controlplane.runtime.controller import exporter
from controlplane.runtime.fleet.preflight import ApplyRequest


def plan(rate_rps: float, gpus: int = 1) -> Plan:
    parts = [
        Partition(f"W-{i}", 60.0, (ServedModel("m", 2),), (Placement("W", "w", "m", rate_rps / gpus, 100.0),))
        for i in range(gpus)
    ]
    planned = tuple(PlannedGpu(f"cpu-{i}", "cpu", (part,)) for i, part in enumerate(parts))
    return Plan("joint", Rule.P99, "ours", planned, quantile=0.95, seed=1, spec="the spec")


@dataclass
class Clock:
    now_s: float = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return self.now_s + 1e9


@dataclass
class Fleet:
    """The part of a fleet that following needs; `refuses` is why it applies nothing."""

    files: FleetFiles
    clock: Clock = field(default_factory=Clock)
    name: str = "f"
    launcher: None = None
    refuses: str = ""
    applied: list[str] = field(default_factory=list)

    def apply(self, request: ApplyRequest) -> None:
        before = self.files.plan()
        assert before is not None
        assert request.made_from == plan_hash(before)
        if self.refuses:
            raise EngineError(self.refuses)
        self.applied.append(request.cause)
        self.files.write_plans(request.plan, before)


class Planning:
    """Answers at once with a plan for what is asked for, on two GPUs above 100/s, if there are two."""

    def __init__(self, files: FleetFiles, gpus: int = 2) -> None:
        self.files = files
        self.gpus = gpus

    def ended(self) -> bool:
        return False

    def ask(self, asked: Propose, state: LoadState, stock: Stock) -> None:
        self.asked = asked

    def answer(self) -> Proposal:
        (rate,) = self.asked.rates_rps
        unheld = (Unheld("W", 100.0, "no room"),) if rate > 100.0 * self.gpus else ()
        rate = min(rate, 100.0 * self.gpus)
        new = plan(rate, 2 if rate > 100.0 else 1)
        write_plan(self.files.following.proposal, new)
        before = self.files.plan()
        assert before is not None
        costs = float(len(before.gpus)), float(len(new.gpus))
        return Proposal(
            self.asked.number,
            Kind.PLAN,
            (rate,),
            *costs,
            0.5,
            unheld,
            summary="found",
            made_from=plan_hash(before),
        )

    def close(self) -> None:
        pass


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    files = FleetFiles(tmp_path, "f")
    files.directory.mkdir()
    files.write_settings(FleetSettings("process", "/m", "/o", {}))
    files.write_plans(plan(50.0), None)
    (files.directory / "following").mkdir()
    files.following.write(Following(follow=True))
    cores = ("cpu-0", "cpu-1", "cpu-2")
    monkeypatch.setattr(running, "host_devices", lambda: {"cpu": cores})
    held = {"cpu": tuple(HeldDevice("cpu", core) for core in cores)}
    monkeypatch.setattr(running, "devices_of", lambda launcher: held)
    return Fleet(files)


def run(fleet: Fleet, follows: Autoscaler, rates: Sequence[int]) -> None:
    """One second for each rate, with requests that arrive evenly and take 5 ms."""
    for rate in rates:
        second = fleet.clock.now_s
        answers = [Answer(second + (i + 0.5) / rate, 5.0, False, "w", "s") for i in range(rate)]
        fleet.clock.now_s += 1.0
        follows.hear(answers)
        follows._applying.wait()  # an apply takes no simulated time
        follows.step(0.0)


def following(
    fleet: Fleet,
    told: list[Event],
    *,
    plan_only: bool = False,
    search: Begin | None = None,
    cluster: InCluster | None = None,
) -> Autoscaler:
    begin = search or (lambda _: Planning(fleet.files))
    return Autoscaler(cast(Any, fleet), told.append, plan_only=plan_only, search=begin, cluster=cluster)


def test_a_higher_rate_is_applied_and_a_free_gpu_is_reported_when_it_is_over(fleet: Fleet) -> None:
    fleet.files.following.write(Following(follow=True, dwell_s=40.0))
    told: list[Event] = []
    follows = following(fleet, told)
    run(fleet, follows, [45] * 30 + [150] * 30)
    assert fleet.applied == ["following the load"]
    assert follows.gpus == {"cpu": (2, 1)}
    run(fleet, follows, [20] * 130)
    assert fleet.applied == ["following the load"] * 2
    assert [e.subject for e in told if e.kind == "free"] == ["cpu-1"]
    assert follows.gpus == {"cpu": (1, 2)}
    follows.close()


def test_a_cluster_can_read_the_forecast_and_the_free_gpus(fleet: Fleet) -> None:
    follows = following(fleet, [])
    run(fleet, follows, [45] * 30)
    page = Page()
    exporter.write_load(page, follows)
    families = {family.name: family for family in text_string_to_metric_families(page.text())}
    gpus = {sample.labels["state"]: sample.value for sample in families["trisect_gpus"].samples}
    assert gpus == {"used": 1, "free": 2}
    (forecast,) = families["trisect_forecast_rps"].samples
    assert (forecast.labels, 45.0 < forecast.value < 50.0) == ({"workload": "W"}, True)
    follows.close()


def test_a_proposal_alone_changes_nothing_and_names_its_file(fleet: Fleet) -> None:
    told: list[Event] = []
    follows = following(fleet, told, plan_only=True)
    run(fleet, follows, [45] * 30 + [150] * 60)
    assert fleet.applied == []
    (event,) = [e for e in told if e.kind == "would apply"]
    assert "50/s planned: found; `ctl apply" in event.reason
    assert event.reason.endswith("proposal.json --fleet f` accepts")
    assert not fleet.files.load.exists(), "the controller's file"
    follows.close()


@pytest.mark.parametrize("follow", [True, False])
def test_an_error_that_the_guard_found_gets_a_plan_at_once_and_without_following_its_command(
    fleet: Fleet, follow: bool
) -> None:
    told: list[Event] = []
    fleet.files.following.write(Following(follow=follow))
    follows = following(fleet, told)
    run(fleet, follows, [45] * 3)
    follows.learn((Learn("m", "cpu", 1.2),))
    run(fleet, follows, [45] * 4)
    assert fleet.applied == ["following the load"] * follow
    (event,) = [e for e in told if e.level == "info"]
    assert "m takes 1.20 times as long as planned on cpu: found" in event.reason
    assert ("ctl apply" in event.reason) == (not follow)
    follows.close()


def test_an_error_without_a_spec_to_plan_from_says_what_is_missing(fleet: Fleet) -> None:
    told: list[Event] = []
    fleet.files.write_plans(replace(plan(50.0), spec=None), None)
    follows = following(fleet, told)
    follows.learn((Learn("m", "cpu", 1.2),))
    run(fleet, follows, [45] * 4)
    (event,) = told
    assert "no plan with the learned times can be proposed: the plan has no spec" in event.reason
    follows.close()


@pytest.mark.parametrize(
    ("spec", "kept", "why"),
    [
        (None, Following(follow=True), "no: the plan has no spec"),
        ("the spec", Following(), "no: it was not asked for"),
    ],
)
def test_a_fleet_that_does_not_follow_says_why(
    fleet: Fleet, spec: str | None, kept: Following, why: str
) -> None:
    fleet.files.write_plans(replace(plan(50.0), spec=spec), None)
    fleet.files.following.write(kept)
    told: list[Event] = []
    follows = following(fleet, told)
    run(fleet, follows, [45] * 30 + [150] * 40)
    assert fleet.applied == []
    assert told == []
    seen = read_rates(fleet.files.rates)
    assert seen is not None
    assert seen.following.startswith(why)
    assert seen.rates[0].level_rps == pytest.approx(150.0)
    follows.close()


def test_the_next_controller_goes_on_from_what_was_learned(fleet: Fleet) -> None:
    follows = following(fleet, [])
    run(fleet, follows, [45] * 60)
    follows.close()
    fleet.clock.now_s += 8.0
    after = following(fleet, [])
    run(fleet, after, [45] * 3)
    assert after.seen is not None
    state, found = after.seen
    assert found.level[0] == pytest.approx(45.0)
    assert state.seconds.stretch[0] > 55
    after.close()


def test_an_apply_that_fails_is_reported_once(fleet: Fleet) -> None:
    told: list[Event] = []
    refusing = replace(fleet, refuses="the disk is full")
    follows = following(refusing, told)
    run(refusing, follows, [45] * 30 + [150] * 60)
    assert [e.reason.endswith("the disk is full") for e in told if e.level == "warning"] == [True]
    follows.close()


class Search:
    """A search that never ends by itself."""

    def __init__(self) -> None:
        self.closed = self.asked = self.died = False

    def ended(self) -> bool:
        return self.died

    def ask(self, asked: Propose, state: LoadState, stock: Stock) -> None:
        self.asked = True

    def answer(self) -> None:
        return None

    def close(self) -> None:
        self.closed = True


class Searches(list[Search]):
    """Those that were begun."""

    def begin(self, name: str) -> Search:
        assert all(search.closed or search.died for search in self), "one search at a time"
        self.append(Search())
        return self[-1]


def searching(fleet: Fleet, told: list[Event]) -> tuple[Autoscaler, list[Search]]:
    """A controller whose search for a plan lasts. A second one beside it is an error, which it reports."""
    searches = Searches()
    follows = following(fleet, told, search=searches.begin)
    run(fleet, follows, [45] * 30 + [150] * 20)
    assert [search.closed for search in searches] == [False]
    return follows, searches


def test_a_prepared_search_that_died_is_replaced_by_one_that_is_asked(fleet: Fleet) -> None:
    searches = Searches()
    follows = following(fleet, [], search=searches.begin)
    run(fleet, follows, [45] * 30)
    (prepared,) = searches
    prepared.died = True
    run(fleet, follows, [150] * 20)
    assert [(search.closed, search.asked) for search in searches] == [(True, False), (False, True)]
    follows.close()


def test_a_prepared_search_ends_where_the_load_is_not_followed_any_more(fleet: Fleet) -> None:
    searches = Searches()
    follows = following(fleet, [], search=searches.begin)
    run(fleet, follows, [45] * 5)
    kept = fleet.files.directory / "following" / "following.json"
    rewrite(kept, lambda: fleet.files.following.write(Following()))
    run(fleet, follows, [45] * 5)
    assert [search.closed for search in searches] == [True]
    follows.close()


def test_a_search_that_failed_is_begun_again_after_a_pause(fleet: Fleet) -> None:
    told: list[Event] = []
    fails = True

    class Failing(Planning):
        def answer(self) -> Proposal:
            if fails:
                return Proposal(self.asked.number, Kind.FAILED, summary="planning failed: killed")
            return super().answer()

    follows = following(fleet, told, search=lambda _: Failing(fleet.files))
    run(fleet, follows, [45] * 30 + [150] * 40)
    assert 1 <= len(told) <= 2
    assert fleet.applied == []
    fails = False
    run(fleet, follows, [150] * 60)
    assert fleet.applied == ["following the load"]
    follows.close()


def rewrite(path: Path, write: Callable[[], None]) -> None:
    """Write a file again, with another time of change however coarse the disk's clock is."""
    before_ns = path.stat().st_mtime_ns
    write()
    os.utime(path, ns=(before_ns + 10**9, before_ns + 10**9))


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_search_ends_where_another_command_changes_the_plan(fleet: Fleet, gpus: int) -> None:
    told: list[Event] = []
    follows, searches = searching(fleet, told)
    new = plan(50.0 if gpus == 2 else 60.0, gpus)
    rewrite(fleet.files.directory / "plan.json", lambda: fleet.files.write_plans(new, None))
    run(fleet, follows, [150])
    assert searches[0].closed
    run(fleet, follows, [150] * 30)
    assert [search.closed for search in searches] == [True, False]
    assert told == []
    follows.close()
    assert searches[1].closed


def test_a_search_ends_where_the_load_is_not_followed_any_more(fleet: Fleet) -> None:
    told: list[Event] = []
    follows, searches = searching(fleet, told)
    kept = fleet.files.directory / "following" / "following.json"
    rewrite(kept, lambda: fleet.files.following.write(Following()))
    run(fleet, follows, [150] * 30)
    assert [search.closed for search in searches] == [True]
    assert told == []
    assert fleet.applied == []
    follows.close()


def test_an_unexpected_error_is_reported_once_and_followed_by_another_try(fleet: Fleet) -> None:
    told: list[Event] = []
    broken = True

    class Breaking(Planning):
        def ask(self, asked: Propose, state: LoadState, stock: Stock) -> None:
            if broken:
                raise ZeroDivisionError("float division by zero")
            super().ask(asked, state, stock)

    follows = following(fleet, told, search=lambda _: Breaking(fleet.files))
    run(fleet, follows, [45] * 30 + [150] * 100)
    (event,) = told
    assert (event.level, event.kind) == ("error", "load")
    assert event.reason.endswith("ZeroDivisionError: float division by zero")
    assert fleet.applied == []
    broken = False
    run(fleet, follows, [150] * 60)
    assert fleet.applied == ["following the load"]
    follows.close()


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


def in_cluster(fleet: Fleet, told: list[Event], around: Surroundings, stocks: list[Stock]) -> Autoscaler:
    class OfStock(Planning):
        def ask(self, asked: Propose, state: LoadState, stock: Stock) -> None:
            stocks.append(stock)
            self.gpus = 2 if stock.grows else stock.counts["cpu"]
            super().ask(asked, state, stock)

    return following(fleet, told, search=lambda _: OfStock(fleet.files), cluster=around)


def test_pods_wait_for_a_node_that_the_plan_needs(fleet: Fleet, around: Surroundings) -> None:
    around.brings, around.away = 1, 2
    told: list[Event] = []
    stocks: list[Stock] = []
    follows = in_cluster(fleet, told, around, stocks)
    run(fleet, follows, [45] * 30 + [150] * 30)
    assert stocks[0] == Stock({"cpu": 1}, grows=True)
    assert around.asked == [1, 0]
    assert fleet.applied == ["following the load"], "though the API server was away"
    assert [event.level for event in told if event.kind == "nodes"] == ["info"]
    follows.close()


def test_without_a_node_the_plan_is_for_what_is_there(fleet: Fleet, around: Surroundings) -> None:
    write_plan(fleet.files.following.without_more, plan(100.0))
    told: list[Event] = []
    stocks: list[Stock] = []
    follows = in_cluster(fleet, told, around, stocks)
    run(fleet, follows, [45] * 30 + [150] * 20)
    assert around.asked[-1] == 0, "nothing waits any more"
    applied = fleet.files.plan()
    assert applied is not None
    assert len(applied.gpus) == 1
    assert [event.level for event in told if event.kind == "nodes"] == ["info", "warning"]
    # No other node is asked for at once; one that comes by itself is used.
    around.cores = 2
    run(fleet, follows, [150] * 20)
    assert stocks[-1] == Stock({"cpu": 2}, grows=False)
    applied = fleet.files.plan()
    assert applied is not None
    assert len(applied.gpus) == 2
    follows.close()


def test_pods_that_the_cluster_refuses_are_one_event(fleet: Fleet, around: Surroundings) -> None:
    around.refuses = "quota exceeded"
    told: list[Event] = []
    follows = in_cluster(fleet, told, around, [])
    run(fleet, follows, [45] * 30 + [150] * 20)
    said = [event.reason for event in told if event.kind == "nodes" and event.level == "warning"]
    assert said == ["quota exceeded"], "once, though many tries failed"
    follows.close()


def test_no_pod_waits_again_soon_for_nodes_that_did_not_come(fleet: Fleet, around: Surroundings) -> None:
    applying = Applying(cast(Any, fleet), lambda event: None, around)
    write_plan(fleet.files.following.proposal, plan(150.0, 2))
    for asked in ([1, 0], []):
        applying.begin("asked", plan_hash(plan(50.0)))
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
    applying.begin("asked", plan_hash(plan(50.0)))
    assert asked.wait(10)
    fleet.files.write_plans(plan(60.0), None)
    began_s = time.monotonic()
    applying.wait()
    assert time.monotonic() - began_s < 20.0
    assert around.asked[-1] == 0
    assert applying.may_grow, "the wait did not fail"
    applying.close()


def test_seconds_that_one_replica_did_not_report_are_no_low_load(fleet: Fleet, around: Surroundings) -> None:
    fleet.files.following.write(Following(follow=True, dwell_s=40.0))
    fleet.files.write_plans(plan(200.0, 2), None)
    around.cores = 2
    follows = in_cluster(fleet, [], around, [])
    run(fleet, follows, [190] * 30)
    around.heard_since_s = float("inf")
    run(fleet, follows, [20] * 130)
    assert fleet.applied == []
    around.heard_since_s = 0.0
    run(fleet, follows, [20] * 130)
    assert fleet.applied == ["following the load"]
    follows.close()
