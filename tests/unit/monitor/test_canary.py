from __future__ import annotations

import socket
import threading

import pytest
from asked_triton import asked_triton
from no_descriptors import without_descriptors

from controlplane.domain.fleet import Labels, Role, Server, ServerSpec, ServerState
from controlplane.files.waiting import wait_until
from controlplane.monitor import canary
from controlplane.monitor.canary import Canaries, Outcome

pytestmark = pytest.mark.unit


SPEC = ServerSpec(Labels("f", "p", "W1", Role.ACTIVE, "r"), "/r", ("w1",), "cpu-0", 50.0)


def server_at(port: int) -> Server:
    return Server("1", SPEC, ServerState.RUNNING, "127.0.0.1", port, 9, 9)


def outcome(server: Server, deadline_s: float = 30.0) -> Outcome:
    canaries = Canaries()
    canaries.ask(server, SPEC.endpoints, deadline_s=deadline_s)
    assert wait_until(lambda: canaries.verdict(server.name) is not None, deadline_s=30.0)
    assert canaries.finished() == {server.name}
    canaries.close()
    verdict = canaries.verdict(server.name)
    assert verdict is not None
    return verdict.outcome


def test_an_answer_that_is_none_is_a_failure() -> None:
    with asked_triton(config={"input": [{"name": "x"}]}) as (port, _):
        assert outcome(server_at(port)) is Outcome.FAILED


def test_an_answer_is_one() -> None:
    with asked_triton() as (port, _):
        assert outcome(server_at(port)) is Outcome.ANSWERED


def test_a_full_queue_is_an_answer() -> None:
    with asked_triton(refusal="[request id: 1] Exceeds maximum queue size") as (port, _):
        assert outcome(server_at(port)) is Outcome.ANSWERED


def test_a_model_that_is_not_there_is_no_answer() -> None:
    with asked_triton(refusal="Request for unknown model: 'w1' version 1 is not at ready state") as (port, _):
        assert outcome(server_at(port)) is Outcome.FAILED


def test_a_model_that_takes_longer_is_late_and_a_process_that_answers_nothing_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with asked_triton(inference=threading.Event()) as (port, _):
        assert outcome(server_at(port), deadline_s=0.05) is Outcome.LATE
    monkeypatch.setattr(canary, "LIVE_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        assert outcome(server_at(deaf.getsockname()[1])) is Outcome.SILENT


def test_a_canary_that_this_process_cannot_send_says_nothing() -> None:
    with asked_triton() as (port, _), without_descriptors():
        canaries = Canaries()
        canaries.ask(server_at(port), SPEC.endpoints, deadline_s=30.0)
        canaries._pool.shutdown()
    verdict = canaries.verdict("1")
    assert verdict is None or verdict.outcome is Outcome.UNKNOWN


def test_a_canary_under_way_to_a_server_that_is_forgotten_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(canary, "LIVE_S", 0.2)
    canaries = Canaries()
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        server = server_at(deaf.getsockname()[1])
        canaries.ask(server, SPEC.endpoints, deadline_s=0.2)
        canaries.forget(server.name)
        canaries._pool.shutdown()
    assert canaries.verdict(server.name) is None
