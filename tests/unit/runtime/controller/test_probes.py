"""What servers are asked to know whether they live."""

import socket
import threading
from collections import Counter

import pytest
from asked_triton import asked_triton
from build import spec
from no_descriptors import without_descriptors

from controlplane import sockets
from controlplane.domain.fleet import Server, ServerState
from controlplane.runtime.controller import probes
from controlplane.runtime.controller.probes import Outcome, Readings, read_counters, send_canary
from controlplane.triton import client

SPEC = spec("W1", models=("w1",))


def server_at(port: int) -> Server:
    return Server("1", SPEC, ServerState.RUNNING, "127.0.0.1", port, 9, 9)


def nothing(counters: object) -> None:
    """Leave nothing out."""


def outcome(server: Server, deadline_s: float = 30.0) -> Outcome:
    return send_canary(server, SPEC.endpoints, {}, nothing, deadline_s).outcome


def test_an_answer_that_is_none_is_a_failure() -> None:
    with asked_triton(config={"input": [{"name": "x"}]}) as (port, _):
        assert outcome(server_at(port)) is Outcome.FAILED


@pytest.mark.parametrize(
    ("refusal", "found"),
    [
        ("", Outcome.ANSWERED),
        ("[request id: 1] Exceeds maximum queue size", Outcome.REFUSED),
        ("Request for unknown model: 'w1' version 1 is not at ready state", Outcome.FAILED),
    ],
)
def test_a_full_queue_refuses_and_a_model_that_is_not_there_fails(refusal: str, found: Outcome) -> None:
    with asked_triton(refusal=refusal) as (port, _):
        assert outcome(server_at(port)) is found


def test_what_a_canary_sends_is_made_once() -> None:
    samples: dict[str, probes.SampleRequest] = {}
    with asked_triton() as (port, asked):
        for _ in range(2):
            send_canary(server_at(port), SPEC.endpoints, samples, nothing, 30.0)
    assert asked.count("/v2/models/w1/config") == 1
    assert asked.count("/v2/models/w1/infer") == 2


def test_a_canary_takes_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[socket.socket] = []

    def connecting(host: str, port: int, timeout_s: float) -> socket.socket:
        opened.append(sockets.connect(host, port, timeout_s))
        return opened[-1]

    monkeypatch.setattr(client, "connect", connecting)
    with asked_triton() as (port, _):
        assert outcome(server_at(port)) is Outcome.ANSWERED
    assert len(opened) == 1


def test_a_model_that_takes_longer_is_late_and_a_process_that_answers_nothing_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with asked_triton(inference=threading.Event()) as (port, _):
        assert outcome(server_at(port), deadline_s=0.05) is Outcome.LATE
    monkeypatch.setattr(probes, "LIVE_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        assert outcome(server_at(deaf.getsockname()[1])) is Outcome.SILENT


def test_a_canary_that_this_process_cannot_send_says_nothing() -> None:
    with asked_triton() as (port, _), without_descriptors():
        assert outcome(server_at(port)) is Outcome.UNKNOWN


def test_only_readings_without_an_answer_in_time_are_silence() -> None:
    signs, gone = probes.Signs(), read_counters(server_at(1), ["w1"])
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        late = read_counters(server_at(deaf.getsockname()[1]), ["w1"], 0.05)
    found = []
    for reading in (gone, late, late):
        signs.take(reading)
        found.append(signs.silent)
    assert found == [0, 1, 2]


def test_counters_that_only_count_failures_are_no_sign_of_life() -> None:
    signs = probes.Signs()
    with asked_triton(executions=0, failures=1) as (port, _):
        for _ in range(3):
            signs.take(read_counters(server_at(port), ["w1"]))
    assert signs.read_s > 0.0
    assert not signs.moved_since(0.0)
    assert signs.only_failed_since("w1", 0.0)
    assert not signs.only_failed_since("w1", signs.read_s)
    with asked_triton() as (port, _):
        signs.take(read_counters(server_at(port), ["w1"]))
    assert signs.moved_s == {"w1": signs.read_s}
    assert not signs.only_failed_since("w1", 0.0)


def test_many_servers_under_suspicion_are_each_read_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[str] = Counter()
    readings = Readings()
    monkeypatch.setattr(
        readings._pool, "submit", lambda make, name, *given: (asked.update([name]), make(name, *given))
    )
    monkeypatch.setattr(probes, "read_counters", lambda server, models: probes.Reading(0.0, None))
    names = [f"p{n}" for n in range(20)]
    for tick in range(100):
        for name in names:
            readings.read(name, server_at(1), ["w1"], 0.05 * tick)
    readings.close()
    assert sum(asked.values()) <= 1.2 * probes.READINGS_RPS * 5.0
    assert max(asked.values()) <= min(asked.values()) + 1, "all in turn"
    assert len(asked) == len(names)
