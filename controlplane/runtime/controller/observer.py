"""Observation for the guard: ended requests and the health of every server, at low cost.

Most servers of a large fleet do nothing new. So a look renews only what is seen of servers with requests or
news (of the workers, canaries, launcher or engine), and of partitions that the guard looks at. Quotas are
read only for active servers among these, Triton's statistics and HAProxy's sessions only under suspicion. An
idle server and a shadow get a canary now and then.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from controlplane.control.guard import attention
from controlplane.control.guard.signals import resumed, suspicion
from controlplane.control.guard.state import GuardState, Watch
from controlplane.domain.errors import GatewayError
from controlplane.domain.fleet import Server
from controlplane.domain.observation import Answer, FleetSeen, Health, News, ServerSeen
from controlplane.monitor.canary import Canaries
from controlplane.monitor.records import Record
from controlplane.ports import Gateway, Host, Launcher
from controlplane.runtime.controller.agenda import Agenda
from controlplane.runtime.controller.engine import AT_ONCE, CALM, HURRIED, EngineQueries
from controlplane.runtime.controller.quotas import Quotas
from controlplane.runtime.controller.suspects import UNKNOWN, Times, TimesOfSuspects
from controlplane.runtime.controller.workers import Condition, Workers
from controlplane.runtime.fleet.execute import backend

_DEAF_S = 5.0
_GATEWAY_AGAIN_S = 2.0
CANARY_EVERY_S = 5.0
CANARIES_RPS = 25.0
"""The most canaries to idle servers and shadows: where these are more than 125, each gets one less often."""
SILENT_S = 0.2
SUSPICIOUS = 0.25
"""The evidence, of 1 for an alarm, from which on looking closer is worth its cost."""
_SILENT_REQUESTS = 3.0
_FAILED_IN_A_ROW = 5
_HURRIED_S = 0.5
_READY = ServerSeen(Health.READY)
_ABSENT = Condition(Health.GONE)


class Requests(Protocol):
    """The source of ended requests."""

    def take(self) -> Iterable[Record]:
        """Return the requests that ended since the call before, in order."""

    @property
    def heard_since_s(self) -> float:
        """The time (monotonic) since which no request is missing."""


class Observer:
    """Observes one fleet, once for each tick. Servers have the names that the guard gave them."""

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
        self._suspects = TimesOfSuspects()
        self._quotas = Quotas(launcher)
        self._watch = launcher.watch(fleet)
        self._lost: dict[str, str] = {}
        self._impaired: dict[str, str] = {}
        self._reports: list[tuple[float, News]] = []
        self._engine = EngineQueries(launcher, fleet)
        self._engine_answered_s = -math.inf
        self._missing: frozenset[str] = frozenset()
        self._conditions: Mapping[str, Condition] = {}
        self._servers: Mapping[str, Server] = {}
        self._running: tuple[Server, ...] = ()
        self._by_own_name: dict[str, str] = {}
        self._by_address: dict[tuple[str, int], str] = {}
        self._since_s: dict[str, float] = {}
        self._queried_s: dict[str, float] = {}
        self._answered_s: dict[str, float] = {}
        self._failed: dict[str, int] = {}
        self._active_s: dict[str, float] = {}
        self._in_flight_of: dict[str, tuple[float, int]] = {}
        self._silences = Agenda()
        self._idle = Agenda()
        self._canaries_left = CANARIES_RPS
        self._looked_s = self._heard_s = time.monotonic()
        self._gateway_again_s = -math.inf
        self._state = GuardState({})
        self._seen: Mapping[str, ServerSeen] = {}

    def look(self, state: GuardState) -> FleetSeen:
        """Return the present observation of the fleet."""
        now = time.monotonic()
        self._state = state
        new = self._changed_servers()
        answers = self._answers(now)
        new.update(answer.server for answer in answers)
        self._query_engine(any(a.failed and a.server for a in answers), now)
        new.update(self._named(self._news()))
        new.update(self._named(self._canaries.finished()))
        new.update(state.watches[p].active.server for p in attention.due(state, now))
        while (name := self._silences.take(now)) is not None:
            new.add(name)
        self._renew(new & self._conditions.keys(), now)
        self._send_canaries(now)
        self._looked_s = now
        return FleetSeen(now, tuple(answers), self._seen, self._host.seen())

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
        self._suspects.close()
        self._quotas.close()

    @property
    def troubles(self) -> dict[str, str]:
        """Why the engine or the monitor does not answer; empty where it does."""
        silent_s = time.monotonic() - self._heard_s
        deaf = f"no request log for {_DEAF_S:g} s: slow servers are not detected"
        return {"engine": self._engine.trouble, "monitor": deaf if silent_s > _DEAF_S else ""}

    def _renew(self, names: Iterable[str], now: float) -> None:
        """Look at these servers. What was seen stays the same mapping unless one of them looks different."""
        found = {name: self._look_at(name, now) for name in names}
        different = {name: seen for name, seen in found.items() if self._seen.get(name) != seen}
        gone = self._seen.keys() - self._conditions.keys()
        if different or gone:
            kept = {name: seen for name, seen in self._seen.items() if name not in gone}
            self._seen = {**kept, **different}

    def _changed_servers(self) -> set[str]:
        """Take over what the workers know now; return the servers of which that changed."""
        before, self._conditions = self._conditions, self._workers.conditions()
        changed = {name for name, found in self._conditions.items() if before.get(name) is not found}
        servers = self._workers.servers()
        if servers != self._servers:
            changed |= {name for name, server in servers.items() if self._servers.get(name) != server}
            self._forget({name: s for name, s in self._servers.items() if name not in servers})
            self._servers, self._running = servers, tuple(servers.values())
            self._by_own_name = {s.name: name for name, s in servers.items()}
            self._by_address = {
                (s.host, port): name for name, s in servers.items() for port in (s.http_port, s.grpc_port)
            }
        return changed

    def _query_engine(self, failed: bool, now: float) -> None:
        self._reports += [(now, one) for one in self._watch.news(self._running)]
        # A launcher watches a model's process from the first list with it on.
        unlisted = not self._by_own_name.keys() <= self._engine.running
        self._engine.ask(now, AT_ONCE if self._reports else HURRIED if failed or unlisted else CALM)

    def _news(self) -> set[str]:
        """Return the servers, by their own names, that are lost, impaired or missing by now, or are back."""
        answered_s = self._engine.answered_s
        # An engine that is shutting down reports many deaths and answers no query. Such reports do not count.
        believed = [one for at, one in self._reports if answered_s >= at]
        self._reports = [(at, one) for at, one in self._reports if answered_s < at]
        for one in believed:
            which = self._impaired if one.impaired else self._lost
            which.update(dict.fromkeys(one.servers, one.reason))
        found = {name for one in believed for name in one.servers}
        if answered_s != self._engine_answered_s:
            before, self._engine_answered_s = self._missing, answered_s
            self._missing = frozenset(self._by_own_name.keys() - self._engine.running)
            found |= before | self._missing
        return found

    def _named(self, own_names: Iterable[str]) -> set[str]:
        return {self._by_own_name[name] for name in own_names if name in self._by_own_name}

    def _answers(self, now: float) -> list[Answer]:
        answers = []
        # Log lines have the time of day, which may be changed at any time.
        ahead_s = time.time() - now
        ends = self._requests.take()
        if self._requests.heard_since_s < now:
            self._heard_s = now
        for end in ends:
            name = self._by_address.get((end.host, end.port), "")
            ended_s = min(now, end.ended_s - ahead_s)
            answers.append(
                Answer(ended_s, end.latency_ms, end.failed, end.endpoint, name, end.held, end.client)
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
            self._suspects.forget(server.name)
            self._lost.pop(server.name, None)
            self._impaired.pop(server.name, None)
            self._silences.forget(name)
            self._idle.forget(name)
            for one in kept:
                one.pop(name, None)

    def _look_at(self, name: str, now: float) -> ServerSeen:
        condition, server = self._conditions[name], self._servers.get(name)
        if server is None:
            return _plain(condition.health, condition.reason)
        health, reason = self._health(name, condition, server, now)
        watch = self._state.watches.get(server.spec.labels.partition)
        if watch is None or watch.active.server != name or health not in (Health.READY, Health.IMPAIRED):
            return _plain(health, reason)
        suspected = suspicion(watch) > SUSPICIOUS
        times = self._times_of(watch, server, now, suspected=suspected)
        in_flight = self._in_flight(watch, server, now)
        if suspected or self._answered_s.get(name) == now:
            self._quotas.ask(server, now, hurried=suspected)
        delays = self._quotas.delays(server.name, now)
        if not in_flight and times is UNKNOWN and delays is None:
            return _plain(health, reason)
        return ServerSeen(
            health, in_flight, times.queue_ms, times.compute_ms, reason, times.inferences, delays
        )

    def _health(self, name: str, condition: Condition, server: Server, now: float) -> tuple[Health, str]:
        health, reason = condition.health, condition.reason
        if health is Health.UNLOADED:
            self._impaired.pop(server.name, None)  # it concerned a model that was unloaded
        if health in (Health.READY, Health.UNLOADED) and server.name in self._lost:
            return Health.GONE, self._lost[server.name]
        if health is not Health.READY:
            return health, reason
        if self._engine_answered_s > self._since_s.setdefault(name, now) and server.name in self._missing:
            return Health.GONE, self._engine.ends.get(server.name, "its process ended")
        health, reason = self._verdict(name, server)
        if health is Health.READY and server.name in self._impaired:
            return Health.IMPAIRED, self._impaired[server.name]
        return health, reason

    def _verdict(self, name: str, server: Server) -> tuple[Health, str]:
        """Return the health by the canaries, and send another one soon where the last one failed."""
        latest_s = self._latest_s(name)
        self._idle.put(name, latest_s + CANARY_EVERY_S)
        verdict = self._canaries.verdict(server.name)
        if verdict is None:
            return Health.READY, ""
        if verdict.failures == 1 and verdict.at_s > latest_s:
            self.probe(name)
        # A single canary may fail by chance, but not if all requests fail too.
        enough = 1 if self._failed.get(name, 0) >= _FAILED_IN_A_ROW else 2
        if verdict.failures >= enough and verdict.at_s > self._answered_s.get(name, -math.inf):
            return Health.FAILING, verdict.reason
        return Health.READY, ""

    def _latest_s(self, name: str) -> float:
        """Return when a server last answered a request or was sent a canary."""
        return max(self._answered_s.get(name, -math.inf), self._queried_s.get(name, -math.inf))

    def _send_canaries(self, now: float) -> None:
        """Send canaries to the servers whose last request or canary is longest ago, as many as are due."""
        more = CANARIES_RPS * (now - self._looked_s)
        self._canaries_left = min(CANARIES_RPS, self._canaries_left + more)
        while self._canaries_left >= 1.0 and (name := self._idle.take(now)) is not None:
            condition = self._conditions.get(name, _ABSENT)
            if condition.health is not Health.READY or name not in self._servers:
                continue  # it is due again once it is ready
            due_s = self._latest_s(name) + CANARY_EVERY_S
            if due_s <= now:
                self.probe(name)
                self._canaries_left -= 1.0
                due_s = now + CANARY_EVERY_S
            self._idle.put(name, due_s)

    def _tried(self, server: Server) -> tuple[str, ...]:
        """Return one endpoint of each queue, an alias where there is one, to test a request's whole path."""
        watch = self._state.watches.get(server.spec.labels.partition)
        if watch is None:
            return server.spec.endpoints
        return tuple(promise.endpoints[-1] for promise in watch.partition.promises)

    def _times_of(self, watch: Watch, server: Server, now: float, *, suspected: bool) -> Times:
        if suspected:
            # The models' own statistics: an alias does not count the time in its model's queue.
            self._suspects.ask(server, [promise.endpoint for promise in watch.partition.promises], now)
        return self._suspects.found(server.name, now)

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
        silent_s = SILENT_S
        if not in_flight:
            rate_rps = sum(rates[0] for rates in resumed(watch, self._state.now_s).rates_rps)
            silent_s = max(SILENT_S, _SILENT_REQUESTS / rate_rps if rate_rps > 0.0 else math.inf)
        if now - since < silent_s:
            self._silences.put(name, since + silent_s)
            return 0
        if now - asked > SILENT_S and now > self._gateway_again_s:
            try:
                in_flight = self._gateway.in_flight(backend(server))
            except GatewayError:
                # A hanging gateway blocks each query until its deadline, so it is not queried again at once.
                in_flight, self._gateway_again_s = 0, time.monotonic() + _GATEWAY_AGAIN_S
            self._in_flight_of[name] = (now, in_flight)
        self._silences.put(name, now)
        return in_flight


def _plain(health: Health, reason: str) -> ServerSeen:
    return _READY if health is Health.READY else ServerSeen(health, reason=reason)
