"""Load control in a controller: what is proposed and applied, and what the next controller goes on from."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from load_rig import Load, Planning, plan, rewrite
from prometheus_client.parser import text_string_to_metric_families

from controlplane.control.autoscaler.state import Kind, LoadState, Proposal, Propose
from controlplane.control.guard.effects import Learn
from controlplane.domain.device import Stock
from controlplane.domain.observation import Answer
from controlplane.files.following import Following, read_rates
from controlplane.monitor.metrics import Page
from controlplane.runtime.autoscaler.autoscaler import Arrivals
from controlplane.runtime.controller import serve


def test_a_higher_rate_is_applied_and_a_free_gpu_is_reported_when_it_is_over(load: Load) -> None:
    load.fleet.files.following.write(Following(follow=True, dwell_s=40.0))
    load.follow()
    load.run([45] * 30 + [150] * 30)
    assert load.fleet.applied == ["following the load"]
    assert load.follows[0].gpus == {"cpu": (2, 1)}
    load.run([20] * 130)
    assert load.fleet.applied == ["following the load"] * 2
    assert [e.subject for e in load.told if e.kind == "free"] == ["cpu-1"]
    assert load.follows[0].gpus == {"cpu": (1, 2)}


def test_a_cluster_can_read_the_forecast_and_the_free_gpus(load: Load) -> None:
    load.follow()
    load.run([45] * 30)
    page = Page()
    serve.write_load(page, load.follows[0])
    families = {family.name: family for family in text_string_to_metric_families(page.text())}
    gpus = {sample.labels["state"]: sample.value for sample in families["trisect_gpus"].samples}
    assert gpus == {"used": 1, "free": 2}
    (forecast,) = families["trisect_forecast_rps"].samples
    assert (forecast.labels, 45.0 < forecast.value < 50.0) == ({"workload": "W"}, True)


def test_a_proposal_alone_changes_nothing_and_names_its_file(load: Load) -> None:
    load.follow(plan_only=True)
    load.run([45] * 30 + [150] * 60)
    assert load.fleet.applied == []
    (event,) = [e for e in load.told if e.kind == "would apply"]
    assert "50/s planned: found; `ctl apply" in event.reason
    assert event.reason.endswith("proposal.json --fleet f` accepts")
    assert not load.fleet.files.load.exists(), "the controller's file"


@pytest.mark.parametrize("follow", [True, False])
def test_an_error_that_the_guard_found_gets_a_plan_at_once_and_without_following_its_command(
    load: Load, follow: bool
) -> None:
    load.fleet.files.following.write(Following(follow=follow))
    load.follow()
    load.run([45] * 3)
    load.follows[0].learn((Learn("m", "cpu", 1.2),))
    load.run([45] * 4)
    assert load.fleet.applied == ["following the load"] * follow
    (event,) = [e for e in load.told if e.level == "info"]
    assert "m takes 1.20 times as long as planned on cpu: found" in event.reason
    assert ("ctl apply" in event.reason) == (not follow)


def test_an_error_without_a_spec_to_plan_from_says_what_is_missing(load: Load) -> None:
    load.fleet.files.write_plans(replace(plan(50.0), spec=None), None)
    load.follow()
    load.follows[0].learn((Learn("m", "cpu", 1.2),))
    load.run([45] * 4)
    (event,) = load.told
    assert "no plan with the learned times can be proposed: the plan has no spec" in event.reason


@pytest.mark.parametrize(
    ("spec", "kept", "why"),
    [
        (None, Following(follow=True), "no: the plan has no spec"),
        ("the spec", Following(), "no: it was not asked for"),
    ],
)
def test_a_fleet_that_does_not_follow_says_why(
    load: Load, spec: str | None, kept: Following, why: str
) -> None:
    load.fleet.files.write_plans(replace(plan(50.0), spec=spec), None)
    load.fleet.files.following.write(kept)
    load.follow()
    load.run([45] * 30 + [150] * 40)
    assert load.fleet.applied == []
    assert load.told == []
    seen = read_rates(load.fleet.files.rates)
    assert seen is not None
    assert seen.following.startswith(why)
    assert seen.rates[0].level_rps == pytest.approx(150.0)


def test_the_next_controller_goes_on_from_what_was_learned(load: Load) -> None:
    load.follow()
    load.run([45] * 60)
    load.fleet.clock.now_s += 8.0
    after = load.follow()
    load.run([45] * 3)
    assert after.seen is not None
    state, found = after.seen
    assert found.level[0] == pytest.approx(45.0)
    assert state.seconds.stretch[0] > 55


def test_an_apply_that_fails_is_reported_once(load: Load) -> None:
    load.fleet.refuses = "the disk is full"
    load.follow()
    load.run([45] * 30 + [150] * 60)
    assert [e.reason.endswith("the disk is full") for e in load.told if e.level == "warning"] == [True]


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


def test_a_prepared_search_that_died_is_replaced_by_one_that_is_asked(load: Load) -> None:
    load.follow(Search)
    load.run([45] * 30)
    (prepared,) = load.searches
    prepared.died = True
    load.run([150] * 20)
    assert [(search.closed, search.asked) for search in load.searches] == [(True, False), (False, True)]


class Broken(Planning):
    """Fails in one way as long as `fails`."""

    fails = ""

    def ask(self, asked: Propose, state: LoadState, stock: Stock) -> None:
        if self.fails == "defect":
            raise ZeroDivisionError("float division by zero")
        super().ask(asked, state, stock)

    def answer(self) -> Proposal:
        if self.fails == "killed":
            return Proposal(self.asked.number, Kind.FAILED, summary="planning failed: killed")
        return super().answer()


@pytest.mark.parametrize(("fails", "level"), [("killed", "warning"), ("defect", "error")])
def test_a_search_that_fails_is_reported_and_begun_again_after_a_pause(
    load: Load, monkeypatch: pytest.MonkeyPatch, fails: str, level: str
) -> None:
    monkeypatch.setattr(Broken, "fails", fails)
    load.follow(lambda: Broken(load.fleet.files))
    load.run([45] * 30 + [150] * 40)
    assert 1 <= len(load.told) <= 2
    assert {event.level for event in load.told} == {level}
    assert load.fleet.applied == []
    monkeypatch.setattr(Broken, "fails", "")
    load.run([150] * 120)
    assert load.fleet.applied == ["following the load"]


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_search_ends_where_another_command_changes_the_plan(load: Load, gpus: int) -> None:
    load.follow(Search)
    load.run([45] * 30 + [150] * 20)
    new = plan(50.0 if gpus == 2 else 60.0, gpus)
    files = load.fleet.files
    rewrite(files.directory / "plan.json", lambda: files.write_plans(new, None))
    load.run([150])
    assert load.searches[0].closed
    load.run([150] * 30)
    assert [search.closed for search in load.searches] == [True, False], "one search at a time"
    assert load.told == []
    load.close()
    assert load.searches[1].closed


@pytest.mark.parametrize("asked", [False, True])
def test_a_search_ends_where_the_load_is_not_followed_any_more(load: Load, asked: bool) -> None:
    load.follow(Search)
    load.run([45] * 30 + [150] * 20 * asked)
    assert [(search.closed, search.asked) for search in load.searches] == [(False, asked)]
    load.stop_following()
    load.run([150] * 30)
    assert [search.closed for search in load.searches] == [True]
    assert (load.told, load.fleet.applied) == ([], [])


def answers(arrived_s: Sequence[float], latency_ms: float, endpoint: str = "a") -> list[Answer]:
    return [Answer(at + latency_ms / 1000.0, latency_ms, False, endpoint, "s") for at in arrived_s]


def test_a_second_counts_what_arrived_in_it() -> None:
    arrivals = Arrivals(100.0)
    arrivals.add(answers([100.1, 100.5, 100.95, 101.2], 100.0))
    assert arrivals.complete(101.4, 0.0) == []
    assert arrivals.complete(101.7, 0.0) == [{"a": 3}]
    assert arrivals.complete(103.0, 0.0) == [{"a": 1}]


def test_an_overload_shows_the_rate_that_arrives_and_not_the_rate_that_is_served() -> None:
    arrivals, found = Arrivals(0.0), []
    # 100 arrive each second and 50 are served: the one that arrives at s ends at 2 s.
    every = [Answer(2.0 * s, 1000.0 * s, False, "a", "s") for s in (i / 100.0 for i in range(1, 1000))]
    for now in range(1, 13):
        arrivals.add([a for a in every if now - 1 < a.ended_s <= now])
        found += arrivals.complete(float(now), 0.0)
    assert len(found) >= 4
    assert all(counts is not None and abs(counts["a"] - 100) <= 2 for counts in found)


def test_a_second_without_requests_is_a_zero_and_an_unseen_one_is_not() -> None:
    arrivals = Arrivals(10.0)
    assert arrivals.complete(13.6, heard_since_s=11.5) == [None, None, {}]


def test_a_request_that_ends_very_late_is_not_lost() -> None:
    arrivals = Arrivals(0.0)
    assert len(arrivals.complete(5.0, 0.0)) == 4
    arrivals.add(answers([1.0], 5000.0))
    assert [c for c in arrivals.complete(20.0, 0.0) if c] == [{"a": 1}]
