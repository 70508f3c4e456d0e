"""How long a server may take to end, by why it ends."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import replace
from typing import Any

import pytest
from build import spec

from controlplane.control.guard.effects import DrainAndStop, Ending, Launch
from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import (
    NOTHING_IN_FLIGHT,
    InFlight,
    Role,
    Route,
    Routes,
    Server,
    ServerSpec,
    ServerState,
)
from controlplane.files.waiting import wait_until
from controlplane.ports import GivesWay
from controlplane.runtime.controller.workers import _THREADS, Workers, memory_limit_mb, spec_for
from controlplane.runtime.fleet.execute import Limits, backend

SPEC = spec("W1", models=("w1",))
SERVER = Server("1", SPEC, ServerState.RUNNING, "127.0.0.1", 9, 9, 9)
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


class Gateway:
    def __init__(self, routes: Routes | None = None) -> None:
        self.asked = 0
        self.owed = NOTHING_IN_FLIGHT
        self.present = routes or {}

    def routes(self) -> Routes:
        return self.present

    def discount(self, server: str, counters: object) -> None:
        pass

    def in_flight(self, backend: object) -> InFlight:
        self.asked += 1
        return self.owed


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
    launcher: Any = engine
    gateway: Any = answering
    workers = Workers(launcher, gateway, lambda subject, reason: None, LIMITS)
    workers.adopt(SERVER)
    workers.stop(DrainAndStop(SERVER.name, ending, 60.0))
    workers.close(wait=True)
    assert engine.stopped == [allowed_s]
    assert (answering.asked > 0) is drained


@pytest.mark.parametrize("ending", [Ending.DRAINED, Ending.AT_ONCE])
def test_a_server_that_a_command_routes_to_again_while_it_drains_is_not_stopped(ending: Ending) -> None:
    engine: Any = Engine()
    gateway: Any = Gateway({"w1": Route((backend(SERVER),))})
    workers = Workers(engine, gateway, lambda subject, reason: None, LIMITS)
    workers.adopt(SERVER)
    workers.stop(DrainAndStop(SERVER.name, ending, 60.0))
    workers.close(wait=True)
    assert engine.stopped == []


def test_a_server_that_was_taken_over_is_stopped_though_the_wait_for_it_never_began() -> None:
    engine: Any = Engine()
    gateway: Any = Gateway()
    workers = Workers(engine, gateway, lambda subject, reason: None, LIMITS)
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
    launcher: Any = engine
    gateway: Any = answering
    answering.owed = InFlight(streaming=1)
    workers = Workers(launcher, gateway, lambda subject, reason: None, LIMITS)
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
    engine, told = Engine(), list[str]()
    launcher: Any = engine
    answering: Any = Gateway()
    workers = Workers(launcher, answering, lambda subject, reason: told.append(reason), LIMITS)
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
