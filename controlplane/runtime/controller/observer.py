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
from controlplane.control.guard.host import contention
from controlplane.control.guard.signals import patience_s, resumed, suspicion
from controlplane.control.guard.state import GuardState, Watch
from controlplane.domain.errors import GatewayError
from controlplane.domain.fleet import NOTHING_IN_FLIGHT, InFlight, Server
from controlplane.domain.observation import OUT_OF_MEMORY, Answer, FleetSeen, Health, News, ServerSeen
from controlplane.monitor.canary import Canaries, Outcome, Verdict
from controlplane.monitor.records import Record
from controlplane.ports import Gateway, Host, Launcher
from controlplane.runtime.controller.agenda import Agenda
from controlplane.runtime.controller.engine import AT_ONCE, CALM, HURRIED, EngineQueries
from controlplane.runtime.controller.quotas import Quotas
from controlplane.runtime.controller.suspects import SILENT_READINGS, Signs, TimesOfSuspects
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
_LULL_S = 1.0
"""The longest silence of a server with traffic until its open requests are read, in a small fleet; ..."""
_LULLS_RPS = 50.0
"""... and how many servers are read in a second in a large one."""
_SILENT_IF_CONTENDED = 8
"""Readings without an answer that show a hang on a contended host."""
_RARE_RPS = 0.02
"""Requests that come more rarely are no traffic."""
_FAILED_IN_A_ROW = 5
_CANARY_S = 2.0
"""The shortest deadline of a canary; that of a slow model is longer."""
_READY = ServerSeen(Health.READY)
_SERVING = (Health.READY, Health.ENDING, Health.IMPAIRED)
_GRAVITY = (Health.ENDING, Health.IMPAIRED, Health.GONE)
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
        self.exhausted_mb: dict[str, float] = {}
        """The memory limits of which a server ran out, by partition."""
        self._reported: dict[str, News] = {}
        self._reports: list[tuple[float, News]] = []
        self._engine = EngineQueries(launcher, fleet)
        self._engine_answered_s = -math.inf
        self._missing: frozenset[str] = frozenset()
        self._remarkable: frozenset[str] = frozenset()
        self._conditions: Mapping[str, Condition] = {}
        self._servers: Mapping[str, Server] = {}
        self._running: tuple[Server, ...] = ()
        self._by_own_name: dict[str, str] = {}
        self._by_address: dict[tuple[str, int], str] = {}
        self._since_s: dict[str, float] = {}
        self._queried_s: dict[str, float] = {}
        self._answered_s: dict[str, float] = {}
        # Also with a refusal or a failure: its process works.
        self._spoke_s: dict[str, float] = {}
        self._failed: dict[str, int] = {}
        self._canaries_failed: dict[str, tuple[int, Verdict]] = {}
        self._active_s: dict[str, float] = {}
        self._in_flight_of: dict[str, tuple[float, InFlight]] = {}
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
        finished = self._named(self._canaries.finished())
        for server_name in finished:
            self._weigh(server_name, now)
        new.update(finished)
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
            watch = self._state.watches.get(server.spec.labels.partition)
            slow_s = patience_s(watch, self._state.limits) if watch is not None else 0.0
            self._canaries.ask(server, self._tried(server), deadline_s=max(_CANARY_S, slow_s))

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
        """Return the servers, by their own names, of which the launcher or the engine has news."""
        answered_s = self._engine.answered_s
        # An engine that is shutting down reports many deaths and answers no query. Such reports do not count.
        believed = [one for at, one in self._reports if one.certain or answered_s >= at]
        self._reports = [(at, one) for at, one in self._reports if not one.certain and answered_s < at]
        for one in believed:
            self._note(one)
        found = {name for one in believed for name in one.servers}
        if answered_s != self._engine_answered_s:
            before, self._engine_answered_s = self._remarkable, answered_s
            self._missing = frozenset(self._by_own_name.keys() - self._engine.running)
            self._remarkable = self._missing | self._engine.paused | self._engine.ends.keys()
            found |= before | self._remarkable
        return found

    def _note(self, news: News) -> None:
        """Keep the gravest news of each server. Whether one is paused, the engine's list says."""
        if news.health not in _GRAVITY:
            return
        for name in news.servers:
            known = self._reported.get(name)
            if known is None or _GRAVITY.index(known.health) <= _GRAVITY.index(news.health):
                self._reported[name] = news

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
                Answer(
                    ended_s,
                    end.latency_ms,
                    end.failed,
                    end.endpoint,
                    name,
                    end.refused,
                    end.held,
                    end.client,
                )
            )
            if not name:
                continue  # says nothing about a server's health
            self._spoke_s[name] = now
            if end.unloaded:
                own_name = self._servers[name].name
                self._note(News((own_name,), "it has unloaded its models", health=Health.ENDING))
            if end.failed:
                self._failed[name] = self._failed.get(name, 0) + 1
            elif not end.refused:  # a full queue shows that the server lives, not that it works
                self._failed[name] = 0
                self._answered_s[name] = now
        return answers

    def _forget(self, gone: Mapping[str, Server]) -> None:
        """Drop the data of stopped servers: a controller runs for long, and a canary may be large."""
        kept: tuple[dict[str, Any], ...] = (
            self._since_s,
            self._queried_s,
            self._answered_s,
            self._spoke_s,
            self._failed,
            self._canaries_failed,
            self._active_s,
            self._in_flight_of,
        )
        for name, server in gone.items():
            self._canaries.forget(server.name)
            self._quotas.forget(server.name)
            self._suspects.forget(server.name)
            self._reported.pop(server.name, None)
            self._silences.forget(name)
            self._idle.forget(name)
            for one in kept:
                one.pop(name, None)

    def _look_at(self, name: str, now: float) -> ServerSeen:
        condition, server = self._conditions[name], self._servers.get(name)
        if server is None:
            return _plain(condition.health, condition.reason)
        health, reason = self._health(name, condition, server, now)
        if OUT_OF_MEMORY in reason and server.spec.memory_limit_mb is not None:
            self.exhausted_mb[server.spec.labels.partition] = server.spec.memory_limit_mb
        watch = self._state.watches.get(server.spec.labels.partition)
        if watch is None or watch.active.server != name or health not in _SERVING:
            return _plain(health, reason)
        suspected = suspicion(watch) > SUSPICIOUS
        in_flight = self._in_flight(watch, server, now)
        if suspected or in_flight.unanswered:
            # The models' own statistics: an alias does not count the time in its model's queue.
            self._suspects.ask(server, [promise.endpoint for promise in watch.partition.promises], now)
        times, signs = self._suspects.found(server.name, now), self._suspects.signs(server.name, now)
        if health is Health.READY and in_flight.unanswered and self._is_silent(signs):
            return ServerSeen(Health.HUNG, in_flight.requests, reason=Outcome.SILENT)
        if suspected or self._answered_s.get(name) == now:
            self._quotas.ask(server, now, hurried=suspected)
        seen = ServerSeen(
            health,
            in_flight.requests,
            times.queue_ms,
            times.compute_ms,
            reason,
            times.inferences,
            self._quotas.delays(server.name, now),
            in_flight.streaming,
            progressed=signs.moved_s > self._looked_s,
        )
        return _READY if seen == _READY else seen

    def _health(self, name: str, condition: Condition, server: Server, now: float) -> tuple[Health, str]:
        health, reason = condition.health, condition.reason
        news = self._reported.get(server.name)
        if health is Health.UNLOADED and news is not None and news.health is Health.IMPAIRED:
            del self._reported[server.name]  # it concerned a model that was unloaded
        if health in (Health.READY, Health.UNLOADED) and news is not None and news.health is Health.GONE:
            return Health.GONE, news.reason
        if health is not Health.READY:
            return health, reason
        if self._engine_answered_s > self._since_s.setdefault(name, now) and server.name in self._missing:
            return Health.GONE, self._engine.ends.get(server.name, "its process ended")
        if server.name in self._engine.paused:
            return Health.PAUSED, "it is paused"
        health, reason = self._verdict(name, server)
        if health is not Health.READY:
            return health, reason
        if news is not None:
            return news.health, news.reason
        if server.name in self._engine.ends:
            return Health.ENDING, self._engine.ends[server.name]
        return health, reason

    def _weigh(self, name: str, now: float) -> None:
        """Count failed canaries in a row. A canary without an answer behind other requests shows nothing."""
        verdict = self._canaries.verdict(self._servers[name].name) if name in self._servers else None
        if verdict is None or verdict.outcome is Outcome.UNKNOWN:
            return
        overtaken = verdict.outcome is Outcome.LATE and (
            self._answered_s.get(name, -math.inf) > verdict.sent_s or self._is_busy(name, now)
        )
        if verdict.outcome is Outcome.ANSWERED or overtaken:
            self._canaries_failed.pop(name, None)
        else:
            failures, _ = self._canaries_failed.get(name, (0, verdict))
            self._canaries_failed[name] = failures + 1, verdict

    def _is_busy(self, name: str, now: float) -> bool:
        """Return whether clients' requests are open on a server, or that is not known."""
        try:
            in_flight = self._gateway.in_flight(backend(self._servers[name]))
        except GatewayError:
            return True
        self._in_flight_of[name] = now, in_flight
        return in_flight.unanswered > 0

    def _verdict(self, name: str, server: Server) -> tuple[Health, str]:
        """Return the health by the canaries, and send another one soon where the last one failed."""
        latest_s = self._latest_s(name)
        self._idle.put(name, latest_s + CANARY_EVERY_S)
        failures, verdict = self._canaries_failed.get(name, (0, None))
        if verdict is None:
            return Health.READY, ""
        if failures == 1 and verdict.at_s > latest_s:
            self.probe(name)
        # A single canary may fail by chance, but not if all requests fail too.
        enough = 1 if self._failed.get(name, 0) >= _FAILED_IN_A_ROW else 2
        if failures >= enough and verdict.at_s > self._answered_s.get(name, -math.inf):
            silent = verdict.outcome is Outcome.SILENT
            return Health.HUNG if silent else Health.FAILING, verdict.reason
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

    def _is_silent(self, signs: Signs) -> bool:
        """Return whether a process answered no reading; a contended host delays a healthy one."""
        contended = bool(contention(self._host.seen()))
        return signs.silent >= (_SILENT_IF_CONTENDED if contended else SILENT_READINGS)

    def _in_flight(self, watch: Watch, server: Server, now: float) -> InFlight:
        """Return the server's requests in flight, which are read only if it is silent under load."""
        name = watch.active.server
        asked, in_flight = self._in_flight_of.get(name, (-math.inf, NOTHING_IN_FLIGHT))
        # Silence counts only while the log is complete, since the server is routed, and since its requests in
        # flight were last read as 0.
        since = max(
            self._spoke_s.get(name, -math.inf),
            self._active_s.setdefault(name, now),
            self._requests.heard_since_s,
            -math.inf if in_flight.unanswered else asked,
        )
        silent_s = SILENT_S
        if not in_flight.unanswered:
            rates_rps = [max(rates) for rates in resumed(watch, self._state.now_s).rates_rps]
            lull_s = max(_LULL_S, len(self._servers) / _LULLS_RPS) if max(rates_rps) > _RARE_RPS else math.inf
            silent_s = max(SILENT_S, min(_SILENT_REQUESTS / max(sum(rates_rps), _RARE_RPS), lull_s))
        if now - since < silent_s:
            self._silences.put(name, since + silent_s)
            return NOTHING_IN_FLIGHT
        if now - asked > SILENT_S and now > self._gateway_again_s:
            try:
                in_flight = self._gateway.in_flight(backend(server))
            except GatewayError:
                # A hanging gateway blocks each query until its deadline, so it is not queried again at once.
                in_flight, self._gateway_again_s = NOTHING_IN_FLIGHT, time.monotonic() + _GATEWAY_AGAIN_S
            self._in_flight_of[name] = (now, in_flight)
        self._silences.put(name, now)
        return in_flight


def _plain(health: Health, reason: str) -> ServerSeen:
    return _READY if health is Health.READY else ServerSeen(health, reason=reason)
