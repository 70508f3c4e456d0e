"""What the guard sees of servers: by their canaries, their counters, the log, and what the engine says."""

import itertools
import math
import time
from dataclasses import replace
from typing import Any

import pytest
from asked_triton import asked_triton
from observer_rig import (
    ANSWERED,
    SERVER,
    SPEC,
    Clock,
    Requests,
    Rig,
    ended,
    observing,
    rested,
    state,
    verdict,
)

from controlplane.control.guard.effects import DrainAndStop, Ending
from controlplane.control.guard.observe import LOOK_S
from controlplane.control.guard.promise import Promise
from controlplane.control.guard.state import GuardState
from controlplane.domain.fleet import Delays, QuotaUse, Role
from controlplane.domain.observation import OUT_OF_MEMORY, Health, HostSeen, News
from controlplane.files.waiting import wait_until
from controlplane.monitor.records import Record
from controlplane.runtime.controller import answers as answers_module
from controlplane.runtime.controller import observer as observer_module
from controlplane.runtime.controller.probes import Outcome, Verdict

ASKED = ("w1/stats", "w3/config", "w3/infer", "w3/stats")
TWO = (Promise("w1", 100.0, 10.0), Promise("w2", 100.0, 10.0))
LEFT = ANSWERED._replace(http=0, bytes_out=0, ended_s=0.0, abandoned=True, held=True)


def suspected(found: GuardState) -> GuardState:
    watch = found.watches["W1"]
    late = watch.queues[0].late._replace(charts=(1e3,) * 4)
    watch = replace(watch, queues=(watch.queues[0]._replace(late=late), *watch.queues[1:]))
    return replace(found, watches={"W1": watch})


def fails(rig: Rig) -> None:
    """Let Triton's counters have shown that a model fails what waits in its queue, and goes on with it."""
    rig.observer._records[SERVER.name].signs.failed_s["w1"] = math.inf


def late(sent_s: float | None = None) -> Verdict:
    return verdict(Outcome.LATE, time.monotonic() if sent_s is None else sent_s, "w1", math.inf)


def test_a_shared_queue_has_its_models_times_and_is_tried_through_an_alias() -> None:
    shared = suspected(state(Promise("w1", 100.0, 10.0, aliases=("w2", "w3"))))
    with observing() as rig, asked_triton() as (port, asked):
        rig.requests = rig.observer._log._requests = Requests(answered=())
        spec = replace(SPEC, endpoints=("w1", "w2", "w3"))
        rig.workers.adopt(replace(SERVER, spec=spec, http_port=port))
        timed = lambda: rig.server(shared).compute_ms == pytest.approx(3.0)  # noqa: E731
        assert wait_until(timed, deadline_s=30.0)
        # A server that has answered no request yet gets a canary.
        wanted = {f"/v2/{path}" for path in ("health/live", *(f"models/{p}" for p in ASKED))}
        assert wait_until(lambda: set(asked) == wanted, deadline_s=30.0), asked
        assert wait_until(lambda: not rig.observer._canaries.is_under_way(SERVER.name), deadline_s=30.0)
        rig.workers.stop(DrainAndStop(SERVER.name, Ending.AT_ONCE, 60.0))
        rig.observer.look(shared)
        assert rig.observer._records == {}, "nothing is kept of what is stopped"
        assert rig.observer._canaries.take() == []


def test_a_server_that_no_longer_has_its_model_is_ending(rig: Rig) -> None:
    rig.answers(ANSWERED._replace(http=503, unloaded=True))
    assert rig.health() is Health.ENDING


def test_the_gravest_news_of_a_server_counts(rig: Rig) -> None:
    for told, seen in (
        (Health.IMPAIRED, Health.IMPAIRED),
        (Health.ENDING, Health.IMPAIRED),
        (Health.GONE, Health.GONE),
    ):
        rig.engine.news_.append(News((SERVER.name,), "told", health=told, certain=True))
        assert [rig.health(), rig.health()] == [seen] * 2


def test_a_process_that_ended_while_no_model_is_loaded_impairs_no_server(rig: Rig) -> None:
    rig.workers.adopt(SERVER, Health.UNLOADED)
    news = News((SERVER.name,), "a process of its models ended", health=Health.IMPAIRED, certain=True)
    rig.engine.news_.append(news)
    rig.health()
    rig.workers.adopt(SERVER)
    assert rig.health() is Health.READY


@pytest.mark.usefixtures("hangs")
@pytest.mark.parametrize("waits_for_its_core", [False, True])
def test_a_process_that_answers_nothing_while_requests_are_open_hangs(
    rig: Rig, waits_for_its_core: bool
) -> None:
    if waits_for_its_core:  # then it may be silent for longer
        began_s = time.monotonic()
        rig.engine.quota_use = lambda server: QuotaUse(1, 0.0, 10.0 * (time.monotonic() - began_s), 0.0)
        starved = Delays(starved=1.0, throttled=0.0)
        assert wait_until(lambda: rig.server().delays == starved, deadline_s=30.0)
    rig.gateway.streams, rig.requests.answered = 1, ()
    end = time.monotonic() + 1.0
    while waits_for_its_core and time.monotonic() < end:
        assert rig.health() is Health.READY
    assert wait_until(lambda: rig.health() is Health.HUNG, deadline_s=30.0)


@pytest.mark.usefixtures("hangs")
def test_a_process_that_goes_on_refusing_requests_does_not_hang(rig: Rig) -> None:
    (answered,) = rig.requests.answered
    rig.gateway.open, rig.requests.answered = 9, (answered._replace(http=503, refused=True),)
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        assert rig.health() is Health.READY
    assert rig.in_flight() == 9, "a refusal is no answer of the model: HAProxy is read"


def test_a_server_whose_model_is_busy_does_not_hang_and_is_seen_to_work(rig: Rig) -> None:
    with asked_triton() as (port, asked):
        rig.listen(port)
        rig.gateway.open, rig.requests.answered = 4, ()
        assert wait_until(lambda: rig.in_flight() == 4, deadline_s=30.0)
        assert wait_until(lambda: rig.server().progressed, deadline_s=30.0), "its counters move"
        assert rig.health() is Health.READY
    assert "/v2/models/w1/stats" in asked


CONTENDED = HostSeen(waiting=0.8)
ENOUGH, FOUR = 2, 4


@pytest.mark.parametrize(
    ("outcome", "waiting", "host", "canaries", "health"),
    [
        (Outcome.LATE, 0, None, ENOUGH, Health.FAILING),
        # It waits behind other requests.
        (Outcome.LATE, 1, None, ENOUGH, Health.READY),
        (Outcome.FAILED, 1, None, ENOUGH, Health.FAILING),
        (Outcome.SILENT, 0, None, ENOUGH, Health.HUNG),
        # What its process answers while requests are open is read from its counters.
        (Outcome.SILENT, 1, None, ENOUGH, Health.READY),
        (Outcome.REFUSED, 0, None, ENOUGH, Health.READY),
        (Outcome.UNKNOWN, 0, None, ENOUGH, Health.READY),
        (Outcome.ANSWERED, 0, None, ENOUGH, Health.READY),
        # On a contended host two late ones show no fault.
        (Outcome.LATE, 0, CONTENDED, ENOUGH, Health.READY),
        (Outcome.LATE, 0, CONTENDED, FOUR, Health.FAILING),
        (Outcome.SILENT, 0, CONTENDED, ENOUGH, Health.READY),
        (Outcome.SILENT, 0, CONTENDED, FOUR, Health.HUNG),
        (Outcome.FAILED, 0, CONTENDED, ENOUGH, Health.FAILING),
    ],
)
def test_canaries_that_fail_in_a_row_show_a_fault_unless_something_else_explains_it(
    rig: Rig, outcome: Outcome, waiting: int, host: HostSeen | None, canaries: int, health: Health
) -> None:
    rig.requests.answered, rig.gateway.open, rig.host.known = (), waiting, host
    assert rig.after(*(verdict(outcome, 1.0 + 2.0 * n) for n in range(canaries)))[-1] is health


def test_a_canary_that_is_late_while_clients_got_answers_shows_nothing(rig: Rig) -> None:
    assert rig.after(*[verdict(Outcome.LATE, 0.0)] * 3) == [Health.READY] * 3


@pytest.mark.parametrize(
    ("left", "outcome", "health"),
    [
        (LEFT, Outcome.LATE, Health.READY),
        (LEFT._replace(server=""), Outcome.LATE, Health.READY),
        (LEFT, Outcome.FAILED, Health.FAILING),
        # Also while its models work, a process answers calls that run none.
        (LEFT, Outcome.SILENT, Health.HUNG),
        (LEFT._replace(endpoint="w2"), Outcome.LATE, Health.FAILING),
    ],
)
def test_a_canary_waits_behind_what_a_client_has_left(
    rig: Rig, left: Record, outcome: Outcome, health: Health
) -> None:
    rig.without_canaries()
    rig.answers(left._replace(ended_s=time.time()))
    assert rig.after(*(verdict(outcome, s, "w1") for s in (1.0, 3.0, 5.0)))[-1] is health


@pytest.mark.parametrize(
    ("began_s", "endpoint", "health"),
    [(0.1, "w1", Health.FAILING), (-0.1, "w1", Health.READY), (0.1, "w2", Health.READY)],
)
def test_what_a_client_left_is_over_once_a_later_request_of_its_queue_was_answered(
    rig: Rig, began_s: float, endpoint: str, health: Health
) -> None:
    rig.without_canaries()
    left_s, took_ms = time.time() - 10.0, 1000.0 * (5.0 - began_s)
    rig.answers(LEFT._replace(ended_s=left_s))
    rig.answers(ANSWERED._replace(endpoint=endpoint, ended_s=left_s + 5.0, latency_ms=took_ms))
    now = time.monotonic()
    assert rig.after(*(verdict(Outcome.LATE, now + s, "w1") for s in (0.0, 2.0)))[-1] is health


def test_what_a_client_left_is_over_once_a_canary_was_answered(rig: Rig) -> None:
    rig.without_canaries()
    rig.answers(LEFT._replace(ended_s=time.time()))
    now = time.monotonic()
    outcomes = (Outcome.LATE, Outcome.LATE, Outcome.ANSWERED, Outcome.LATE, Outcome.LATE)
    seen = rig.after(*(verdict(outcome, now + after_s, "w1") for after_s, outcome in enumerate(outcomes)))
    assert seen == [*4 * [Health.READY], Health.FAILING]


@pytest.mark.parametrize("outcome", [Outcome.LATE, Outcome.REFUSED])
@pytest.mark.parametrize("works", [False, True])
def test_a_model_that_hangs_beside_one_that_answers_is_found_by_its_canaries(
    rig: Rig, outcome: Outcome, works: bool
) -> None:
    canaries = rig.without_canaries()
    missed = verdict(outcome, time.monotonic() - 61.0, "w1", 61.0)
    rig.gateway.open = 5
    with asked_triton(executions=10 if works else 0, failures=1) as (port, _):
        server = rig.listen(port)
        rig.workers.adopt(replace(server, spec=replace(SPEC, endpoints=("w1", "w2"))))
        rig.requests.answered = (rig.requests.answered[0]._replace(endpoint="w2"),)

        def hangs() -> bool:
            canaries.ended = [(SERVER.name, missed)]
            return rig.health(state(*TWO)) is Health.HUNG

        assert wait_until(hangs, deadline_s=1.0 if works else 30.0) is not works


F, B, OK = 500, 400, 200


@pytest.mark.parametrize(
    ("statuses", "seen", "health"),
    [
        ((F,) * 5, "", Health.FAILING),
        ((F,) * 4, "", Health.READY),
        # A bad request may be answered without the model.
        ((F, B, F, F, B, F, F), "", Health.FAILING),
        ((B,) * 9, "", Health.READY),
        ((F, F, F, OK, F, F), "", Health.READY),
        ((F,) * 5, "the server before failed them too", Health.READY),
        ((OK, *(F,) * 5), "the server before failed them too", Health.FAILING),
        # What did not wait as the canary does shows nothing of it.
        ((F,) * 5, "refused at once", Health.READY),
        ((F,) * 5, "not counted by the model", Health.READY),
        ((F,) * 5, "the model works", Health.READY),
    ],
)
def test_a_late_canary_of_a_server_that_only_fails_is_a_failed_one(
    rig: Rig, statuses: tuple[int, ...], seen: str, health: Health
) -> None:
    present = state()
    if seen.startswith("the server before"):
        left = replace(present.watches["W1"], failed_s=time.monotonic())
        present = replace(present, watches={"W1": left})
    rig.gateway.open, sent = 9, late()
    rig.without_canaries()
    took_ms = 1.0 if seen == "refused at once" else 1000.0
    rig.answers(*(ended(status, took_ms=took_ms) for status in statuses), seen_by=present)
    if seen != "not counted by the model":
        fails(rig)
    if seen == "the model works":
        rig.observer._records[SERVER.name].signs.moved_s["w1"] = math.inf
    assert rig.after(sent, seen_by=present) == [health]


@pytest.mark.parametrize(("answered_after", "failing"), [(True, 0), (False, 5)])
def test_a_row_of_failures_ends_with_a_canary_that_is_answered_after_it(
    rig: Rig, answered_after: bool, failing: int
) -> None:
    canaries = rig.without_canaries()
    before_s = time.monotonic()
    rig.answers(*[ended(F)] * 5)
    assert rig.server().failing == 5
    sent_s = time.monotonic() if answered_after else before_s
    canaries.ended = [(SERVER.name, verdict(Outcome.ANSWERED, sent_s))]
    assert rig.server().failing == failing


def test_the_answers_of_another_model_hide_no_failures(rig: Rig) -> None:
    shared = state(Promise("w1", 100.0, 10.0, aliases=("w2",)), Promise("w3", 100.0, 10.0))
    rig.workers.adopt(replace(SERVER, spec=replace(SPEC, endpoints=("w1", "w2", "w3"))))
    rig.answers(ended(F), ended(OK, "w3"), ended(F, "w2"), ended(OK, "w3"), seen_by=shared)
    assert rig.server(shared).failing == 2
    rig.answers(ended(OK, "w2"), seen_by=shared)
    assert rig.server(shared).failing == 0


def test_a_canary_has_as_long_as_its_model_may_take(rig: Rig) -> None:
    canaries, slow = rig.without_canaries(), state(Promise("w1", 60_000.0, 10.0))
    for seen_by, records in ((state(), ()), (slow, ()), (slow, [ended(F)] * 5), (slow, None)):
        if records is None:
            fails(rig)
        rig.answers(*records or (), seen_by=seen_by)
        rig.observer.probe(SERVER.name)
    given = [call.args[-1] for _, call in canaries.sent]
    # What Triton refuses without the model says nothing of it.
    assert [s for s, _ in itertools.groupby(given)] == [2.0, 120.0, 2.0]


def test_a_server_about_which_nothing_is_new_is_what_it_was(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.health()
    rig.requests.answered = ()
    looked_at: list[str] = []
    monkeypatch.setattr(rig.observer, "_look_at", lambda name, now: looked_at.append(name))
    assert rig.health(rested()) is Health.READY
    assert looked_at == []


def test_one_that_rests_is_still_seen_to_end_and_to_fail(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.health()
    rig.requests.answered = ()
    monkeypatch.setattr(observer_module, "CANARY_EVERY_S", 0.0)
    assert wait_until(lambda: rig.health(rested()) is Health.FAILING, deadline_s=30.0)
    rig.engine.news_.append(News((SERVER.name,), "died"))
    assert wait_until(lambda: rig.health(rested()) is Health.GONE, deadline_s=30.0)


def test_a_server_of_which_one_model_rests_gets_canaries(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    canaries = rig.without_canaries()
    monkeypatch.setattr(observer_module, "CANARY_EVERY_S", 0.0)
    rig.workers.adopt(replace(SERVER, spec=replace(SPEC, endpoints=("w1", "w2"))))
    assert wait_until(lambda: (rig.health(state(*TWO)), canaries.sent)[1] != [], deadline_s=30.0)


def canaries_of(rig: Rig, clock: Clock, seconds: int, *specs: Any) -> list[str]:
    """The servers that get a canary while they rest for so long."""
    canaries = rig.without_canaries()
    rig.requests.answered, rig.observer._looked_s = (), clock.now_s
    for spec in specs:
        rig.workers.adopt(replace(SERVER, spec=spec))
    for _ in range(5 * seconds):
        rig.observer.look(rested())
        clock.now_s += 0.2
    return [name for name, _ in canaries.sent]


def test_a_large_fleet_gets_no_more_canaries_a_second_than_a_small_one(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer_module, "time", clock := Clock())
    specs = [replace(SPEC, labels=replace(SPEC.labels, partition=f"P{n}")) for n in range(1000)]
    asked = canaries_of(rig, clock, 45, *specs)
    assert set(asked) == {SERVER.name, *(spec.name for spec in specs)}
    assert len(asked) <= observer_module.CANARIES_RPS * (45 + 1)


@pytest.mark.parametrize("of", [SPEC.labels.partition, "shared by several"])
def test_a_shadow_gets_half_as_many_canaries_as_an_active_server_that_rests(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    monkeypatch.setattr(observer_module, "time", clock := Clock())
    shadow = replace(SPEC, labels=replace(SPEC.labels, partition=of, role=Role.SHADOW, revision="2"))
    asked = canaries_of(rig, clock, 60, shadow)
    assert asked.count(shadow.name) == pytest.approx(0.5 * asked.count(SERVER.name), abs=1)


def test_a_look_says_what_delays_a_server_and_how_the_host_treats_the_gateway(rig: Rig) -> None:
    rig.host.known = CONTENDED
    readings = itertools.count()
    rig.engine.quota_use = lambda server: QuotaUse(1, n := float(next(readings)), 3.0 * n, 2.0 * n)
    delays = Delays(starved=0.25, throttled=0.5)
    assert wait_until(lambda: rig.server().delays == delays, deadline_s=30.0)
    assert rig.observer.look(state()).host == CONTENDED


@pytest.mark.parametrize(("counted", "times"), [(None, 3), (QuotaUse(1, 1.0, 0.0, 0.0), 30)])
def test_what_delays_a_server_is_read_rarely_where_nothing_counts_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, counted: QuotaUse | None, times: int
) -> None:
    clock = Clock()
    for module in (observer_module, answers_module):
        monkeypatch.setattr(module, "time", clock)
    rig.engine.quota_use = lambda server: counted
    asked_s = set()
    monkeypatch.setattr(rig.observer._open, "due", lambda *_: set())
    rig.answers(seen_by=rested())
    rig.observer._log._gave_all_s = clock.now_s
    for _ in range(30):
        clock.now_s += 1.001
        rig.answers(ANSWERED._replace(ended_s=clock.time()), seen_by=rested())
        clock.now_s += 1.25 * LOOK_S  # it was alone
        assert len(rig.answers(seen_by=rested())) == 1
        asked_s.add(rig.observer._quotas.asked_s(SERVER.name))
        assert wait_until(lambda: not rig.observer._quotas.is_under_way(SERVER.name), deadline_s=30.0)
    assert len(asked_s) == pytest.approx(times, abs=1)


def test_a_server_that_ran_out_of_memory_leaves_its_limit_for_the_next_one(rig: Rig) -> None:
    rig.workers.adopt(replace(SERVER, spec=replace(SPEC, memory_limit_mb=100.0)))
    assert rig.health() is Health.READY
    assert rig.observer.exhausted_mb == {}
    news = News((SERVER.name,), f"{OUT_OF_MEMORY}: killed", health=Health.IMPAIRED, certain=True)
    rig.engine.news_.append(news)
    assert rig.health() is Health.IMPAIRED
    assert rig.observer.exhausted_mb == {"W1": 100.0}
