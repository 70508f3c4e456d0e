"""What the guard is shown while the engine is away: what no real engine does on demand."""

from __future__ import annotations

import itertools
import math
import socket
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from asked_triton import asked_triton
from build import spec

from controlplane.control.guard.decide import begin
from controlplane.control.guard.effects import DrainAndStop, Ending, Load
from controlplane.control.guard.promise import Promise
from controlplane.control.guard.state import GuardedPartition, GuardState, Limits, PlacedServer
from controlplane.domain.errors import EngineError, GatewayError, NotNow
from controlplane.domain.fleet import (
    Delays,
    InFlight,
    QuotaUse,
    Role,
    Route,
    Server,
    ServerSpec,
    ServerState,
)
from controlplane.domain.observation import OUT_OF_MEMORY, Health, HostSeen, News
from controlplane.domain.workload import ShadowPolicy
from controlplane.files.waiting import wait_until
from controlplane.monitor.records import Record
from controlplane.ports import GivesWay
from controlplane.runtime.controller import answers as answers_module
from controlplane.runtime.controller import engine as engine_module
from controlplane.runtime.controller import observer as observer_module
from controlplane.runtime.controller.engine import Listed
from controlplane.runtime.controller.observer import Observer
from controlplane.runtime.controller.probes import Outcome, Verdict
from controlplane.runtime.controller.workers import Workers
from controlplane.runtime.fleet.execute import Limits as Waits

ASKED = ("w1/stats", "w3/config", "w3/infer", "w3/stats")

SPEC = spec("W1", models=("w1",))
# Nobody listens there: a canary would fail, but none is due to a server that answers requests.
LATER = replace(SPEC, labels=replace(SPEC.labels, revision="r-1"))
SERVER = Server("1", SPEC, ServerState.RUNNING, "127.0.0.1", 9, 9, 9)


@dataclass
class Engine:
    """An engine that is there, away, or silent; it tells of deaths all the same."""

    away: bool = False
    silent: threading.Event | None = None
    news: list[News] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    starts: int = 0
    stuck: threading.Event | None = None
    waited_for: bool = False
    listed: Server = SERVER

    def start(self, spec: ServerSpec, *, deadline_s: float, gives_way: GivesWay) -> Server:
        self.starts += 1
        if self.away:
            raise NotNow("the engine does not answer")
        raise EngineError("no such weights")

    def servers(self, fleet: str) -> tuple[Server, ...]:
        if self.silent is not None and not self.silent.wait(30.0):
            self.waited_for = True
        if self.away:
            raise EngineError("the engine does not answer")
        return (self.listed,)

    def watch(self, fleet: str) -> Watch:
        return Watch(self.news)

    def stop(self, server: Server, *, drain_s: float) -> None:
        if self.stuck is not None:
            self.stuck.wait(60.0)
        if self.away:
            raise EngineError("the engine does not answer")
        self.stopped.append(server.name)


@dataclass
class Watch:
    told: list[News]

    def news(self, servers: Collection[Server]) -> tuple[News, ...]:
        fresh, self.told[:] = tuple(self.told), []
        return fresh

    def close(self) -> None:
        pass


@dataclass
class Requests:
    answered: tuple[Record, ...] = (Record("h", 1, "w1", SERVER.instance, 200, None, 1, 1, 1.0, 1.0, False),)
    heard_since_s: float = 0.0

    def take(self) -> tuple[Record, ...]:
        return self.answered


@dataclass
class Gateway:
    """`open` are the open requests of a server; `away` a gateway that does not answer."""

    open: int = 0
    streams: int = 0
    away: bool = False
    asked: int = 0

    def in_flight(self, backend: object) -> InFlight:
        self.asked += 1
        if self.away:
            raise GatewayError("HAProxy does not answer")
        return InFlight(requests=self.open, streaming=self.streams)

    def routes(self) -> dict[str, Route]:
        return {}

    def discount(self, server: str, counters: object) -> None:
        pass


def state() -> GuardState:
    partition = GuardedPartition(
        "W1", "cpu-0", 50.0, (Promise("w1", 100.0, 10.0),), ShadowPolicy.NONE, "cpu-0", 0.0
    )
    return begin((partition,), {"W1": (PlacedServer(SERVER.name, "cpu-0", 50.0),)}, Limits())


class NoHost:
    """Nothing is known of it."""

    def seen(self) -> None:
        return None


@dataclass
class Bench:
    engine: Engine
    gateway: Gateway
    workers: Workers
    observer: Observer
    requests: Requests
    failed: list[str]

    def open_requests(self) -> int:
        return self.observer.look(state()).servers[SERVER.name].in_flight

    def health(self) -> Health:
        return self.observer.look(state()).servers[SERVER.name].health


@pytest.fixture
def bench() -> Iterator[Bench]:
    engine, answering, failed = Engine(), Gateway(), list[str]()
    launcher: Any = engine
    gateway: Any = answering
    workers = Workers(launcher, gateway, lambda subject, reason: failed.append(reason), Waits())
    workers.adopt(SERVER)
    requests = Requests()
    observer = Observer(launcher, gateway, "f", workers, requests, NoHost())
    try:
        yield Bench(engine, answering, workers, observer, requests, failed)
    finally:
        if engine.silent is not None:
            engine.silent.set()
        observer.close()
        workers.close(wait=True)


def test_a_shared_queue_is_asked_for_its_models_times_and_tried_through_an_alias() -> None:
    launcher: Any = Engine()
    gateway: Any = Gateway()
    promise = Promise("w1", 100.0, 10.0, aliases=("w2", "w3"))
    partition = GuardedPartition("W1", "cpu-0", 50.0, (promise,), ShadowPolicy.NONE, "cpu-0", 0.0)
    shared = begin((partition,), {"W1": (PlacedServer(SERVER.name, "cpu-0", 50.0),)}, Limits())
    watch = shared.watches["W1"]
    late = watch.queues[0].late._replace(charts=(1e3,) * 4)
    suspicious = replace(watch, queues=(watch.queues[0]._replace(late=late),))
    shared = replace(shared, watches={"W1": suspicious})
    spec = replace(SPEC, endpoints=promise.endpoints)
    workers = Workers(launcher, gateway, lambda subject, reason: None, Waits())
    with asked_triton() as (port, asked):
        workers.adopt(replace(SERVER, spec=spec, http_port=port))
        observer = Observer(launcher, gateway, "f", workers, Requests(answered=()), NoHost())
        try:

            def timed() -> bool:
                seen = observer.look(shared).servers[SERVER.name]
                return seen.compute_ms == pytest.approx(3.0)

            assert wait_until(timed, deadline_s=30.0)
            # A server that has answered nobody yet gets a canary.
            wanted = {f"/v2/{path}" for path in ("health/live", *(f"models/{p}" for p in ASKED))}
            assert wait_until(lambda: set(asked) == wanted, deadline_s=30.0), asked
            assert wait_until(lambda: not observer._canaries.is_under_way(SERVER.name), deadline_s=30.0)
            workers.stop(DrainAndStop(SERVER.name, Ending.AT_ONCE, 60.0))
            observer.look(shared)
            assert observer._records == {}, "nothing is kept for what is stopped"
            assert observer._canaries.take() == []
        finally:
            observer.close()
            workers.close(wait=True)


def test_a_silent_engine_holds_no_look_up(bench: Bench) -> None:
    bench.engine.silent = threading.Event()
    assert [bench.health() for _ in range(3)] == [Health.READY] * 3
    assert not bench.engine.waited_for


def test_deaths_told_by_an_engine_that_goes_away_are_believed_once_it_answers(bench: Bench) -> None:
    bench.engine.away = True
    bench.engine.news.append(News((SERVER.name,), "died"))
    assert bench.health() is Health.READY
    assert wait_until(lambda: (bench.health(), bench.observer.troubles)[1]["engine"] != "", deadline_s=30.0)
    assert bench.health() is Health.READY
    bench.engine.away = False
    assert wait_until(lambda: bench.health() is Health.GONE, deadline_s=30.0)
    assert bench.observer.troubles["engine"] == ""


def test_a_death_that_the_kernel_reports_is_believed_while_the_engine_is_away(bench: Bench) -> None:
    bench.engine.away = True
    bench.engine.news.append(News((SERVER.name,), "died", certain=True))
    assert bench.health() is Health.GONE


@pytest.mark.parametrize(
    ("listed", "health"),
    [
        (replace(SERVER, state=ServerState.PAUSED), Health.PAUSED),
        (replace(SERVER, end="another program sent it SIGTERM"), Health.ENDING),
        (replace(SERVER, state=ServerState.EXITED, end="exit code 1"), Health.GONE),
    ],
)
def test_the_engines_list_says_what_a_server_is_and_until_when(
    bench: Bench, listed: Server, health: Health
) -> None:
    bench.health()  # it was there before
    bench.engine.listed = listed
    bench.engine.news.append(News((SERVER.name,), "asks for a list at once", health=Health.PAUSED))
    assert wait_until(lambda: bench.health() is health, deadline_s=30.0)
    bench.engine.listed = SERVER
    bench.engine.news.append(News((SERVER.name,), "asks for a list at once", health=Health.READY))
    assert wait_until(lambda: bench.health() is Health.READY, deadline_s=30.0)


def test_a_server_that_no_longer_has_its_model_is_ending(bench: Bench) -> None:
    (answered,) = bench.requests.answered
    bench.requests.answered = (answered._replace(http=503, unloaded=True),)
    assert bench.health() is Health.ENDING
    bench.requests.answered = ()
    assert bench.health() is Health.ENDING


def test_the_gravest_news_of_a_server_counts(bench: Bench) -> None:
    bench.engine.news.append(News((SERVER.name,), "a process died", health=Health.IMPAIRED, certain=True))
    assert bench.health() is Health.IMPAIRED
    bench.engine.news.append(News((SERVER.name,), "it is stopped", health=Health.ENDING, certain=True))
    assert bench.health() is Health.IMPAIRED
    bench.engine.news.append(News((SERVER.name,), "it died", certain=True))
    assert bench.health() is Health.GONE


def test_a_model_whose_process_died_impairs_its_server(bench: Bench) -> None:
    # It goes on answering some requests all the same.
    bench.engine.news.append(News((SERVER.name,), "a process of its models ended", health=Health.IMPAIRED))
    assert wait_until(lambda: bench.health() is Health.IMPAIRED, deadline_s=30.0)
    assert bench.health() is Health.IMPAIRED


def test_a_process_that_ended_while_no_model_is_loaded_impairs_nobody(bench: Bench) -> None:
    bench.workers.adopt(SERVER, Health.UNLOADED)
    bench.engine.news.append(News((SERVER.name,), "a process of its models ended", health=Health.IMPAIRED))
    assert wait_until(lambda: (bench.health(), bench.observer._engine._reports)[1] == [], deadline_s=30.0)
    assert bench.engine.news == []
    bench.workers.adopt(SERVER)
    assert bench.health() is Health.READY


@pytest.fixture
def hangs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The server takes requests and answers none; its canaries have not given it up yet."""
    monkeypatch.setattr(bench.observer._canaries, "ask", lambda *_, **__: None)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = replace(SERVER, http_port=silent.getsockname()[1])
        bench.workers.adopt(server)
        bench.requests.answered = (bench.requests.answered[0]._replace(server=server.instance),)
        yield


@pytest.mark.usefixtures("hangs")
def test_open_requests_count_of_one_that_never_answered(bench: Bench) -> None:
    # A shadow that hung while it stood by, and was redirected to.
    bench.gateway.open, bench.requests.answered = 4, ()
    assert bench.open_requests() == 0, "it has only just been routed to"
    assert wait_until(lambda: bench.open_requests() == 4, deadline_s=30.0)


@pytest.mark.usefixtures("hangs")
def test_a_process_that_answers_nothing_while_requests_are_open_hangs(bench: Bench) -> None:
    bench.gateway.streams, bench.requests.answered = 1, ()
    assert wait_until(lambda: bench.health() is Health.HUNG, deadline_s=30.0)


@pytest.mark.usefixtures("hangs")
def test_one_that_waits_for_its_core_may_be_silent_for_longer(bench: Bench) -> None:
    began_s = time.monotonic()
    bench.engine.quota_use = lambda server: QuotaUse(1, 0.0, 10.0 * (time.monotonic() - began_s), 0.0)
    calm, active = state(), state().watches["W1"].active.server

    def known() -> bool:
        seen = bench.observer.look(calm).servers.get(active)
        return seen is not None and seen.delays == Delays(starved=1.0, throttled=0.0)

    assert wait_until(known, deadline_s=30.0)
    bench.gateway.streams, bench.requests.answered = 1, ()
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        assert bench.health() is Health.READY
    assert wait_until(lambda: bench.health() is Health.HUNG, deadline_s=30.0)


@pytest.mark.usefixtures("hangs")
def test_a_process_that_goes_on_refusing_requests_does_not_hang(bench: Bench) -> None:
    refused = Record("h", 1, "w1", SERVER.instance, 503, None, 1, 1, 1.0, 1.0, False, True)
    server = bench.workers.server(SERVER.name)
    assert server is not None
    bench.gateway.open, bench.requests.answered = 9, (refused._replace(server=server.instance),)
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        assert bench.health() is Health.READY
    assert bench.open_requests() == 9, "a refusal is no answer of the model: HAProxy is read"


def test_a_server_whose_model_is_busy_does_not_hang_and_is_seen_to_work(bench: Bench) -> None:
    bench.gateway.open, bench.requests.answered = 4, ()
    with asked_triton() as (port, asked):
        bench.workers.adopt(replace(SERVER, http_port=port))
        assert wait_until(lambda: bench.open_requests() == 4, deadline_s=30.0)
        works = lambda: bench.observer.look(state()).servers[SERVER.name].progressed  # noqa: E731
        assert wait_until(works, deadline_s=30.0), "its counters move"
        assert bench.health() is Health.READY
    assert "/v2/models/w1/stats" in asked


def verdict(outcome: Outcome, sent_s: float) -> Verdict:
    return Verdict(sent_s, sent_s + 1.0, outcome, outcome.value)


@pytest.mark.parametrize(
    ("outcome", "waiting", "health"),
    [
        (Outcome.LATE, 0, Health.FAILING),
        # It waits behind other requests.
        (Outcome.LATE, 1, Health.READY),
        (Outcome.FAILED, 1, Health.FAILING),
        (Outcome.SILENT, 0, Health.HUNG),
        # What its process answers while requests are open is read from its counters.
        (Outcome.SILENT, 1, Health.READY),
        (Outcome.REFUSED, 0, Health.READY),
        (Outcome.UNKNOWN, 0, Health.READY),
        (Outcome.ANSWERED, 0, Health.READY),
    ],
)
def test_two_canaries_that_fail_show_a_fault_unless_something_else_explains_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, outcome: Outcome, waiting: int, health: Health
) -> None:
    bench.requests.answered, bench.gateway.open = (), waiting
    canaries = bench.observer._canaries
    monkeypatch.setattr(canaries, "ask", lambda *_, **__: None)
    for sent_s in (1.0, 3.0):
        monkeypatch.setattr(canaries, "take", lambda s=sent_s: [(SERVER.name, verdict(outcome, s))])
        seen = bench.health()
    assert seen is health


LEFT = Record("h", 1, "w1", SERVER.instance, 0, None, 1, 0, 0.0, 1.0, True, held=True)


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
    bench: Bench, monkeypatch: pytest.MonkeyPatch, left: Record, outcome: Outcome, health: Health
) -> None:
    bench.requests.answered = (left._replace(ended_s=time.time()),)
    canaries = bench.observer._canaries
    monkeypatch.setattr(canaries, "ask", lambda *_, **__: None)
    bench.health()
    bench.requests.answered = ()
    for sent_s in (1.0, 3.0, 5.0):
        missed = replace(verdict(outcome, sent_s), endpoint="w1")
        monkeypatch.setattr(canaries, "take", lambda missed=missed: [(SERVER.name, missed)])
        seen = bench.health()
    assert seen is health


@pytest.mark.parametrize(
    ("began_s", "endpoint", "health"),
    [(0.1, "w1", Health.FAILING), (-0.1, "w1", Health.READY), (0.1, "w2", Health.READY)],
)
def test_what_a_client_left_is_over_once_a_later_request_of_its_queue_was_answered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, began_s: float, endpoint: str, health: Health
) -> None:
    left_s = time.time() - 10.0
    canaries = bench.observer._canaries
    monkeypatch.setattr(canaries, "ask", lambda *_, **__: None)
    later = LEFT._replace(endpoint=endpoint, http=200, abandoned=False, held=False)
    later = later._replace(ended_s=left_s + 5.0, latency_ms=1000.0 * (5.0 - began_s))
    for ended in (LEFT._replace(ended_s=left_s), later):
        bench.requests.answered = (ended,)
        bench.health()
    bench.requests.answered = ()
    now = time.monotonic()
    for sent_s in (now, now + 2.0):
        missed = replace(verdict(Outcome.LATE, sent_s), endpoint="w1")
        monkeypatch.setattr(canaries, "take", lambda missed=missed: [(SERVER.name, missed)])
        seen = bench.health()
    assert seen is health


def test_what_a_client_left_is_over_once_a_canary_was_answered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    canaries = bench.observer._canaries
    monkeypatch.setattr(canaries, "ask", lambda *_, **__: None)
    bench.requests.answered = (LEFT._replace(ended_s=time.time()),)
    bench.health()
    bench.requests.answered = ()
    now = time.monotonic()
    outcomes = (Outcome.LATE, Outcome.LATE, Outcome.ANSWERED, Outcome.LATE, Outcome.LATE)
    seen = []
    for after_s, outcome in enumerate(outcomes):
        one = replace(verdict(outcome, now + after_s), endpoint="w1")
        monkeypatch.setattr(canaries, "take", lambda one=one: [(SERVER.name, one)])
        seen.append(bench.health())
    assert seen == [*4 * [Health.READY], Health.FAILING]


@pytest.mark.parametrize(
    ("outcome", "health"),
    [(Outcome.LATE, Health.READY), (Outcome.SILENT, Health.READY), (Outcome.FAILED, Health.FAILING)],
)
def test_on_a_contended_host_two_late_canaries_show_no_fault(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, outcome: Outcome, health: Health
) -> None:
    class Host:
        def seen(self) -> HostSeen:
            return HostSeen(waiting=0.8)

    bench.observer._host = Host()
    bench.requests.answered = ()
    canaries = bench.observer._canaries
    monkeypatch.setattr(canaries, "ask", lambda *_, **__: None)
    for sent_s in (1.0, 3.0):
        monkeypatch.setattr(canaries, "take", lambda s=sent_s: [(SERVER.name, verdict(outcome, s))])
        seen = bench.health()
    assert seen is health
    for sent_s in (5.0, 7.0):
        monkeypatch.setattr(canaries, "take", lambda s=sent_s: [(SERVER.name, verdict(outcome, s))])
        seen = bench.health()
    assert seen is not Health.READY


@pytest.mark.parametrize("outcome", [Outcome.LATE, Outcome.REFUSED])
@pytest.mark.parametrize("works", [False, True])
def test_a_model_that_hangs_beside_one_that_answers_is_found_by_its_canaries(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, outcome: Outcome, works: bool
) -> None:
    both = state().watches["W1"]
    promises = tuple(Promise(endpoint, 100.0, 10.0) for endpoint in ("w1", "w2"))
    partition = replace(both.partition, promises=promises)
    shared = begin((partition,), {"W1": (both.active,)}, Limits())
    began_s = time.monotonic()
    late = Verdict(began_s - 61.0, began_s, outcome, "", "w1")
    monkeypatch.setattr(bench.observer._canaries, "ask", lambda *_, **__: None)
    monkeypatch.setattr(bench.observer._canaries, "take", lambda: [(SERVER.name, late)])
    bench.gateway.open = 5
    with asked_triton(executions=10 if works else 0, failures=1) as (port, _):
        spec = replace(SPEC, endpoints=("w1", "w2"))
        server = replace(SERVER, spec=spec, http_port=port)
        bench.workers.adopt(server)
        answered = bench.requests.answered[0]._replace(endpoint="w2", server=server.instance)
        bench.requests.answered = (answered,)

        def hangs() -> bool:
            return bench.observer.look(shared).servers[SERVER.name].health is Health.HUNG

        assert wait_until(hangs, deadline_s=1.0 if works else 30.0) is not works


def test_a_server_of_which_one_model_rests_gets_canaries(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(bench.observer._canaries, "ask", lambda name, *_: asked.append(name))
    monkeypatch.setattr(observer_module, "CANARY_EVERY_S", 0.0)
    spec = replace(SPEC, endpoints=("w1", "w2"))
    bench.workers.adopt(replace(SERVER, spec=spec))
    both = state().watches["W1"]
    promises = tuple(Promise(endpoint, 100.0, 10.0) for endpoint in ("w1", "w2"))
    shared = begin((replace(both.partition, promises=promises),), {"W1": (both.active,)}, Limits())
    assert wait_until(lambda: (bench.observer.look(shared), asked)[1] != [], deadline_s=30.0)


def test_a_canary_that_is_late_while_clients_got_answers_shows_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    canaries = bench.observer._canaries
    monkeypatch.setattr(canaries, "take", lambda: [(SERVER.name, verdict(Outcome.LATE, 0.0))])
    assert [bench.health() for _ in range(3)] == [Health.READY] * 3


def answer(status: int, endpoint: str = "w1", took_ms: float = 1000.0) -> Record:
    """As it ended now."""
    return Record("h", 1, endpoint, SERVER.instance, status, None, 1, 1, math.inf, took_ms, False)


def fails(bench: Bench, model: str = "w1") -> None:
    """Let Triton's counters have shown that a model fails what waits in its queue, and goes on with it."""
    bench.observer._records[SERVER.name].signs.failed_s[model] = math.inf


@pytest.mark.parametrize(
    ("statuses", "health"),
    [
        ((500,) * 5, Health.FAILING),
        ((500,) * 4, Health.READY),
        # A bad request may be answered without the model.
        ((500, 400, 500, 500, 400, 500, 500), Health.FAILING),
        ((400,) * 9, Health.READY),
        ((500, 500, 500, 200, 500, 500), Health.READY),
    ],
)
def test_a_late_canary_of_a_server_that_only_fails_is_a_failed_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, statuses: tuple[int, ...], health: Health
) -> None:
    bench.gateway.open = 9
    monkeypatch.setattr(bench.observer._canaries, "ask", lambda *_, **__: None)
    late = Verdict(time.monotonic(), math.inf, Outcome.LATE, "", "w1")
    bench.requests.answered = tuple(map(answer, statuses))
    bench.health()
    fails(bench)
    bench.requests.answered = ()
    monkeypatch.setattr(bench.observer._canaries, "take", lambda: [(SERVER.name, late)])
    assert bench.health() is health


@pytest.mark.parametrize(
    ("statuses", "health"), [((500,) * 5, Health.READY), ((200, *(500,) * 5), Health.FAILING)]
)
def test_requests_that_the_server_before_failed_too_show_no_fault_of_this_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, statuses: tuple[int, ...], health: Health
) -> None:
    moved = state()
    watch = replace(moved.watches["W1"], failed_s=time.monotonic())
    moved = replace(moved, watches={"W1": watch})
    bench.gateway.open = 9
    monkeypatch.setattr(bench.observer._canaries, "ask", lambda *_, **__: None)
    late = Verdict(time.monotonic(), math.inf, Outcome.LATE, "", "w1")
    bench.requests.answered = tuple(map(answer, statuses))
    bench.observer.look(moved)
    fails(bench)
    bench.requests.answered = ()
    monkeypatch.setattr(bench.observer._canaries, "take", lambda: [(SERVER.name, late)])
    assert bench.observer.look(moved).servers[SERVER.name].health is health


@pytest.mark.parametrize(("answered_after", "failing"), [(True, 0), (False, 5)])
def test_a_row_of_failures_ends_with_a_canary_that_is_answered_after_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, answered_after: bool, failing: int
) -> None:
    monkeypatch.setattr(bench.observer._canaries, "ask", lambda *_, **__: None)
    bench.requests.answered = (answer(500),) * 5
    before_s = time.monotonic()
    assert bench.observer.look(state()).servers[SERVER.name].failing == 5
    bench.requests.answered = ()
    sent_s = time.monotonic() if answered_after else before_s
    answered = Verdict(sent_s, math.inf, Outcome.ANSWERED, "", "")
    monkeypatch.setattr(bench.observer._canaries, "take", lambda: [(SERVER.name, answered)])
    assert bench.observer.look(state()).servers[SERVER.name].failing == failing


def test_a_canary_behind_a_long_request_is_late_though_others_failed_before(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.gateway.open = 1
    monkeypatch.setattr(bench.observer._canaries, "ask", lambda *_, **__: None)
    bench.requests.answered = (answer(500),) * 5
    bench.health()
    bench.requests.answered = ()
    late = Verdict(time.monotonic(), math.inf, Outcome.LATE, "", "w1")
    monkeypatch.setattr(bench.observer._canaries, "take", lambda: [(SERVER.name, late)])
    assert bench.health() is Health.READY


@pytest.mark.parametrize("why", ["refused at once", "not counted by the model", "the model works"])
def test_a_late_canary_shows_nothing_where_what_failed_did_not_wait_as_it_does(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    bench.gateway.open = 1
    monkeypatch.setattr(bench.observer._canaries, "ask", lambda *_, **__: None)
    late = Verdict(time.monotonic(), math.inf, Outcome.LATE, "", "w1")
    took_ms = 1.0 if why == "refused at once" else 1000.0
    bench.requests.answered = (answer(500, took_ms=took_ms),) * 5
    bench.health()
    if why != "not counted by the model":
        fails(bench)
    if why == "the model works":
        bench.observer._records[SERVER.name].signs.moved_s["w1"] = math.inf
    bench.requests.answered = ()
    monkeypatch.setattr(bench.observer._canaries, "take", lambda: [(SERVER.name, late)])
    assert bench.health() is Health.READY


def test_the_answers_of_another_model_hide_no_failures(bench: Bench) -> None:
    watch = state().watches["W1"]
    promises = (Promise("w1", 100.0, 10.0, aliases=("w2",)), Promise("w3", 100.0, 10.0))
    shared = begin((replace(watch.partition, promises=promises),), {"W1": (watch.active,)}, Limits())
    spec = replace(SPEC, endpoints=("w1", "w2", "w3"))
    bench.workers.adopt(replace(SERVER, spec=spec))

    def failing(*answers: Record) -> int:
        bench.requests.answered = answers
        return bench.observer.look(shared).servers[SERVER.name].failing

    assert failing(answer(500), answer(200, "w3"), answer(500, "w2"), answer(200, "w3")) == 2
    assert failing(answer(200, "w2")) == 0


def test_a_canary_has_as_long_as_its_model_may_take(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    monkeypatch.setattr(bench.observer._canaries, "ask", lambda _, call, __: given.append(call.args[-1]))
    slow = state()
    partition = replace(slow.watches["W1"].partition, promises=(Promise("w1", 60_000.0, 10.0),))
    slow = replace(slow, watches={"W1": replace(slow.watches["W1"], partition=partition)})

    def probed(observed: GuardState) -> None:
        bench.observer.look(observed)
        bench.observer.probe(SERVER.name)

    probed(state())
    probed(slow)
    bench.requests.answered = (answer(500),) * 5
    probed(slow)
    bench.requests.answered = ()
    fails(bench)
    probed(slow)
    # What Triton refuses without the model says nothing of it.
    assert given == [2.0, 120.0, 120.0, 2.0]


def test_requests_refused_by_policy_are_no_failures(bench: Bench) -> None:
    refused = Record("h", 1, "w1", SERVER.instance, 503, None, 1, 1, 1.0, 1.0, False, True)
    bench.requests.answered = (refused,) * 9
    answers = bench.observer.look(state()).answers
    assert [(a.refused, a.failed) for a in answers] == [(True, False)] * 9
    assert bench.observer._records[SERVER.name].failures == {}


def test_a_log_that_falls_silent_is_a_trouble(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.health()
    assert bench.observer.troubles == {"engine": "", "monitor": ""}
    bench.requests.heard_since_s = math.inf  # as of a log that hears nothing, it is never before now
    monkeypatch.setattr(observer_module, "_DEAF_S", 0.0)
    bench.health()
    assert "slow servers are not detected" in bench.observer.troubles["monitor"]
    bench.requests.heard_since_s = 0.0
    monkeypatch.undo()
    bench.health()
    assert bench.observer.troubles["monitor"] == ""


@pytest.mark.usefixtures("hangs")
def test_one_that_hangs_after_a_lull_is_asked_again(bench: Bench) -> None:
    bench.open_requests()
    bench.requests.answered = ()
    assert wait_until(lambda: (bench.open_requests(), bench.gateway.asked)[1] > 0, deadline_s=30.0)
    bench.gateway.open = 4
    assert wait_until(lambda: bench.open_requests() == 4, deadline_s=30.0)


@pytest.mark.parametrize(
    ("rate_rps", "first_s", "longest_s", "most"),
    [(50.0, 0.2, 1.0, 8), (0.01, 150.0, 150.0, 30)],  # 25 at five a second; rare requests are no traffic
)
def test_the_longer_traffic_pauses_the_less_often_are_open_requests_read_within_a_bound(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    rate_rps: float,
    first_s: float,
    longest_s: float,
    most: int,
) -> None:
    clock, read_s = Hand(), list[float]()
    monkeypatch.setattr(observer_module, "time", clock)
    monkeypatch.setattr(observer_module, "CANARY_EVERY_S", math.inf)
    busy = state()
    queue = busy.watches["W1"].queues[0]._replace(rates_rps=(rate_rps, rate_rps))
    busy = replace(busy, watches={"W1": replace(busy.watches["W1"], queues=(queue,))})
    bench.observer.look(busy)
    bench.requests.answered, answered_s = (), clock.now_s
    step_s = longest_s / 20
    for _ in range(100):
        clock.now_s += step_s
        before = bench.gateway.asked
        bench.observer.look(busy)
        read_s += [clock.now_s - answered_s] * (bench.gateway.asked - before)
    gaps = [after - before for before, after in itertools.pairwise([0.0, *read_s])]
    assert gaps[0] == pytest.approx(first_s, abs=1.2 * step_s)
    assert gaps[-1] == max(gaps) == pytest.approx(longest_s, abs=1.2 * step_s)
    assert len(gaps) <= most


@dataclass
class Hand:
    """Clocks that are set by hand: the time of day, and the one that is never set."""

    wall_s: float = 1e9
    now_s: float = 1e3

    def time(self) -> float:
        return self.wall_s

    def monotonic(self) -> float:
        return self.now_s


@pytest.mark.usefixtures("hangs")
def test_a_gateway_that_hangs_is_not_asked_at_every_look(bench: Bench) -> None:
    bench.gateway.away = True
    bench.open_requests()
    bench.requests.answered = ()
    assert wait_until(lambda: (bench.open_requests(), bench.gateway.asked)[1] == 1, deadline_s=30.0)
    bench.observer._open._gateway_again_s = math.inf
    assert not wait_until(lambda: (bench.open_requests(), bench.gateway.asked)[1] > 1, deadline_s=0.6)
    bench.gateway.away, bench.gateway.open, bench.observer._open._gateway_again_s = False, 4, 0.0
    assert wait_until(lambda: bench.open_requests() == 4, deadline_s=30.0)


def test_answers_are_told_by_a_clock_that_nobody_sets(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Hand()
    for module in (observer_module, answers_module):
        monkeypatch.setattr(module, "time", clock)

    def ended(at_s: float) -> float:
        line = Record("h", 1, "w1", SERVER.instance, 200, None, 1, 1, at_s, 1.0, False)
        bench.requests.answered = (line,)
        (answer,) = bench.observer.look(state()).answers
        return answer.ended_s

    assert ended(clock.wall_s - 0.5) == clock.now_s - 0.5
    before = clock.wall_s
    clock.wall_s -= 86400.0  # set back
    assert ended(clock.wall_s - 0.5) == clock.now_s - 0.5
    assert ended(before) == clock.now_s, "written before it was set back"


def test_a_failure_that_no_known_server_made_is_told_as_nobodys(bench: Bench) -> None:
    def failed(server: str) -> Record:
        return Record("h", 1, "w1", server, 503, None, 1, 1, 1.0, 1.0, False)

    bench.requests.answered = (failed(""), failed("another:0f"), failed(SERVER.instance))
    told = bench.observer.look(state()).answers
    assert [(a.server, a.failed) for a in told] == [("", True), ("", True), (SERVER.name, True)]


class Stumbling(Engine):
    """A launcher that fails as none should."""

    def start(self, spec: ServerSpec, *, deadline_s: float, gives_way: GivesWay) -> Server:
        raise RuntimeError("can't start new thread")


def test_a_start_that_fails_as_none_should_is_one_that_failed() -> None:
    launcher: Any = Stumbling()
    gateway: Any = Gateway()
    workers = Workers(launcher, gateway, lambda subject, reason: None, Waits())
    workers.launch(LATER)
    workers.close(wait=True)
    found = workers.conditions()[LATER.name]
    assert (found.health, found.reason) == (Health.GONE, "can't start new thread")


class Slow(Engine):
    """Its starts end once they may."""

    def __init__(self) -> None:
        super().__init__()
        self.may, self.begun = threading.Event(), threading.Event()

    def start(self, spec: ServerSpec, *, deadline_s: float, gives_way: GivesWay) -> Server:
        self.begun.set()
        self.may.wait(60.0)
        return SERVER


@pytest.mark.parametrize(("taken_over", "stopped"), [([], [SERVER.name]), ([SERVER.name], [])])
def test_what_starts_while_the_fleet_is_adopted_anew_is_nobodys_unless_it_was_seen(
    taken_over: list[str], stopped: list[str]
) -> None:
    engine = Slow()
    launcher: Any = engine
    gateway: Any = Gateway()
    workers = Workers(launcher, gateway, lambda subject, reason: None, Waits())
    workers.launch(replace(SPEC, endpoints=()))
    assert engine.begun.wait(60.0)
    workers.hand_over(taken_over)
    engine.may.set()
    workers.close(wait=True)
    assert engine.stopped == stopped


def test_a_start_waits_for_no_drain_and_a_drain_outlasts_a_gateway_that_is_away(bench: Bench) -> None:
    bench.gateway.open = 1
    for n in range(20):
        old = replace(SPEC, labels=replace(SPEC.labels, partition=f"P{n}"))
        bench.workers.adopt(replace(SERVER, spec=old))
        bench.workers.stop(DrainAndStop(old.name, Ending.DRAINED, 60.0))
    bench.workers.launch(LATER)
    assert wait_until(lambda: bench.engine.starts == 1, deadline_s=30.0)
    bench.gateway.away = True
    asked = bench.gateway.asked

    def goes_on() -> None:
        bench.workers.retry(time.monotonic())

    assert wait_until(lambda: (goes_on(), bench.gateway.asked > asked + 25)[1], deadline_s=30.0)
    assert bench.engine.stopped == []
    assert [reason for reason in bench.failed if "stopped" in reason] == []
    bench.gateway.away, bench.gateway.open = False, 0
    assert wait_until(lambda: (goes_on(), len(bench.engine.stopped) == 20)[1], deadline_s=30.0)


def test_what_could_not_be_stopped_is_stopped_later(bench: Bench) -> None:
    bench.engine.away = True
    bench.workers.stop(DrainAndStop(SERVER.name, Ending.AT_ONCE, 60.0))
    assert wait_until(lambda: bool(bench.failed), deadline_s=30.0)
    assert "tried again" in bench.failed[0]
    bench.engine.away = False
    bench.workers.retry(0.0)
    assert bench.engine.stopped == [], "not at once: the engine has just failed"
    bench.workers.retry(1e12)
    assert wait_until(lambda: bool(bench.engine.stopped), deadline_s=30.0)


def test_a_warm_shadow_is_loaded_though_the_engine_answers_no_stop(bench: Bench) -> None:
    bench.engine.stuck = threading.Event()
    try:
        for n in range(20):
            old = replace(SPEC, labels=replace(SPEC.labels, partition=f"P{n}"))
            bench.workers.adopt(replace(SERVER, spec=old))
            bench.workers.stop(DrainAndStop(old.name, Ending.AT_ONCE, 60.0))
        bench.workers.adopt(SERVER, Health.UNLOADED)
        bench.workers.load(Load(SERVER.name))
        # Nobody listens there: that the load was tried is all there is to see.
        tried = wait_until(
            lambda: bench.workers.conditions()[SERVER.name].health is Health.GONE, deadline_s=30.0
        )
        assert tried
        assert bench.engine.stopped == []
    finally:
        bench.engine.stuck.set()


def test_a_start_the_engine_is_away_for_is_put_off_and_no_failed_one(bench: Bench) -> None:
    def conditions_after(starts: int) -> Health:
        def tried() -> bool:
            bench.workers.retry(1e12)
            return bench.engine.starts >= starts

        assert wait_until(tried, deadline_s=30.0)
        return bench.workers.conditions()[LATER.name].health

    bench.engine.away = True
    bench.workers.launch(LATER)
    assert conditions_after(3) is Health.STARTING
    assert bench.workers.conditions()[LATER.name].reason == "the engine does not answer"
    # Said by the thread of the first start, which may be the last to go on.
    assert wait_until(lambda: bool(bench.failed), deadline_s=30.0)
    assert len(bench.failed) == 1, "said once"
    bench.engine.away = False
    bench.workers.retry(1e12)
    assert wait_until(lambda: conditions_after(4) is Health.GONE, deadline_s=30.0)
    assert bench.workers.conditions()[LATER.name].reason == "no such weights"


def test_a_start_that_was_put_off_is_given_up_once_it_is_no_longer_wanted(bench: Bench) -> None:
    bench.engine.away = True
    bench.workers.launch(LATER)
    assert wait_until(lambda: bool(bench.failed), deadline_s=30.0)
    bench.workers.stop(DrainAndStop(LATER.name, Ending.AT_ONCE, 60.0))
    bench.engine.away, starts = False, bench.engine.starts
    bench.workers.retry(1e12)
    bench.workers.close(wait=True)
    assert bench.engine.starts == starts


def test_each_look_says_how_the_host_treats_the_gateway(bench: Bench) -> None:
    told = HostSeen(waiting=0.8)

    class Host:
        def seen(self) -> HostSeen:
            return told

    bench.observer._host = Host()
    assert bench.observer.look(state()).host == told


@pytest.fixture
def resting(bench: Bench) -> Bench:
    """The server has been looked at, and the guard has no reason to look at its partition again."""
    bench.health()
    bench.requests.answered = ()
    return bench


def rested() -> GuardState:
    return replace(state(), due_s={"W1": math.inf}, now_s=0.0)


def test_a_server_about_which_nothing_is_new_is_what_it_was(
    resting: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[str] = []
    monkeypatch.setattr(resting.observer, "_look_at", lambda name, now: looked_at.append(name))
    seen = resting.observer.look(rested())
    assert seen.servers[SERVER.name].health is Health.READY
    assert looked_at == []


def test_one_that_rests_and_ends_is_gone(resting: Bench) -> None:
    resting.engine.news.append(News((SERVER.name,), "died"))

    def gone() -> bool:
        return resting.observer.look(rested()).servers[SERVER.name].health is Health.GONE

    assert wait_until(gone, deadline_s=30.0)


def test_one_that_rests_and_that_the_engine_lists_no_more_is_gone_until_it_is_listed_again(
    resting: Bench,
) -> None:
    engine = resting.observer._engine
    assert wait_until(lambda: (resting.health(), engine.listed.answered_s)[1] > -math.inf, deadline_s=30.0)

    def listed(*names: str, **ends: str) -> tuple[Health, str]:
        engine.listed = Listed(engine.listed.answered_s + 1e6, frozenset(names), ends=ends)
        seen = resting.observer.look(rested()).servers[SERVER.name]
        return seen.health, seen.reason

    assert listed() == (Health.GONE, "its process ended")
    assert listed(SERVER.name) == (Health.READY, "")
    assert listed(**{SERVER.name: "out of memory"}) == (Health.GONE, "out of memory")


@pytest.mark.usefixtures("hangs")
def test_one_that_rests_and_falls_silent_under_load_has_its_open_requests_read(resting: Bench) -> None:
    resting.open_requests()  # as another server, whose port the fixture has opened
    resting.requests.answered = ()
    resting.gateway.open = 4

    def in_flight() -> int:
        return resting.observer.look(rested()).servers[SERVER.name].in_flight

    assert wait_until(lambda: in_flight() == 4, deadline_s=30.0)


def test_one_that_rests_and_whose_canaries_fail_is_failing(
    resting: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer_module, "CANARY_EVERY_S", 0.0)

    def failing() -> bool:
        return resting.observer.look(rested()).servers[SERVER.name].health is Health.FAILING

    assert wait_until(failing, deadline_s=30.0)


def test_a_large_fleet_gets_no_more_canaries_a_second_than_a_small_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, asked = Hand(), list[str]()
    monkeypatch.setattr(observer_module, "time", clock)
    monkeypatch.setattr(bench.observer._canaries, "ask", lambda name, call, now: asked.append(name))
    bench.requests.answered = ()
    bench.observer._looked_s = clock.now_s
    names = []
    for n in range(1000):
        spec = replace(SPEC, labels=replace(SPEC.labels, partition=f"P{n}"))
        bench.workers.adopt(replace(SERVER, spec=spec))
        names.append(spec.name)
    for _ in range(5 * 45):
        bench.observer.look(rested())
        clock.now_s += 0.2
    assert set(asked) == {*names, SERVER.name}
    assert len(asked) <= observer_module.CANARIES_RPS * (45 + 1)


@pytest.mark.parametrize("of", [SPEC.labels.partition, "shared by several"])
def test_a_shadow_gets_half_as_many_canaries_as_an_active_server_that_rests(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    clock, asked = Hand(), list[str]()
    monkeypatch.setattr(observer_module, "time", clock)
    monkeypatch.setattr(bench.observer._canaries, "ask", lambda name, call, now: asked.append(name))
    bench.requests.answered = ()
    bench.observer._looked_s = clock.now_s
    shadow = replace(SPEC, labels=replace(SPEC.labels, partition=of, role=Role.SHADOW, revision="2"))
    bench.workers.adopt(replace(SERVER, id="2", spec=shadow, http_port=8, grpc_port=8))
    for _ in range(5 * 60):
        bench.observer.look(rested())
        clock.now_s += 0.2
    assert asked.count(shadow.name) == pytest.approx(0.5 * asked.count(SERVER.name), abs=1)


def test_a_look_says_what_delays_a_server(bench: Bench) -> None:
    calm = state()
    active = calm.watches["W1"].active.server
    readings = itertools.count()
    bench.engine.quota_use = lambda server: QuotaUse(1, n := float(next(readings)), 3.0 * n, 2.0 * n)

    def delayed() -> bool:
        seen = bench.observer.look(calm).servers.get(active)
        return seen is not None and seen.delays == Delays(starved=0.25, throttled=0.5)

    assert wait_until(delayed, deadline_s=30.0)


def test_a_server_that_is_new_is_listed_within_a_second(
    resting: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A model's process is watched from then on: before, its death would go unseen.
    engine = resting.observer._engine
    assert wait_until(lambda: (resting.health(), engine.listed.answered_s)[1] > -math.inf, deadline_s=30.0)
    paces: list[engine_module.Pace] = []
    monkeypatch.setattr(engine, "ask", lambda now, pace: paces.append(pace))
    resting.observer.look(rested())
    resting.workers.adopt(replace(SERVER, spec=replace(SPEC, labels=replace(SPEC.labels, revision="r2"))))
    resting.observer.look(rested())
    assert paces == [engine_module.CALM, engine_module.HURRIED]


def test_a_list_that_costs_much_is_asked_for_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher: Any = Engine()
    spent = iter([0.0, 0.2, 0.2, 0.2])  # of the thread that asks: a fifth of a second
    monkeypatch.setattr(engine_module.time, "thread_time", lambda: next(spent))
    queries = engine_module.EngineNews(launcher, "f")

    def answered(at_s: float) -> bool:
        queries.ask(at_s, engine_module.CALM)
        return queries.listed.answered_s == at_s

    try:
        assert wait_until(lambda: answered(100.0), deadline_s=30.0)
        assert not wait_until(lambda: answered(119.0), deadline_s=0.2)
        assert wait_until(lambda: answered(121.0), deadline_s=30.0), "once in 20 s is a hundredth of a core"
    finally:
        queries.close()


def test_a_server_that_ran_out_of_memory_leaves_its_limit_for_the_next_one(bench: Bench) -> None:
    limited = replace(SERVER, spec=replace(SPEC, memory_limit_mb=100.0))
    bench.workers.adopt(limited)
    assert bench.health() is Health.READY
    assert bench.observer.exhausted_mb == {}
    bench.engine.news.append(News((limited.name,), f"{OUT_OF_MEMORY}: killed", health=Health.IMPAIRED))
    assert wait_until(lambda: bench.health() is Health.IMPAIRED, deadline_s=30.0)
    assert bench.observer.exhausted_mb == {"W1": 100.0}
