"""Which requests in flight a server that ends may still answer."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from asked_triton import asked_triton
from build import spec

from controlplane.control.guard.effects import DrainAndStop, Ending
from controlplane.domain.errors import EngineError, GatewayError
from controlplane.domain.fleet import (
    NOTHING_IN_FLIGHT,
    InFlight,
    Server,
    ServerState,
    ShareUsage,
)
from controlplane.runtime.controller import workers
from controlplane.runtime.controller.workers import Drain

SPEC = spec("W1", models=("w1",))
SERVER = Server("1", SPEC, ServerState.RUNNING, "127.0.0.1", 9, 9, 9)
GRACE_S = 2.0


@dataclass
class Gateway:
    open_now: InFlight | None = NOTHING_IN_FLIGHT

    def in_flight(self, backend: object) -> InFlight:
        if self.open_now is None:
            raise GatewayError("HAProxy does not answer")
        return self.open_now


@dataclass
class Engine:
    used_s: float | None = None

    def usage(self, server: Server) -> ShareUsage:
        if self.used_s is None:
            raise EngineError("the engine does not answer")
        return ShareUsage(None, None, self.used_s)


@dataclass
class Leaving:
    gateway: Gateway
    engine: Engine

    def drain(self, ending: Ending, port: int = 9) -> Drain:
        gateway: Any = self.gateway
        launcher: Any = self.engine
        how = DrainAndStop("1", ending, patience_s=60.0)
        return Drain(replace(SERVER, http_port=port), how, gateway, launcher, answered_s=0.0)


@pytest.fixture
def leaving(monkeypatch: pytest.MonkeyPatch) -> Leaving:
    monkeypatch.setattr(workers, "_LIVE_S", 0.05)
    return Leaving(Gateway(), Engine())


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
