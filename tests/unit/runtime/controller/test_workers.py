"""Starts, drains and stops beside the loop: how long a server may take to end, and what is put off."""

import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from asked_triton import asked_triton
from fake_host import GatewayInMemory
from observer_rig import SERVER, SPEC, Rig

from controlplane.control.guard.effects import DrainAndStop, Ending, Launch, Load
from controlplane.domain.errors import EngineError, GatewayError
from controlplane.domain.fleet import (
    NOTHING_IN_FLIGHT,
    InFlight,
    Role,
    Route,
    Routes,
    Server,
    ServerSpec,
    ShareUsage,
)
from controlplane.domain.observation import Health
from controlplane.files.waiting import wait_until
from controlplane.ports import GivesWay
from controlplane.runtime.controller import workers
from controlplane.runtime.controller.workers import _THREADS, Drain, Workers, memory_limit_mb, spec_for
from controlplane.runtime.fleet.execute import Limits, backend

LATER = replace(SPEC, labels=replace(SPEC.labels, revision="r-1"))
LIMITS = Limits(drain_s=30.0, grace_s=2.0)


@pytest.mark.parametrize(
    ("planned", "later"),
    [(Role.ACTIVE, Role.SHADOW), (Role.SHADOW, Role.SHADOW), (Role.SHARED, Role.SHARED)],
)
def test_what_several_partitions_share_is_labelled_so_however_often_it_starts(
    planned: Role, later: Role
) -> None:
    one = replace(SPEC, labels=replace(SPEC.labels, role=planned))
    assert spec_for(Launch("W1", "W1.1", "cpu-0", 60.0, 1), one, "cpu-0").labels.role is later


class Engine:
    def __init__(self) -> None:
        self.stopped: list[float] = []
        self.may_start = threading.Event()

    def start(self, spec: ServerSpec, *, deadline_s: float, gives_way: GivesWay) -> Server:
        assert self.may_start.wait(60.0)
        raise EngineError("ended before it was ready")

    def stop(self, server: Server, *, drain_s: float) -> None:
        self.stopped.append(drain_s)


class Gateway(GatewayInMemory):
    def __init__(self, routes: Routes | None = None) -> None:
        super().__init__(routes)
        self.asked = 0
        self.owed = NOTHING_IN_FLIGHT

    def in_flight(self, backend: object) -> InFlight:
        self.asked += 1
        return self.owed


def workers_of(
    engine: Any, gateway: Any, failed: Callable[[str, str], None] = lambda subject, reason: None
) -> Workers:
    return Workers(engine, gateway, failed, LIMITS)


@pytest.mark.parametrize(
    ("ending", "allowed_s", "drained"),
    [
        (Ending.DRAINED, 30.0, True),
        (Ending.HUNG, 2.0, True),
        # One batch is refused, and what waits behind it goes to the shadow.
        (Ending.REFUSED, 1.0, False),
        (Ending.AT_ONCE, 0.0, False),
    ],
)
def test_only_who_serves_well_is_waited_for(ending: Ending, allowed_s: float, drained: bool) -> None:
    engine, answering = Engine(), Gateway()
    workers = workers_of(engine, answering)
    workers.adopt(SERVER)
    workers.stop(DrainAndStop(SERVER.name, ending, 60.0))
    workers.close(wait=True)
    assert engine.stopped == [allowed_s]
    assert (answering.asked > 0) is drained


@pytest.mark.parametrize("ending", [Ending.DRAINED, Ending.AT_ONCE])
def test_a_server_that_a_command_routes_to_again_while_it_drains_is_not_stopped(ending: Ending) -> None:
    engine = Engine()
    workers = workers_of(engine, Gateway({"w1": Route((backend(SERVER),))}))
    workers.adopt(SERVER)
    workers.stop(DrainAndStop(SERVER.name, ending, 60.0))
    workers.close(wait=True)
    assert engine.stopped == []


def test_a_server_that_was_taken_over_is_stopped_though_the_wait_for_it_never_began() -> None:
    engine = Engine()
    workers = workers_of(engine, Gateway())
    for n in range(_THREADS):
        spec = replace(SPEC, labels=replace(SPEC.labels, partition=f"W{n + 2}"))
        workers.launch(spec)
    workers.resume(SERVER)
    workers.stop(DrainAndStop(SERVER.name, Ending.AT_ONCE, 60.0))
    engine.may_start.set()
    workers.close(wait=True)
    assert engine.stopped == [0.0]


def test_a_server_that_drains_holds_no_thread_and_is_stopped_when_it_has_drained() -> None:
    engine, answering = Engine(), Gateway()
    answering.owed = InFlight(streaming=1)
    workers = workers_of(engine, answering)
    for n in range(2 * _THREADS):
        server = replace(SERVER, spec=replace(SPEC, labels=replace(SPEC.labels, partition=f"W{n}")))
        workers.adopt(server)
        workers.stop(DrainAndStop(server.name, Ending.DRAINED, 60.0))
    assert wait_until(lambda: answering.asked >= 2 * _THREADS and workers.draining, deadline_s=30.0)
    assert engine.stopped == []
    answering.owed = NOTHING_IN_FLIGHT
    workers.retry(math.inf)
    workers.close(wait=True)
    assert len(engine.stopped) == 2 * _THREADS
    assert not workers.draining


def test_a_server_of_which_nobody_can_say_what_it_owes_is_not_left_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, answering, told = Engine(), Gateway(), list[str]()
    workers = workers_of(engine, answering, lambda subject, reason: told.append(reason))
    workers.adopt(SERVER)
    monkeypatch.setattr(answering, "in_flight", lambda backend: json.loads("half of an"))
    workers.stop(DrainAndStop(SERVER.name, Ending.DRAINED, 60.0))
    assert wait_until(lambda: told != [], deadline_s=30.0)
    monkeypatch.undo()
    workers.retry(math.inf)
    workers.close(wait=True)
    assert engine.stopped == [LIMITS.drain_s]


def test_after_one_ran_out_of_memory_the_next_server_gets_more_within_bounds() -> None:
    planned = replace(SPEC, memory_limit_mb=100.0)
    raised = replace(planned, memory_limit_mb=400.0)
    assert memory_limit_mb(planned, (), None) == 100.0
    assert memory_limit_mb(planned, (), 100.0) == 200.0
    assert memory_limit_mb(planned, (raised,), None) == 400.0, "as a new controller finds it"
    assert memory_limit_mb(planned, (raised,), 400.0) == 800.0
    assert memory_limit_mb(planned, (), 800.0) == 800.0, "a leak meets an end"
    elsewhere = replace(raised, labels=replace(SPEC.labels, partition="W2"))
    assert memory_limit_mb(planned, (elsewhere,), None) == 100.0
    assert memory_limit_mb(SPEC, (raised,), 400.0) is None


def leave_twenty(rig: Rig, ending: Ending) -> None:
    for n in range(20):
        old = replace(SPEC, labels=replace(SPEC.labels, partition=f"P{n}"))
        rig.workers.adopt(replace(SERVER, spec=old))
        rig.workers.stop(DrainAndStop(old.name, ending, 60.0))


def test_a_start_that_fails_as_none_should_is_one_that_failed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object, **__: object) -> Server:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(rig.engine, "start", start)
    rig.workers.launch(LATER)
    rig.workers.close(wait=True)
    found = rig.workers.conditions()[LATER.name]
    assert (found.health, found.reason) == (Health.GONE, "can't start new thread")


@pytest.mark.parametrize(("taken_over", "stopped"), [([], [SERVER.name]), ([SERVER.name], [])])
def test_what_starts_while_the_fleet_is_adopted_anew_is_stopped_unless_it_was_seen(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, taken_over: list[str], stopped: list[str]
) -> None:
    may, begun = threading.Event(), threading.Event()
    monkeypatch.setattr(rig.engine, "start", lambda *_, **__: (begun.set(), may.wait(60.0), SERVER)[-1])
    rig.workers.launch(replace(SPEC, endpoints=()))
    assert begun.wait(60.0)
    rig.workers.hand_over(taken_over)
    may.set()
    rig.workers.close(wait=True)
    assert rig.engine.stopped == stopped


def test_a_start_waits_for_no_drain_and_a_drain_outlasts_a_gateway_that_is_away(rig: Rig) -> None:
    rig.gateway.open = 1
    leave_twenty(rig, Ending.DRAINED)
    rig.workers.launch(LATER)
    assert wait_until(lambda: rig.engine.starts == 1, deadline_s=30.0)
    rig.gateway.away = True
    asked = rig.gateway.asked

    def goes_on() -> None:
        rig.workers.retry(time.monotonic())

    assert wait_until(lambda: (goes_on(), rig.gateway.asked > asked + 25)[1], deadline_s=30.0)
    assert rig.engine.stopped == []
    assert [reason for reason in rig.failed if "stopped" in reason] == []
    rig.gateway.away, rig.gateway.open = False, 0
    assert wait_until(lambda: (goes_on(), len(rig.engine.stopped) == 20)[1], deadline_s=30.0)


def test_what_could_not_be_stopped_is_stopped_later(rig: Rig) -> None:
    rig.engine.away = True
    rig.workers.stop(DrainAndStop(SERVER.name, Ending.AT_ONCE, 60.0))
    assert wait_until(lambda: bool(rig.failed), deadline_s=30.0)
    rig.engine.away = False
    rig.workers.retry(0.0)
    assert rig.engine.stopped == [], "not at once: the engine has just failed"
    rig.workers.retry(1e12)
    assert wait_until(lambda: bool(rig.engine.stopped), deadline_s=30.0)


def test_a_warm_shadow_is_loaded_though_the_engine_answers_no_stop(rig: Rig) -> None:
    rig.engine.stuck = threading.Event()
    leave_twenty(rig, Ending.AT_ONCE)
    rig.workers.adopt(SERVER, Health.UNLOADED)
    rig.workers.load(Load(SERVER.name))
    # Nothing listens there: that the load was tried is all there is to see.
    tried = lambda: rig.workers.conditions()[SERVER.name].health is Health.GONE  # noqa: E731
    assert wait_until(tried, deadline_s=30.0)
    assert rig.engine.stopped == []


@pytest.mark.parametrize("wanted", [True, False])
def test_a_start_the_engine_is_away_for_is_put_off_as_long_as_it_is_wanted(rig: Rig, wanted: bool) -> None:
    def tried(starts: int) -> bool:
        rig.workers.retry(1e12)
        return rig.engine.starts >= starts

    rig.engine.away = True
    rig.workers.launch(LATER)
    assert wait_until(lambda: tried(3), deadline_s=30.0)
    assert rig.workers.conditions()[LATER.name].health is Health.STARTING
    assert rig.workers.conditions()[LATER.name].reason == "the engine does not answer"
    # Said by the thread of the first start, which may be the last to go on.
    assert wait_until(lambda: bool(rig.failed), deadline_s=30.0)
    assert len(rig.failed) == 1, "said once"
    if not wanted:
        rig.workers.stop(DrainAndStop(LATER.name, Ending.AT_ONCE, 60.0))
    rig.engine.away, starts = False, rig.engine.starts
    rig.workers.retry(1e12)
    rig.workers.close(wait=True)
    assert rig.engine.starts == starts + wanted
    found = rig.workers.conditions().get(LATER.name)
    assert (found.reason if found else None) == ("no such weights" if wanted else None)


GRACE_S = 2.0


@dataclass
class OpenNow:
    open_now: InFlight | None = NOTHING_IN_FLIGHT

    def in_flight(self, backend: object) -> InFlight:
        if self.open_now is None:
            raise GatewayError("HAProxy does not answer")
        return self.open_now


@dataclass
class Counting:
    used_s: float | None = None

    def usage(self, server: Server) -> ShareUsage:
        if self.used_s is None:
            raise EngineError("the engine does not answer")
        return ShareUsage(None, None, self.used_s)


@dataclass
class Leaving:
    gateway: OpenNow
    engine: Counting

    def drain(self, ending: Ending, port: int = 9) -> Drain:
        gateway: Any = self.gateway
        launcher: Any = self.engine
        how = DrainAndStop("1", ending, patience_s=60.0)
        return Drain(replace(SERVER, http_port=port), how, gateway, launcher, answered_s=0.0)


@pytest.fixture
def leaving(monkeypatch: pytest.MonkeyPatch) -> Leaving:
    monkeypatch.setattr(workers, "_LIVE_S", 0.05)
    return Leaving(OpenNow(), Counting())


@pytest.fixture
def deaf() -> Iterator[int]:
    """The port of a process that answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_a_server_without_requests_in_flight_has_drained(leaving: Leaving, deaf: int) -> None:
    for ending in (Ending.DRAINED, Ending.HUNG):
        assert not leaving.drain(ending, deaf).may_answer(0.0, GRACE_S)


@pytest.mark.parametrize("open_now", [InFlight(requests=1), InFlight(streaming=1), InFlight(sequences=1)])
def test_a_server_that_drains_may_answer_what_is_in_flight(leaving: Leaving, open_now: InFlight) -> None:
    leaving.gateway.open_now = open_now
    assert leaving.drain(Ending.DRAINED).may_answer(59.0, GRACE_S)


@pytest.mark.parametrize(
    ("ending", "open_now", "may_answer"),
    [
        (Ending.DRAINED, InFlight(requests=1), False),
        (Ending.DRAINED, InFlight(streaming=1), True),
        (Ending.DRAINED, InFlight(sequences=1), True),
        (Ending.DRAINED, None, False),
        (Ending.HUNG, InFlight(requests=1), False),
        (Ending.HUNG, InFlight(streaming=1), False),
    ],
)
def test_after_its_time_only_a_stream_keeps_a_server_that_does_not_hang(
    leaving: Leaving, ending: Ending, open_now: InFlight | None, may_answer: bool
) -> None:
    leaving.gateway.open_now = open_now
    assert leaving.drain(ending).may_answer(61.0, GRACE_S) is may_answer


def test_each_answer_gives_a_server_its_time_again(leaving: Leaving) -> None:
    drain = leaving.drain(Ending.DRAINED)
    for now_s, open_now in ((50.0, 3), (100.0, 2), (150.0, 1)):
        drain.in_flight = open_now + 1
        leaving.gateway.open_now = InFlight(requests=open_now)
        assert drain.may_answer(now_s, GRACE_S)
    assert not drain.may_answer(211.0, GRACE_S)


def test_a_gateway_that_does_not_answer_shows_nothing(leaving: Leaving) -> None:
    leaving.gateway.open_now = None
    assert leaving.drain(Ending.HUNG).may_answer(59.0, GRACE_S)


def test_a_silent_process_may_answer_while_it_uses_a_core(leaving: Leaving, deaf: int) -> None:
    leaving.gateway.open_now = InFlight(requests=1)
    drain = leaving.drain(Ending.HUNG, deaf)
    for used_s in (1.0, 2.0, 3.0):  # a large body keeps it from answering
        leaving.engine.used_s = used_s
        assert drain.may_answer(used_s, GRACE_S)
    assert not drain.may_answer(4.0, GRACE_S)


def test_a_silent_process_of_which_nothing_is_counted_has_a_moment(leaving: Leaving, deaf: int) -> None:
    leaving.gateway.open_now = InFlight(requests=1)
    drain = leaving.drain(Ending.HUNG, deaf)
    assert drain.may_answer(10.0, GRACE_S)
    assert drain.may_answer(11.9, GRACE_S)
    assert not drain.may_answer(12.0, GRACE_S)


def test_a_process_that_answers_again_drains(leaving: Leaving) -> None:
    leaving.gateway.open_now = InFlight(requests=1)
    leaving.engine.used_s = 1.0
    with asked_triton() as (port, _):
        drain = leaving.drain(Ending.HUNG, port)
        assert all(drain.may_answer(now_s, GRACE_S) for now_s in (1.0, 5.0, 10.0))


@pytest.mark.parametrize("executions", [0, 10])
def test_a_server_that_fails_some_requests_may_answer_the_others(leaving: Leaving, executions: int) -> None:
    leaving.gateway.open_now = InFlight(requests=9)
    with asked_triton(executions=executions, failures=1) as (port, _):
        drain = leaving.drain(Ending.HUNG, port)
        assert all(drain.may_answer(now_s, GRACE_S) for now_s in (1.0, 1.2, 1.4, 1.6))


def test_a_stream_that_goes_on_is_not_cut_though_no_request_ends(leaving: Leaving) -> None:
    leaving.gateway.open_now = InFlight(streaming=1)
    with asked_triton() as (port, _):
        drain = leaving.drain(Ending.HUNG, port)
        assert all(drain.may_answer(now_s, GRACE_S) for now_s in (1.0, 59.0, 118.0, 177.0))


def test_a_stream_without_a_token_ends_with_its_time(leaving: Leaving) -> None:
    leaving.gateway.open_now = InFlight(streaming=1)
    with asked_triton(executions=0) as (port, _):
        drain = leaving.drain(Ending.HUNG, port)
        assert drain.may_answer(59.0, GRACE_S)
        assert not drain.may_answer(61.0, GRACE_S)
