"""Observation for the guard: ended requests and the health of every server, at low cost.

A launcher reports deaths by itself. Queries are expensive: a thread queries the engine now and then, and at
once after a reported death or failed requests. Triton's statistics and HAProxy's sessions are read only for a
server under suspicion. An idle server and a shadow get a canary.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from controlplane.control.guard.signals import suspicion
from controlplane.control.guard.state import GuardState, Watch
from controlplane.domain.errors import EngineError, GatewayError
from controlplane.domain.fleet import Server, ServerState
from controlplane.domain.observation import Answer, FleetSeen, Health, ModelStatistics, News, ServerSeen
from controlplane.monitor.canary import Canaries
from controlplane.monitor.records import Record
from controlplane.monitor.triton import StatisticsClient, compute_ms, difference, inferences_each, queue_ms
from controlplane.ports import Gateway, Host, Launcher
from controlplane.runtime.controller.quotas import Quotas
from controlplane.runtime.controller.workers import Workers
from controlplane.runtime.fleet.execute import backend

ENGINE_EVERY_S = 5.0
ENGINE_HURRIED_S = 0.5
_ENGINE_LATE_S = 5.0
_DEAF_S = 5.0
_GATEWAY_AGAIN_S = 2.0
CANARY_EVERY_S = 5.0
STATISTICS_EVERY_S = 0.05
_STATISTICS_KEPT_S = 2.0
SILENT_S = 0.2
SUSPICIOUS = 0.25
"""The evidence, of 1 for an alarm, from which on looking closer is worth its cost."""
_SILENT_REQUESTS = 3.0
_FAILED_IN_A_ROW = 5
_HURRIED_S = 0.5
_READY = ServerSeen(Health.READY)


class Requests(Protocol):
    """The source of ended requests."""

    def take(self) -> Iterable[Record]:
        """Return the requests that ended since the call before, in order."""

    @property
    def heard_since_s(self) -> float:
        """The time (monotonic) since which no request is missing."""


class Observer:
    """Observes one fleet, once for each tick."""

    def __init__(
        self,
        launcher: Launcher,
        gateway: Gateway,
        fleet: str,
        workers: Workers,
        requests: Requests,
        host: Host,
    ) -> None:
        self._host = host
        self._gateway = gateway
        self._workers = workers
        self._requests = requests
        self._canaries = Canaries()
        self._split = _Split()
        self._quotas = Quotas(launcher)
        self._watch = launcher.watch(fleet)
        self._lost: dict[str, str] = {}
        self._impaired: dict[str, str] = {}
        self._reports: list[tuple[float, News]] = []
        self._engine = _Engine(launcher, fleet)
        self._known: dict[str, Server] = {}
        self._by_address: dict[tuple[str, int], str] = {}
        self._since_s: dict[str, float] = {}
        self._queried_s: dict[str, float] = {}
        self._answered_s: dict[str, float] = {}
        self._failed: dict[str, int] = {}
        self._active_s: dict[str, float] = {}
        self._in_flight_of: dict[str, tuple[float, int]] = {}
        self._heard_s = time.monotonic()
        self._gateway_again_s = -math.inf
        self._state = GuardState({})

    def look(self, state: GuardState) -> FleetSeen:
        """Return the present observation of the fleet."""
        now = time.monotonic()
        conditions = self._workers.conditions()
        servers = self._workers.servers()
        answers = self._answers(servers, now)
        failed = any(a.failed and a.server for a in answers)
        self._query_engine(servers, failed, now)
        seen: dict[str, ServerSeen] = {}
        self._state = state
        actives = {w.active.server: w for w in state.watches.values()}
        for name, condition in conditions.items():
            server = servers.get(name)
            health, reason = condition.health, condition.reason
            if server is not None and health is Health.UNLOADED:
                self._impaired.pop(server.name, None)  # it concerned a model that was unloaded
            if server is not None and health in (Health.READY, Health.UNLOADED) and server.name in self._lost:
                health, reason = Health.GONE, self._lost[server.name]
            elif server is not None and health is Health.READY:
                if self._engine.misses(server.name, self._since_s.setdefault(name, now)):
                    health, reason = Health.GONE, "its process ended"
                else:
                    health, reason = self._canary(name, server, now)
                    if health is Health.READY and server.name in self._impaired:
                        health, reason = Health.IMPAIRED, self._impaired[server.name]
            watch = actives.get(name)
            if watch is None or server is None or health not in (Health.READY, Health.IMPAIRED):
                seen[name] = _READY if health is Health.READY else ServerSeen(health, reason=reason)
                continue
            split = self._split_of(watch, server, now)
            in_flight = self._in_flight(watch, server, now)
            self._quotas.ask(server, now, hurried=suspicion(watch) > SUSPICIOUS)
            delays = self._quotas.delays(server.name, now)
            if health is Health.READY and not in_flight and split is _UNKNOWN and delays is None:
                seen[name] = _READY
            else:
                seen[name] = ServerSeen(
                    health,
                    in_flight,
                    split.queue_ms,
                    split.compute_ms,
                    reason,
                    split.inferences,
                    delays,
                )
        return FleetSeen(now, tuple(answers), seen, self._host.seen())

    def probe(self, name: str) -> None:
        """Send a canary to each queue of a server now, through an alias where the queue has one."""
        server = self._workers.server(name)
        if server is not None:
            self._queried_s[name] = time.monotonic()
            # With a dead model process each refusal takes a second; a shorter deadline finds it sooner.
            hurry = self._failed.get(name, 0) >= _FAILED_IN_A_ROW
            self._canaries.ask(server, self._tried(server), deadline_s=_HURRIED_S if hurry else None)

    def close(self) -> None:
        """End the threads."""
        self._watch.close()
        self._engine.close()
        self._canaries.close()
        self._split.close()
        self._quotas.close()

    @property
    def troubles(self) -> dict[str, str]:
        """Why the engine or the monitor does not answer; empty where it does."""
        silent_s = time.monotonic() - self._heard_s
        deaf = f"no request log for {_DEAF_S:g} s: slow servers are not detected"
        return {"engine": self._engine.trouble, "monitor": deaf if silent_s > _DEAF_S else ""}

    def _query_engine(self, servers: Mapping[str, Server], failed: bool, now: float) -> None:
        news = self._watch.news(servers.values())
        self._reports += [(now, one) for one in news]
        self._engine.ask(now, 0.0 if self._reports else ENGINE_HURRIED_S if failed else ENGINE_EVERY_S)
        # An engine that is shutting down reports many deaths and answers no query. Such reports do not count.
        for at, one in self._reports:
            if self._engine.answered_s >= at:
                which = self._impaired if one.impaired else self._lost
                which.update(dict.fromkeys(one.servers, one.reason))
        self._reports = [(at, one) for at, one in self._reports if self._engine.answered_s < at]

    def _answers(self, servers: dict[str, Server], now: float) -> list[Answer]:
        if servers != self._known:
            self._forget({name: s for name, s in self._known.items() if name not in servers})
            self._known = servers
            self._by_address = {
                (s.host, port): name for name, s in servers.items() for port in (s.http_port, s.grpc_port)
            }
        answers = []
        # Log lines have the time of day, which may be changed at any time.
        ahead_s = time.time() - now
        ends = self._requests.take()
        if self._requests.heard_since_s < now:
            self._heard_s = now
        for end in ends:
            name = self._by_address.get((end.host, end.port), "")
            answers.append(
                Answer(min(now, end.ended_s - ahead_s), end.latency_ms, end.failed, end.endpoint, name)
            )
            if not name:
                continue  # says nothing about a server's health
            if end.failed:
                self._failed[name] = self._failed.get(name, 0) + 1
            else:
                self._failed[name] = 0
                self._answered_s[name] = now
        return answers

    def _forget(self, gone: Mapping[str, Server]) -> None:
        """Drop the data of stopped servers: a controller runs for long, and a canary may be large."""
        kept: tuple[dict[str, Any], ...] = (
            self._since_s,
            self._queried_s,
            self._answered_s,
            self._failed,
            self._active_s,
            self._in_flight_of,
        )
        for name, server in gone.items():
            self._canaries.forget(server.name)
            self._quotas.forget(server.name)
            self._lost.pop(server.name, None)
            self._impaired.pop(server.name, None)
            for one in kept:
                one.pop(name, None)

    def _tried(self, server: Server) -> tuple[str, ...]:
        """Return one endpoint of each queue, an alias where there is one, to test a request's whole path."""
        watch = self._state.watches.get(server.spec.labels.partition)
        if watch is None:
            return server.spec.endpoints
        return tuple(promise.endpoints[-1] for promise in watch.partition.promises)

    def _canary(self, name: str, server: Server, now: float) -> tuple[Health, str]:
        verdict = self._canaries.verdict(server.name)
        answered = self._answered_s.get(name, -1e9)
        latest = max(answered, self._queried_s.get(name, -1e9))
        first_failure = verdict is not None and verdict.failures == 1 and verdict.at_s > latest
        if first_failure or now - latest > CANARY_EVERY_S:
            self.probe(name)
        # A single canary may fail by chance, but not if all requests fail too.
        enough = 1 if self._failed.get(name, 0) >= _FAILED_IN_A_ROW else 2
        if verdict is not None and verdict.failures >= enough and verdict.at_s > answered:
            return Health.FAILING, verdict.reason
        return Health.READY, ""

    def _split_of(self, watch: Watch, server: Server, now: float) -> _Times:
        if suspicion(watch) > SUSPICIOUS:
            # The models' own statistics: an alias does not count the time in its model's queue.
            self._split.ask(server, [promise.endpoint for promise in watch.partition.promises], now)
        return self._split.found(server.name, now)

    def _in_flight(self, watch: Watch, server: Server, now: float) -> int:
        """Return the server's requests in flight, which are read only if it is silent under load."""
        name = watch.active.server
        asked, in_flight = self._in_flight_of.get(name, (-math.inf, 0))
        # Silence counts only while the log is complete, since the server is routed, and since its requests in
        # flight were last read as 0.
        since = max(
            self._answered_s.get(name, -math.inf),
            self._active_s.setdefault(name, now),
            self._requests.heard_since_s,
            -math.inf if in_flight else asked,
        )
        expected = (now - since) * sum(rates[0] for rates in watch.rates_rps)
        if now - since < SILENT_S or (expected < _SILENT_REQUESTS and not in_flight):
            return 0
        if now - asked > SILENT_S and now > self._gateway_again_s:
            try:
                in_flight = self._gateway.in_flight(backend(server))
            except GatewayError:
                # A hanging gateway blocks each query until its deadline, so it is not queried again at once.
                in_flight, self._gateway_again_s = 0, time.monotonic() + _GATEWAY_AGAIN_S
            self._in_flight_of[name] = (now, in_flight)
        return in_flight


class _Engine:
    """The servers that run according to the engine, queried in a thread."""

    def __init__(self, launcher: Launcher, fleet: str) -> None:
        self._launcher = launcher
        self._fleet = fleet
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._running: frozenset[str] = frozenset()
        self._queried_s = -math.inf
        self._under_way = False
        self.answered_s = -math.inf
        """The time of the latest answered query."""
        self.trouble = ""

    def ask(self, now: float, every_s: float) -> None:
        """Start a query, unless the last one is recent or still unanswered."""
        if self._under_way and now - self._queried_s > _ENGINE_LATE_S:
            self.trouble = f"the engine has not answered for {_ENGINE_LATE_S:g} s"
        if not self._under_way and now - self._queried_s >= every_s:
            self._queried_s, self._under_way = now, True
            self._pool.submit(self._ask, now)

    def misses(self, name: str, since_s: float) -> bool:
        """Return whether a query after `since_s` did not list this server."""
        return self.answered_s > since_s and name not in self._running

    def close(self) -> None:
        """End the thread."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _ask(self, now: float) -> None:
        try:
            found = self._launcher.servers(self._fleet)
            self._running = frozenset(s.name for s in found if s.state is ServerState.RUNNING)
            self.trouble, self.answered_s = "", now
        except Exception as error:  # any error: the engine gave no answer
            self.trouble = str(error) or repr(error)
        finally:
            self._under_way = False


class _Times(NamedTuple):
    """Mean times of a server under suspicion, those of its slowest model, and inferences per request."""

    queue_ms: float | None = None
    compute_ms: float | None = None
    inferences: Mapping[str, float] = MappingProxyType({})


_UNKNOWN = _Times()


class _Split:
    """Times of servers under suspicion, from Triton's counters, read in threads."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="statistics")
        self._lock = threading.Lock()
        self._queried_s: dict[str, float] = {}
        self._before: dict[tuple[str, str], ModelStatistics] = {}
        self._found: dict[str, tuple[float, _Times]] = {}

    def ask(self, server: Server, models: Sequence[str], now: float) -> None:
        """Start to read the counters of the models, unless the last reading is recent."""
        if now - self._queried_s.get(server.name, -1e9) < STATISTICS_EVERY_S:
            return
        self._queried_s[server.name] = now
        self._pool.submit(self._read, server, models)

    def found(self, name: str, now: float) -> _Times:
        """Return the latest times; `_UNKNOWN` without a recent reading."""
        with self._lock:
            at, times = self._found.get(name, (-math.inf, _UNKNOWN))
        return times if now - at < _STATISTICS_KEPT_S else _UNKNOWN

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _read(self, server: Server, models: Sequence[str]) -> None:
        passed = {}
        try:
            with StatisticsClient(server, deadline_s=2.0) as client:
                for model in models:
                    now = client.read(model)
                    before = self._before.get((server.name, model))
                    self._before[server.name, model] = now
                    if before is not None:
                        passed[model] = difference(before, now)
        except EngineError:
            return

        def slowest(mean_of: Callable[[ModelStatistics], float | None]) -> float | None:
            return max((mean for p in passed.values() if (mean := mean_of(p)) is not None), default=None)

        each = {model: n for model, p in passed.items() if (n := inferences_each(p)) is not None}
        times = _Times(slowest(queue_ms), slowest(compute_ms), each)
        with self._lock:
            self._found[server.name] = (time.monotonic(), times)
