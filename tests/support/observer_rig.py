"""An observer among an engine, a gateway, a log and canaries that do as a test says."""

import contextlib
import math
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from build import spec

from controlplane.control.guard.decide import begin
from controlplane.control.guard.promise import Promise
from controlplane.control.guard.state import GuardedPartition, GuardState, Limits, PlacedServer
from controlplane.domain.errors import EngineError, GatewayError, NotNow
from controlplane.domain.fleet import Backend, InFlight, QuotaUse, Route, Server, ServerSpec, ServerState
from controlplane.domain.observation import Answer, Health, HostSeen, News, ServerSeen
from controlplane.domain.workload import ShadowPolicy
from controlplane.monitor.records import Record
from controlplane.ports import GivesWay
from controlplane.runtime.controller.observer import Observer
from controlplane.runtime.controller.probes import Outcome, Verdict
from controlplane.runtime.controller.workers import Workers
from controlplane.runtime.fleet.execute import Limits as Waits

SPEC = spec("W1", models=("w1",))
# Nothing listens there.
SERVER = Server("1", SPEC, ServerState.RUNNING, "127.0.0.1", 9, 9, 9)
ANSWERED = Record("h", 1, "w1", SERVER.instance, 200, None, 1, 1, 1.0, 1.0, False)


@dataclass
class Engine:
    """An engine that is there, away, or silent; it reports deaths all the same."""

    away: bool = False
    silent: threading.Event | None = None
    news_: list[News] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    starts: int = 0
    stuck: threading.Event | None = None
    waited_for: bool = False
    listed: Server = SERVER
    quota_use: Callable[[Server], QuotaUse | None] = lambda server: None

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

    def watch(self, fleet: str) -> Self:
        return self

    def news(self, servers: Collection[Server]) -> tuple[News, ...]:
        fresh, self.news_[:] = tuple(self.news_), []
        return fresh

    def stop(self, server: Server, *, drain_s: float) -> None:
        if self.stuck is not None:
            self.stuck.wait(60.0)
        if self.away:
            raise EngineError("the engine does not answer")
        self.stopped.append(server.name)

    def close(self) -> None:
        pass


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

    def in_flights(self, backends: Sequence[Backend]) -> dict[str, InFlight]:
        found = self.in_flight(backends[0])
        return {backend.server: found for backend in backends}

    def routes(self) -> dict[str, Route]:
        return {}

    def discount(self, server: str, counters: object) -> None:
        pass


@dataclass
class Requests:
    answered: tuple[Record, ...] = (ANSWERED,)
    heard_since_s: float = 0.0

    def take(self) -> tuple[Record, ...]:
        return self.answered


@dataclass
class Canaries:
    """Canaries that are counted and not sent, and what came of them."""

    sent: list[tuple[str, Any]] = field(default_factory=list)
    ended: list[tuple[str, Verdict]] = field(default_factory=list)

    def ask(self, name: str, call: Any, now: float) -> None:
        self.sent.append((name, call))

    def take(self) -> list[tuple[str, Verdict]]:
        found, self.ended = self.ended, []
        return found

    def forget(self, name: str) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass
class Clock:
    """Clocks that are set by hand: the time of day, and the one that is never set."""

    wall_s: float = 1e9
    now_s: float = 1e3

    def time(self) -> float:
        return self.wall_s

    def monotonic(self) -> float:
        return self.now_s


@dataclass
class Host:
    known: HostSeen | None = None

    def seen(self) -> HostSeen | None:
        return self.known


@dataclass
class Rig:
    engine: Engine
    gateway: Gateway
    workers: Workers
    observer: Observer
    requests: Requests
    failed: list[str]
    host: Host

    def server(self, seen_by: GuardState | None = None) -> ServerSeen:
        return self.observer.look(seen_by or state()).servers[SERVER.name]

    def in_flight(self) -> int:
        return self.server().in_flight

    def health(self, seen_by: GuardState | None = None) -> Health:
        return self.server(seen_by).health

    def answers(self, *records: Record, seen_by: GuardState | None = None) -> Sequence[Answer]:
        """What one look makes of these lines; the next one has none."""
        self.requests.answered = records
        found = self.observer.look(seen_by or state()).answers
        self.requests.answered = ()
        return found

    def without_canaries(self) -> Canaries:
        canaries: Any = Canaries()
        self.observer._canaries = canaries
        return canaries

    def after(self, *verdicts: Verdict, seen_by: GuardState | None = None) -> list[Health]:
        """The server's health after each of these canaries."""
        found, canaries = [], self.without_canaries()
        for one in verdicts:
            canaries.ended = [(SERVER.name, one)]
            found.append(self.health(seen_by))
        return found

    def listen(self, port: int) -> Server:
        """Have the server answer, or be silent, at a port."""
        server = replace(SERVER, http_port=port)
        self.workers.adopt(server)
        self.requests.answered = (ANSWERED._replace(server=server.instance),)
        return server


@contextlib.contextmanager
def observing() -> Iterator[Rig]:
    engine, answering, failed = Engine(), Gateway(), list[str]()
    launcher: Any = engine
    gateway: Any = answering
    workers = Workers(launcher, gateway, lambda subject, reason: failed.append(reason), Waits())
    workers.adopt(SERVER)
    requests = Requests()
    host = Host()
    observer = Observer(launcher, gateway, "f", workers, requests, host)
    made = Rig(engine, answering, workers, observer, requests, failed, host)
    try:
        yield made
    finally:
        for event in (engine.silent, engine.stuck):
            if event is not None:
                event.set()
        observer.close()
        workers.close(wait=True)


@contextlib.contextmanager
def silent_port() -> Iterator[int]:
    """A port that takes connections and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def state(*promises: Promise) -> GuardState:
    """One partition, about which everything is due."""
    promises = promises or (Promise("w1", 100.0, 10.0),)
    partition = GuardedPartition("W1", "cpu-0", 50.0, promises, ShadowPolicy.NONE, "cpu-0", 0.0)
    return begin((partition,), {"W1": (PlacedServer(SERVER.name, "cpu-0", 50.0),)}, Limits())


def rested() -> GuardState:
    """The same, with no reason to look at it again."""
    return replace(state(), due_s={"W1": math.inf}, now_s=0.0)


def verdict(outcome: Outcome, sent_s: float, endpoint: str = "", took_s: float = 1.0) -> Verdict:
    return Verdict(sent_s, sent_s + took_s, outcome, outcome.value, endpoint)


def ended(status: int, endpoint: str = "w1", took_ms: float = 1000.0) -> Record:
    """A request that ended now."""
    return Record("h", 1, endpoint, SERVER.instance, status, None, 1, 1, math.inf, took_ms, False)
