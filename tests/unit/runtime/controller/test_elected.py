"""A leader's dealings with its Fleet object; nothing runs."""

import hashlib
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fleet_object import PLAN, SETTINGS, Object, done, keeper, plan, wanting

from controlplane.domain.errors import EngineError, GatewayError, InputError, NotNow
from controlplane.domain.observation import Event, Guarding, WantedFleet
from controlplane.domain.plan import Plan, Violation
from controlplane.domain.serving import FollowLoad, Serving
from controlplane.files.documents import versioned
from controlplane.files.fleets import FleetSettings, read_guarding, write_guarding
from controlplane.files.following import Following
from controlplane.files.plans import plan_hash
from controlplane.runtime.controller import elected
from controlplane.runtime.controller.elected import Keeper, lead
from controlplane.runtime.fleet.preflight import ApplyRequest


def test_each_generation_is_applied_once_and_reported(tmp_path: Path) -> None:
    wanted = Object(wanting())
    made, deeds, _ = keeper(tmp_path, wanted)
    made.step()
    made.step()
    assert deeds.applied == [PLAN]
    (report,) = wanted.reports
    assert (report.applied, report.generation, report.plan) == (True, 1, plan_hash(PLAN))
    assert (report.partitions, report.devices) == (2, {"cpu-0": "b/cpu-0"})
    assert wanted.held
    wanted.now = replace(wanting(plan("a")), generation=2, applied=report.plan)
    made.step()
    assert deeds.applied == [PLAN, plan("a")]


def test_the_object_says_how_the_fleet_stands_and_what_happened(tmp_path: Path) -> None:
    wanted = Object(wanting())
    made, _, files = keeper(tmp_path, wanted)
    made.step()
    assert wanted.begun == [1]
    rests = Guarding("a", "guarded", 1.0, "s", True, 0, False, None)
    down = replace(rests, partition="b", phase="down")
    write_guarding(files.guarding, [rests, down])
    moved = Event(1.0, "warning", "redirect", "a", "dead")
    made.note(moved)
    for _ in range(3):
        made.step()
    (shown,) = wanted.shown
    assert (shown.ready, shown.partitions, shown.redirects, shown.trouble) == (1, 2, 1, "PartitionDown")
    assert [event.kind for event in wanted.events] == ["Applied", "redirect"]
    # Nothing is lost while the API server is away.
    wanted.refuses["announce"] = NotNow("the API server does not answer")
    made.note(moved)
    made.step()
    wanted.refuses.clear()
    made.step()
    assert wanted.events[2:] == [moved]
    assert wanted.shown[-1].redirects == 2


def test_an_event_that_is_refused_holds_up_nothing(tmp_path: Path) -> None:
    wanted = Object(wanting(SELECTS))
    made, _, _ = keeper(tmp_path, wanted)
    made.step()
    wanted.refuses["announce"] = EngineError("your Role lacks the rule")
    made.step()
    assert made.counts == {"cpu": 1}, "of the labels that the spec names"
    wanted.refuses.clear()
    moved = Event(1.0, "warning", "redirect", "a", "dead")
    made.note(moved)
    made.step()
    assert wanted.events == [moved]


def test_each_generation_and_each_new_object_says_anew_how_the_fleet_stands(tmp_path: Path) -> None:
    wanted = Object(wanting())
    made, _, _ = keeper(tmp_path, wanted)
    said = []
    for generation in (1, 2):
        wanted.now = replace(wanting(), generation=generation)
        made.step()
        made.step()
        said.append((len(wanted.shown), len(wanted.kept)))
    wanted.now = wanting(ending=True)
    made.step()
    wanted.now = wanting()
    made.step()
    made.step()
    said.append((len(wanted.shown), len(wanted.kept)))
    assert said == [(1, 1), (2, 2), (3, 3)]


def test_what_was_applied_is_reported_later_and_not_applied_again(tmp_path: Path) -> None:
    wanted = Object(wanting(FOLLOWS))
    made, deeds, _ = keeper(tmp_path, wanted)
    for apply, count in ((made.step, 1), (lambda: made.apply(ApplyRequest(MORE, SETTINGS)), 2)):
        wanted.refuses["report"] = NotNow("the API server does not answer")
        apply()
        made.step()
        assert (len(deeds.applied), len(wanted.reports)) == (count, count - 1)
        wanted.refuses.clear()
        made.step()
        assert (len(deeds.applied), len(wanted.reports)) == (count, count)
    assert wanted.reports[-1].plan == plan_hash(MORE)
    assert wanted.plans[-1] == versioned(MORE), "the next leader takes it over"


def test_an_apply_under_way_does_not_hold_up_the_end_of_a_leader(tmp_path: Path) -> None:
    made, deeds, files = keeper(tmp_path, Object(wanting()))
    deeds.may_end, stop = threading.Event(), threading.Event()
    fleet = done(files, deeds)
    leading = threading.Thread(target=lead, args=(made, lambda: None, fleet, stop), daemon=True)
    leading.start()
    assert deeds.begun.wait(10)
    stop.set()
    leading.join(10)
    ended = not leading.is_alive()
    deeds.may_end.set()
    assert ended


@pytest.mark.parametrize("where", ["look", "guard"])
def test_a_defect_ends_neither_looks_nor_guard_and_the_object_says_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(elected, "LOOK_S", 0.0)
    monkeypatch.setattr(elected, "_AGAIN_S", 0.0)
    wanted = Object(wanting())
    made, deeds, files = keeper(tmp_path, wanted)
    times, stop = iter([KeyError("defect"), KeyError("defect"), None]), threading.Event()

    def meet() -> None:
        if (defect := next(times)) is not None:
            raise defect
        stop.set()

    if where == "look":
        installed = made.installation
        made.installation = replace(installed, look=meet)
        made.keep(stop)
        made.installation = installed
    else:
        made.step()
        monkeypatch.setattr(made, "begin", lambda: None)
        fleet = done(files, deeds)
        lead(made, meet, fleet, stop)
    assert "KeyError: 'defect'" in "".join(deeds.said)
    assert wanted.degraded == [("Defect", "KeyError: 'defect'")], "once"
    assert [event.kind for event in wanted.events].count("defect") == 1
    made.step()
    made.step()
    assert (wanted.shown[-1].trouble, wanted.shown[-1].message) == wanted.degraded[0]
    monkeypatch.setattr(elected, "_DEFECT_S", 0.0)
    made.step()
    assert wanted.shown[-1].trouble is None


def test_a_guard_that_fails_again_and_again_ends_its_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elected, "LOOK_S", 0.0)
    wanted = Object(wanting())
    made, deeds, files = keeper(tmp_path, wanted)
    made.step()
    monkeypatch.setattr(made, "begin", lambda: None)
    fleet = done(files, deeds)
    errors = iter([GatewayError("taken"), EngineError("away"), GatewayError("taken"), GatewayError("taken")])
    stop = threading.Event()

    def fail() -> None:
        raise next(errors)

    with pytest.raises(GatewayError):
        lead(made, fail, fleet, stop)
    assert stop.is_set()
    assert len(wanted.degraded) == 1


def test_a_defect_of_the_object_leaves_the_one_that_is_met_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Object(wanting())
    made, deeds, _ = keeper(tmp_path, wanted)
    monkeypatch.setattr(wanted, "announce", None)
    meet(made, "first")
    assert "TypeError" in deeds.said[-1]
    assert len(wanted.degraded) == 1


def test_defects_that_alternate_are_said_once_and_again_after_they_were_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Object(wanting())
    made, _, _ = keeper(tmp_path, wanted)
    for defect in ("first", "second", "first", "second"):
        meet(made, defect)
    assert len(wanted.degraded) == 2
    later_s = time.monotonic() + 2 * elected._DEFECT_S
    monkeypatch.setattr(time, "monotonic", lambda: later_s)
    meet(made, "first")
    assert len(wanted.degraded) == 3


def meet(made: Keeper, defect: str) -> None:
    try:
        raise KeyError(defect)
    except KeyError:
        made.meet_defect()


def test_a_new_leader_takes_over_what_the_one_before_applied(tmp_path: Path) -> None:
    recorded = {"cpu-0": "a/cpu-0", "cpu-7": "b/cpu-0"}
    wanted = Object(wanting(applied=plan_hash(PLAN), devices=recorded, redirects=3))
    made, deeds, files = keeper(tmp_path, wanted)

    def settings_of(plan: Plan, devices: Mapping[str, str], runs: bool) -> FleetSettings:
        if not runs:
            raise NotNow("a node that has it is not ready")  # as that of the leader before
        return replace(SETTINGS, devices=dict(devices))

    made.installation = replace(made.installation, settings=settings_of)
    made.begin()
    made.step()
    # An apply would undo the guard's redirects.
    assert deeds.applied == []
    assert files.plan() == PLAN
    settings = files.settings()
    assert settings is not None
    assert settings.devices == {"cpu-0": "a/cpu-0"}, "those of the plan alone"
    assert wanted.reports[-1].applied
    made.step()
    assert wanted.shown[-1].redirects == 3


def test_the_next_leader_finds_which_shares_are_lent_and_how_servers_end(tmp_path: Path) -> None:
    wanted = Object(wanting())
    made, _, files = keeper(tmp_path, wanted)
    made.step()
    rests = Guarding("a", "guarded", 1.0, "s", True, 0, False, None, "cpu-0", 30.0, "f.a.active.1")
    lent = replace(rests, partition="b", active="f.b.shadow.1", lent=True)
    ending = replace(rests, ending={"f.a.active.0": "HUNG"})
    for phase in ("settling", "guarded"):
        write_guarding(files.guarding, [rests, replace(lent, phase=phase)])
        made.step()
    write_guarding(files.guarding, [ending, lent])
    made.step()
    assert wanted.kept == [(replace(lent, phase="settling"),), (ending, lent)]
    wanted.now = wanting(applied=plan_hash(PLAN), guarding=wanted.kept[-1])
    following, _, _ = keeper(tmp_path, wanted)
    following.begin()
    following.step()
    assert read_guarding(files.guarding) == (ending, lent)
    following.step()
    assert len(wanted.kept) == 3
    write_guarding(files.guarding, [rests])
    following.step()
    assert wanted.kept[-1] == ()


def test_a_leader_begins_without_the_files_of_its_earlier_leadership(tmp_path: Path) -> None:
    wanted = Object(wanting())
    made, _, files = keeper(tmp_path, wanted)
    made.step()
    again, _, _ = keeper(tmp_path, wanted)
    again.begin()
    assert not files.exists()


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"schema_version": 1}, "spec.plan: strategy: is missing"),
        (versioned(replace(PLAN, violations=(Violation("a", "late"),))), "allowViolations"),
    ],
)
def test_a_plan_that_cannot_be_applied_is_reported_once(
    tmp_path: Path, document: dict[str, Any], message: str
) -> None:
    wanted = Object(WantedFleet(document, 1))
    made, deeds, _ = keeper(tmp_path, wanted)
    made.step()
    made.step()
    (report,) = wanted.reports
    assert (report.applied, report.reason) == (False, "Invalid")
    assert message in report.message
    assert deeds.applied == []


def test_a_failed_apply_is_reported_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elected, "_AGAIN_S", 0.0)
    wanted = Object(wanting())
    made, deeds, _ = keeper(tmp_path, wanted)
    deeds.fails = EngineError("no node takes it")
    made.step()
    made.step()
    assert deeds.said == ["no node takes it"]
    assert (wanted.reports[-1].reason, wanted.reports[-1].message) == ("Failed", "no node takes it")
    deeds.fails = None
    made.step()
    assert wanted.reports[-1].applied


def test_an_api_server_that_is_away_changes_nothing_and_is_said_once(tmp_path: Path) -> None:
    wanted = Object(wanting(), away=True)
    made, deeds, _ = keeper(tmp_path, wanted)
    made.step()
    made.step()
    assert deeds.said == ["the API server does not answer"]
    wanted.away = False
    made.step()
    assert deeds.applied == [PLAN]


def following(gpus: str) -> Plan:
    spec = f"schema_version: 1\n{gpus}\nworkloads: [{{name: W, model: m, slo_ms: 300, rate_rps: 25}}]\n"
    code = hashlib.sha256(spec.encode()).hexdigest()
    return replace(PLAN, serve=Serving(follow_load=FollowLoad(40.0)), spec=spec, spec_sha256=code)


FOLLOWS = following("gpus: [{type: cpu}]")
MORE = replace(plan("a", "b", "c"), serve=FOLLOWS.serve, spec=FOLLOWS.spec, spec_sha256=FOLLOWS.spec_sha256)
SELECTS = following("gpus: [{type: cpu, node_selector: {pool: a}}]")


def test_a_fleet_that_follows_its_load_has_the_profiles_that_came_with_the_plan(tmp_path: Path) -> None:
    wanted = Object(wanting(FOLLOWS), given={"cpu/m.json": "{}"})
    made, _, files = keeper(tmp_path, wanted)
    made.step()
    assert files.following.settings() == Following(follow=True, dwell_s=40.0)
    learned = files.following.profiles / "cpu" / "m.json"
    assert learned.read_text() == "{}"
    learned.write_text("learned")
    wanted.now = replace(wanting(FOLLOWS), generation=2)
    made.step()
    assert learned.read_text() == "learned", "the same profiles keep what was learned"
    wanted.given = {"../m.json": "{}"}
    wanted.now = replace(wanting(FOLLOWS), generation=3)
    made.step()
    assert wanted.reports[-1].reason == "Invalid"


def test_the_next_leader_goes_on_with_the_plan_that_followed_the_load(tmp_path: Path) -> None:
    wanted = Object(wanting(FOLLOWS))
    made, _, files = keeper(tmp_path, wanted)
    made.step()
    made.apply(ApplyRequest(MORE, SETTINGS))
    assert wanted.reports[-1].plan == plan_hash(MORE)
    wanted.now = wanting(FOLLOWS, applied=plan_hash(MORE), devices=SETTINGS.devices)
    following, deeds, _ = keeper(tmp_path, wanted)
    following.begin()
    following.step()
    assert (deeds.applied, files.plan()) == ([], MORE)
    # One that was cut off is completed.
    wanted.now = wanting(FOLLOWS, applied=plan_hash(FOLLOWS), devices=SETTINGS.devices)
    following, deeds, _ = keeper(tmp_path, wanted)
    following.begin()
    following.step()
    assert deeds.applied == [MORE]
    # A new generation is a person's: it counts from now on.
    wanted.now = replace(wanting(plan("a")), generation=2)
    following.step()
    assert deeds.applied[-1] == plan("a")


def test_a_followed_plan_that_fails_is_not_left_for_the_next_leader(tmp_path: Path) -> None:
    wanted = Object(wanting(FOLLOWS))
    made, deeds, _ = keeper(tmp_path, wanted)
    made.step()
    deeds.fails = EngineError("no node takes it")
    with pytest.raises(EngineError):
        made.apply(ApplyRequest(MORE, SETTINGS))
    assert wanted.plans[-1] == versioned(FOLLOWS)


def test_a_followed_plan_whose_devices_are_gone_gives_way_to_the_objects_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Object(wanting(FOLLOWS))
    wanted.follow(versioned(MORE), 1)
    made, deeds, _ = keeper(tmp_path, wanted)
    deeds.fails = InputError("there are 1: a/cpu-0", field="cpu-1")
    made.step()
    assert (wanted.plans[-1], wanted.reports) == (None, [])
    deeds.fails = None
    made.step()
    assert deeds.applied == [FOLLOWS]


def test_a_followed_plan_that_cannot_be_read_gives_way_to_the_objects_own(tmp_path: Path) -> None:
    wanted = Object(wanting(FOLLOWS))
    wanted.refuses["followed"] = InputError("cannot be read", file="ConfigMap f-following")
    made, deeds, _ = keeper(tmp_path, wanted)
    made.step()
    assert (deeds.applied, wanted.plans[-1]) == ([FOLLOWS], None)
    made.step()
    first, _ = wanted.events
    assert (first.level, first.kind) == ("warning", "load")


def test_a_deleted_object_is_let_go_after_its_servers(tmp_path: Path) -> None:
    wanted = Object(wanting(ending=True), held=True)
    made, deeds, _ = keeper(tmp_path, wanted)
    made.step()
    assert (deeds.destroyed, wanted.held) == (1, False)
    made.step()
    assert deeds.destroyed == 1
