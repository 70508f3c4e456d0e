"""Ended requests as answers, those in flight, and the logs of several replicas over real control ports."""

import contextlib
import itertools
import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from http_server import in_thread
from monitor_log import accepted, line, listening, taken
from observer_rig import ANSWERED, SERVER, SPEC, Clock, Gateway, Rig, rested, state

from controlplane.control.guard.observe import LOOK_S
from controlplane.control.guard.state import Watch
from controlplane.domain.fleet import NOTHING_IN_FLIGHT, GatewayConfig
from controlplane.files.waiting import wait_until
from controlplane.gateway.replicas.agent import ControlServer, Replica
from controlplane.runtime.controller import answers as answers_module
from controlplane.runtime.controller import observer as observer_module
from controlplane.runtime.controller.answers import OpenRequests, ReplicaLogs
from controlplane.runtime.controller.probes import ServerRecord

TOKEN = "the-token"


@contextlib.contextmanager
def replica(monitor: Path) -> Iterator[str]:
    """A control port; its address."""
    gateway: Any = None
    server = ControlServer(Replica(gateway, GatewayConfig(), monitor), ("127.0.0.1", 0), TOKEN)
    with in_thread(server):
        yield f"127.0.0.1:{server.server_port}"


def test_the_logs_of_all_replicas_are_one(nearby: Path) -> None:
    places = [nearby / "one", nearby / "two"]
    with contextlib.ExitStack() as stack:
        monitors = [stack.enter_context(listening(place)) for place in places]
        addresses = [stack.enter_context(replica(place)) for place in places]
        logs = stack.enter_context(contextlib.closing(ReplicaLogs(lambda: addresses, TOKEN)))
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(logs.take)
            streams = [stack.enter_context(accepted(monitor)) for monitor in monitors]
            assert first.result(30) == []
        for number, stream in enumerate(streams, start=1):
            stream.sendall(line(number))
        assert sorted(record.number for record in taken(logs, 2)) == [1, 2]
        assert logs.heard_since_s < time.monotonic()
        del addresses[0]
        streams[1].sendall(line(3))
        assert [record.number for record in taken(logs, 1)] == [3]


def test_without_a_replica_that_answers_nothing_is_heard() -> None:
    with contextlib.closing(ReplicaLogs(lambda: ["127.0.0.1:1"], TOKEN)) as logs:
        assert logs.take() == []
        before = time.monotonic()
        assert logs.heard_since_s >= before


def test_answers_are_dated_by_a_clock_that_is_never_set(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    for module in (observer_module, answers_module):
        monkeypatch.setattr(module, "time", clock)

    def ended(at_s: float) -> float:
        return rig.answers(ANSWERED._replace(ended_s=at_s))[0].ended_s

    assert ended(clock.wall_s - 0.5) == clock.now_s - 0.5
    before = clock.wall_s
    clock.wall_s -= 86400.0  # set back
    assert ended(clock.wall_s - 0.5) == clock.now_s - 0.5
    assert ended(before) == clock.now_s, "written before it was set back"


def test_an_answer_has_its_server_where_that_is_known_and_fails_unless_it_was_refused(rig: Rig) -> None:
    failed = ANSWERED._replace(http=503)
    lines = (failed._replace(server=""), failed._replace(server="another:0f"), failed)
    refused = failed._replace(refused=True)
    found = rig.answers(*lines, refused)
    assert sorted((a.server, a.failed, a.refused) for a in found) == [
        ("", True, False),
        ("", True, False),
        (SERVER.name, False, True),
        (SERVER.name, True, False),
    ]
    assert rig.observer._records[SERVER.name].failures["w1"].requests == 1


def test_answers_wait_for_the_next_look_at_their_server(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    for module in (observer_module, answers_module):
        monkeypatch.setattr(module, "time", clock)
    rig.answers(seen_by=rested())  # the server is new
    rig.observer._log._gave_all_s = clock.now_s
    clock.now_s += 0.25 * LOOK_S
    assert rig.answers(ANSWERED, seen_by=rested()) == ()
    assert len(rig.answers(ANSWERED, seen_by=state())) == 2, "it is due"
    assert rig.answers(ANSWERED, seen_by=rested()) == ()
    clock.now_s += 0.75 * LOOK_S
    seen = rig.observer.look(rested())
    assert len(seen.answers) == 1
    assert seen.since_s == pytest.approx(clock.now_s - LOOK_S), "the look at which all were given"


@pytest.mark.parametrize(
    ("more", "given"), [({}, 0), ({"http": 503}, 1), ({"ended_s": -0.15}, 1), ({"at_once": 2}, 2)]
)
def test_an_answer_alone_waits_for_those_of_its_batch(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], given: int
) -> None:
    """One that failed, is old enough or has others beside it does not."""
    clock = Clock()
    for module in (observer_module, answers_module):
        monkeypatch.setattr(module, "time", clock)
    rig.answers(seen_by=rested())  # the server is new
    rig.observer._log._gave_all_s = clock.now_s
    clock.now_s += LOOK_S
    ended_s = clock.time() + more.get("ended_s", -0.05)
    line = ANSWERED._replace(ended_s=ended_s, http=more.get("http", 200))
    assert len(rig.answers(*[line] * more.get("at_once", 1), seen_by=rested())) == given
    clock.now_s += LOOK_S
    assert len(rig.answers(seen_by=rested())) == (0 if given else 1)


def test_a_log_that_falls_silent_is_a_trouble(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.health()
    assert rig.observer.troubles == {"engine": "", "monitor": ""}
    rig.requests.heard_since_s = math.inf  # as of a log that hears nothing, it is never before now
    monkeypatch.setattr(observer_module, "_DEAF_S", 0.0)
    rig.health()
    assert rig.observer.troubles["monitor"] != ""
    rig.requests.heard_since_s = 0.0
    monkeypatch.undo()
    rig.health()
    assert rig.observer.troubles["monitor"] == ""


@pytest.mark.usefixtures("hangs")
@pytest.mark.parametrize("before", ["nothing yet", "a lull", "it rests"])
def test_the_open_requests_of_a_server_that_falls_silent_are_read(rig: Rig, before: str) -> None:
    if before == "nothing yet":  # a shadow that hung while it stood by, and was redirected to
        rig.requests.answered = ()
    assert rig.in_flight() == 0
    rig.requests.answered = ()
    if before == "a lull":
        assert wait_until(lambda: (rig.in_flight(), rig.gateway.asked)[1] > 0, deadline_s=30.0)
    rig.gateway.open = 4
    seen_by = rested() if before == "it rests" else state()
    assert wait_until(lambda: rig.server(seen_by).in_flight == 4, deadline_s=30.0)


@pytest.mark.parametrize(
    ("rate_rps", "first_s", "longest_s", "most"),
    [(50.0, 0.2, 1.0, 8), (0.01, 150.0, 150.0, 30)],  # 25 at five a second; rare requests are no traffic
)
def test_the_longer_traffic_pauses_the_less_often_are_open_requests_read_within_a_bound(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, rate_rps: float, first_s: float, longest_s: float, most: int
) -> None:
    clock, read_s = Clock(), list[float]()
    monkeypatch.setattr(observer_module, "time", clock)
    monkeypatch.setattr(observer_module, "CANARY_EVERY_S", math.inf)
    busy = state()
    queue = busy.watches["W1"].queues[0]._replace(rates_rps=(rate_rps, rate_rps))
    busy = replace(busy, watches={"W1": replace(busy.watches["W1"], queues=(queue,))})
    rig.observer.look(busy)
    rig.requests.answered, answered_s = (), clock.now_s
    step_s = longest_s / 20
    for _ in range(100):
        clock.now_s += step_s
        before = rig.gateway.asked
        rig.observer.look(busy)
        read_s += [clock.now_s - answered_s] * (rig.gateway.asked - before)
    gaps = [after - before for before, after in itertools.pairwise([0.0, *read_s])]
    assert gaps[0] == pytest.approx(first_s, abs=1.2 * step_s)
    assert gaps[-1] == max(gaps) == pytest.approx(longest_s, abs=1.2 * step_s)
    assert len(gaps) <= most


@pytest.mark.usefixtures("hangs")
def test_a_gateway_that_hangs_is_not_read_at_every_look(rig: Rig) -> None:
    rig.gateway.away = True
    rig.in_flight()
    rig.requests.answered = ()
    assert wait_until(lambda: (rig.in_flight(), rig.gateway.asked)[1] == 1, deadline_s=30.0)
    rig.observer._open._gateway_again_s = math.inf
    assert not wait_until(lambda: (rig.in_flight(), rig.gateway.asked)[1] > 1, deadline_s=0.6)
    rig.gateway.away, rig.gateway.open, rig.observer._open._gateway_again_s = False, 4, 0.0
    assert wait_until(lambda: rig.in_flight() == 4, deadline_s=30.0)


@pytest.mark.parametrize(("rate_rps", "after_s"), [(20.0, 0.35), (2.0, 1.1), (0.1, 1.1)])
def test_how_long_a_silence_may_last_follows_from_the_rates_with_the_last_answers(
    rate_rps: float, after_s: float
) -> None:
    """A look reads open requests before it weighs its answers."""
    gateway: Any = Gateway()
    watch, record = state().watches["W1"], ServerRecord(SERVER, active_s=0.0, answered_s=999.8)
    requests, now = OpenRequests(gateway, {SERVER.name: record}), 1000.0

    def at(rate_rps: float, looked_s: float) -> Watch:
        rates = (watch.queues[0]._replace(rates_rps=(rate_rps, rate_rps)),)
        return replace(watch, queues=rates, looked_s=looked_s)

    gateway.open = 4
    assert requests.read(at(0.0, 999.0), record, now, 0.0) == NOTHING_IN_FLIGHT
    weighed = at(rate_rps, now)
    while not requests.due(now, lambda server: weighed, 0.0):
        assert now < 1000.0 + after_s
        now += 0.05
    assert now > 1000.0 + 0.2 * after_s
    assert requests.read(weighed, record, now, 0.0).requests == 4


def test_servers_that_rest_are_read_together() -> None:
    gateway: Any = Gateway()
    watch, records = state().watches["W1"], dict[str, ServerRecord]()
    for n in range(20):
        labels = replace(SPEC.labels, partition=f"P{n}")
        records[f"P{n}"] = ServerRecord(replace(SERVER, spec=replace(SPEC, labels=labels)))
    requests, now = OpenRequests(gateway, records), 1000.0
    watches = {n: replace(watch, active=replace(watch.active, server=n)) for n in records}

    def look(name: str) -> int:
        return requests.read(watches[name], records[name], now, 0.0).requests

    def due() -> set[str]:
        return requests.due(now, lambda server: watches[server.spec.labels.partition], 0.0)

    for name in records:
        now += 0.05
        look(name)
    for _ in range(100):
        now += 0.1
        for name in due():
            look(name)
    assert gateway.asked <= 15, "once a second, not once a second for each"
    gateway.open, found = 4, set[str]()
    for _ in range(13):
        now += 0.1
        for name in due():
            found |= {name} if look(name) else set()
    assert found == set(records), "within a second"
