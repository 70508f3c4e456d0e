"""Observation for the guard: answers and the health of every server, at low cost.

Most servers of a large fleet do nothing new. So a look renews only what is seen of servers with answers or
news (of the workers, canaries, launcher or engine), and of partitions that the guard looks at. Quotas are
read only for active servers among these, Triton's statistics and HAProxy's sessions only under suspicion. An
idle server and a shadow get a canary now and then.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

from controlplane.control.guard.deaths import overdue_s, patience_s
from controlplane.control.guard.observe import LOOK_S, SUSPICIOUS, due
from controlplane.control.guard.rule import contention, starved, suspicion
from controlplane.control.guard.state import GuardState, Watch
from controlplane.domain.errors import GatewayError
from controlplane.domain.fleet import Batches, InFlight, Server
from controlplane.domain.observation import OUT_OF_MEMORY, FleetSeen, Health, ServerSeen
from controlplane.ports import Gateway, Host, Launcher
from controlplane.runtime.controller.answers import AnswerLog, OpenRequests, Requests
from controlplane.runtime.controller.engine import EngineNews
from controlplane.runtime.controller.probes import (
    READ_EVERY_S,
    SILENT_READINGS,
    Outcome,
    QuotaReading,
    Readings,
    ServerRecord,
    Verdict,
    read_quota,
    send_canary,
)
from controlplane.runtime.controller.workers import Condition, Workers
from controlplane.runtime.fleet.execute import backend
from controlplane.runtime.polled import Agenda, Polled

_DEAF_S = 5.0
CANARY_EVERY_S = 5.0
_STANDING_BY = 2.0
"""A shadow gets one as many times less often: nothing waits for it yet."""
CANARIES_RPS = 25.0
"""The most canaries to idle servers and shadows: where more are due, each gets one less often."""
_CANARY_THREADS = 32
"""A canary may wait as long as its model takes, and must keep no other one waiting."""
QUOTA_EVERY_S = 1.0
QUOTA_HURRIED_S = 0.1
_LATELY_S = 3.0 * LOOK_S
"""Answers wait for one look or two, which come late themselves."""
_UNCOUNTED_EVERY_S = 15.0
"""Between two readings of a server of which nothing counts the delays, as of a pod's."""
_NEARLY = 0.5
"""The evidence from which on Triton's counters are read as often as may be; ..."""
_READ_NOW_AND_THEN_S = 0.5
"""... and the interval below: a verdict needs two."""
_SILENT_IF_CONTENDED = 8
"""Readings without an answer that show a hang on a contended host."""
_IF_CONTENDED = 2
"""How many times as many canaries show one, by what they take."""
_FAILED_IN_A_ROW = 5
_CANARY_S = 2.0
"""The shortest deadline of a canary; that of a slow model is longer."""
_READY = ServerSeen(Health.READY)
_SERVING = (Health.READY, Health.ENDING, Health.IMPAIRED)
_ABSENT = Condition(Health.GONE)


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
        self._launcher = launcher
        self._engine = EngineNews(launcher, fleet)
        self._canaries: Polled[Verdict] = Polled(_CANARY_THREADS, "canary")
        self._readings = Readings()
        self._quotas: Polled[QuotaReading] = Polled(1, "quotas")
        self.exhausted_mb: dict[str, float] = {}
        """The memory limits of which a server ran out, by partition."""
        self._conditions: Mapping[str, Condition] = {}
        self._servers: Mapping[str, Server] = {}
        self._records: dict[str, ServerRecord] = {}
        self._log = AnswerLog(requests, self._records, self._queue)
        self._open = OpenRequests(gateway, self._records)
        self._idle = Agenda()
        self._canaries_left = CANARIES_RPS
        self._looked_s = time.monotonic()
        self._state = GuardState({})
        self._seen: Mapping[str, ServerSeen] = {}

    def look(self, state: GuardState) -> FleetSeen:
        """Return the present observation of the fleet."""
        now = time.monotonic()
        self._state = state
        new = self._changed_servers()
        for name, reading in self._readings.take():
            self._records[name].signs.take(reading)
        for name, used in self._quotas.take():
            self._records[name].quota.take(used)
        new.update(state.watches[p].active.server for p in due(state, now))
        new |= self._open.due(now, self._watch, self._log.since_s)
        since_s, answers = self._log.take(now, {"", *new})
        new.update(answer.server for answer in answers)
        new |= self._news(now, failed=any(a.failed and a.server for a in answers))
        for name, verdict in self._canaries.take():
            self._weigh(self._records[name], verdict, now)
            new.add(name)
        self._renew(new & self._conditions.keys(), now)
        self._send_canaries(now)
        self._looked_s = now
        return FleetSeen(now, tuple(answers), self._seen, self._host.seen(), since_s)

    def probe(self, name: str) -> None:
        """Send a canary to each queue of a server now."""
        record = self._records.get(name)
        if record is None or self._workers.server(name) is None:
            return
        now = record.canary_s = time.monotonic()
        server = record.server
        watch = self._watch(server)
        slow_s = patience_s(watch, self._state.limits) if watch is not None else 0.0
        # Through an alias where there is one, to test a request's whole path.
        endpoints = [queue[-1] for queue in self._queues(server)]
        only_fails = any(record.signs.only_failed_since(q[0], -math.inf) for q in self._queues(server))
        deadline_s = _CANARY_S if only_fails and self._failing(record) else max(_CANARY_S, slow_s)
        discount = partial(self._gateway.discount, server.name)
        sending = partial(send_canary, server, endpoints, record.samples, discount, deadline_s)
        self._canaries.ask(name, sending, now)

    def close(self) -> None:
        """End the threads."""
        for one in (self._engine, self._canaries, self._readings, self._quotas):
            one.close()

    @property
    def troubles(self) -> dict[str, str]:
        """Why the engine or the monitor does not answer; empty where it does."""
        silent_s = time.monotonic() - self._log.heard_s
        deaf = f"no request log for {_DEAF_S:g} s: slow servers are not detected"
        return {"engine": self._engine.listed.trouble, "monitor": deaf if silent_s > _DEAF_S else ""}

    @property
    def batches(self) -> Mapping[str, Batches]:
        """The batches that can be changed, of each server by its name, as the engine listed them last."""
        return self._engine.listed.batches

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
            for name in self._servers.keys() - servers.keys():
                self._forget(name)
            for name, server in servers.items():
                self._records.setdefault(name, ServerRecord(server)).server = server
            self._servers = servers
            self._log.serve(servers)
        return changed

    def _news(self, now: float, *, failed: bool) -> set[str]:
        """Return the servers of which the launcher or the engine has news."""
        believed, changed = self._engine.look(self._servers.values(), now, failed=failed)
        found = self._servers.keys() & set(changed)
        for one in believed:
            for name in self._servers.keys() & set(one.servers):
                self._records[name].note(one)
                found.add(name)
        return found

    def _forget(self, name: str) -> None:
        """Drop the data of a stopped server: a controller runs for long, and a canary may be large."""
        del self._records[name]
        for polled in (self._canaries, self._readings, self._quotas):
            polled.forget(name)
        self._open.forget(name)
        self._idle.forget(name)

    def _look_at(self, name: str, now: float) -> ServerSeen:
        condition, record = self._conditions[name], self._records.get(name)
        if record is None:
            return _plain(condition.health, condition.reason)
        server = record.server
        health, reason = self._health(name, condition, record, now)
        if OUT_OF_MEMORY in reason and server.spec.memory_limit_mb is not None:
            self.exhausted_mb[server.spec.labels.partition] = server.spec.memory_limit_mb
        watch = self._watch(server)
        if health is Health.HUNG:
            return _hung(record.in_flight, reason)
        if watch is None or watch.active.server != name or health not in _SERVING:
            return _plain(health, reason)
        evidence = suspicion(watch)
        in_flight = self._open.read(watch, record, now, self._log.since_s)
        doubtful = evidence > SUSPICIOUS or in_flight.unanswered > 0
        if doubtful:
            hurried = evidence > _NEARLY or in_flight.unanswered > 0
            self._read_counters(server, now, READ_EVERY_S if hurried else _READ_NOW_AND_THEN_S)
        if doubtful or now - record.answered_s <= _LATELY_S:
            calm_s = QUOTA_EVERY_S if record.quota.counts else _UNCOUNTED_EVERY_S
            every_s = QUOTA_HURRIED_S if doubtful else calm_s
            self._quotas.ask(name, partial(read_quota, self._launcher, server), now, every_s)
        times, signs = record.signs.times(now), record.signs
        if health is Health.READY and in_flight.unanswered and self._is_silent(record, now):
            return _hung(in_flight, Outcome.SILENT)
        seen = ServerSeen(
            health,
            in_flight.requests,
            times.queue_ms,
            times.compute_ms,
            reason,
            times.inferences,
            record.quota.delays(now),
            in_flight.streaming,
            in_flight.sequences,
            progressed=signs.are_recent(now) and signs.moved_since(self._looked_s),
            failing=self._failing(record),
        )
        return _READY if seen == _READY else seen

    def _health(
        self, name: str, condition: Condition, record: ServerRecord, now: float
    ) -> tuple[Health, str]:
        health, reason = condition.health, condition.reason
        news, listed = record.news, self._engine.listed
        if health is Health.UNLOADED and news is not None and news.health is Health.IMPAIRED:
            record.news = None  # it concerned a model that was unloaded
        if health in (Health.READY, Health.UNLOADED) and news is not None and news.health is Health.GONE:
            return Health.GONE, news.reason
        if health is not Health.READY:
            return health, reason
        if record.ready_s is None:
            record.ready_s = now
        if self._engine.is_missing(name, record.ready_s):
            return Health.GONE, listed.ends.get(name, "its process ended")
        if name in listed.paused:
            return Health.PAUSED, "it is paused"
        health, reason = self._verdict(name, record)
        if health is not Health.READY:
            return health, reason
        if news is not None:
            return news.health, news.reason
        if name in listed.ends:
            return Health.ENDING, listed.ends[name]
        return health, reason

    def _weigh(self, record: ServerRecord, verdict: Verdict, now: float) -> None:
        """Count failed canaries in a row. A canary without an answer behind other requests shows nothing."""
        if verdict.outcome is Outcome.UNKNOWN:
            return
        if verdict.outcome is Outcome.ANSWERED:
            record.unanswered = None
            record.passed(tuple(record.left_s), verdict.sent_s)
            rows = record.failures.items()
            record.failures = {one: row for one, row in rows if row.last_s > verdict.sent_s}
        elif verdict.outcome is Outcome.LATE and self._only_fails(record, verdict):
            verdict = replace(verdict, outcome=Outcome.FAILED)
        elif verdict.outcome in (Outcome.LATE, Outcome.REFUSED) and self._is_overdue(record, verdict, now):
            verdict = replace(verdict, outcome=Outcome.OVERDUE, reason=Outcome.OVERDUE.value)
        if verdict.outcome in (Outcome.ANSWERED, Outcome.REFUSED) or (
            verdict.outcome in (Outcome.LATE, Outcome.SILENT)
            and (record.answered_s > verdict.sent_s or self._is_busy(record, verdict, now))
        ):
            record.lost, record.verdict = 0, None
        else:
            record.lost, record.verdict = record.lost + 1, verdict

    def _only_fails(self, record: ServerRecord, verdict: Verdict) -> bool:
        """Return whether a late canary's queue fails all requests that wait in it, as the canary does.

        Behind a long request a canary is late too, and requests may fail meanwhile that do not wait: Triton
        refuses what it cannot parse, a model with a queue of its own what it finds wrong, and neither counts
        as a failure of the model. What failed on the server before, which was left for that, and fails here
        from the first request on, is the fault of the requests.
        """
        queue = self._queue(record.server, verdict.endpoint)
        row, watch = record.failed(queue), self._watch(record.server)
        if watch is not None and watch.failed_s > record.answered(queue):
            return False
        waited = row.requests >= _FAILED_IN_A_ROW and row.waited_s > verdict.sent_s
        return waited and record.signs.only_failed_since(queue[0], verdict.sent_s)

    def _is_overdue(self, record: ServerRecord, verdict: Verdict, now: float) -> bool:
        """Return whether a model has answered no canary, and nothing else, for as long as a request may take.

        Other models of its server may answer all the while.
        """
        server = record.server
        self._read_counters(server, now)
        queue = self._queue(server, verdict.endpoint)
        endpoint, since_s = record.unanswered or ("", -math.inf)
        works_s = max(record.answered(queue), record.signs.moved_s.get(queue[0], -math.inf))
        if endpoint != verdict.endpoint or works_s > since_s:
            record.unanswered = verdict.endpoint, verdict.sent_s
            return False
        watch, limits = self._watch(server), self._state.limits
        sequences = record.in_flight.sequences
        allowed_s = limits.overdue_s if watch is None else overdue_s(watch, limits, sequences)
        return now - since_s > allowed_s and record.signs.compared_s > since_s

    def _read_counters(self, server: Server, now: float, every_s: float = READ_EVERY_S) -> None:
        """Read the models' own counters: those of an alias do not have the time in its model's queue."""
        self._readings.read(server.name, server, [queue[0] for queue in self._queues(server)], now, every_s)

    def _is_busy(self, record: ServerRecord, verdict: Verdict, now: float) -> bool:
        """Return whether a server may work on clients' requests, or that is not known.

        A server goes on with what its client has left, but its process answers calls meanwhile.
        """
        queue = self._queue(record.server, verdict.endpoint)
        if verdict.outcome is Outcome.LATE and not record.left_s.keys().isdisjoint(queue):
            return True
        try:
            record.in_flight = self._gateway.in_flight(backend(record.server))
        except GatewayError:
            return True
        record.in_flight_s = now
        return record.in_flight.unanswered > 0

    def _verdict(self, name: str, record: ServerRecord) -> tuple[Health, str]:
        """Return the health by the canaries, and send another one soon where the last one failed."""
        latest_s, verdict = self._tried_s(record), record.verdict
        self._idle.put(name, latest_s + self._every_s(name, record))
        if verdict is None:
            return Health.READY, ""
        # A single canary may fail by chance, but not if all requests fail too.
        tried = [queue for queue in self._queues(record.server) if verdict.endpoint in ("", *queue)]
        enough = 1 if any(record.failed(queue).requests >= _FAILED_IN_A_ROW for queue in tried) else 2
        if verdict.outcome in (Outcome.LATE, Outcome.SILENT) and contention(self._host.seen()):
            enough *= _IF_CONTENDED
        if record.lost < enough and verdict.at_s > latest_s:
            self.probe(name)
        if record.lost >= enough and verdict.at_s > max(map(record.answered, tried), default=-math.inf):
            hangs = verdict.outcome in (Outcome.SILENT, Outcome.OVERDUE)
            return Health.HUNG if hangs else Health.FAILING, verdict.reason
        return Health.READY, ""

    def _tried_s(self, record: ServerRecord) -> float:
        """Return when each of a server's queues had answered a request or been sent a canary."""
        return max(record.canary_s, min(map(record.answered, self._queues(record.server))))

    def _send_canaries(self, now: float) -> None:
        """Send canaries to the servers whose last request or canary is longest ago, as many as are due."""
        more = CANARIES_RPS * (now - self._looked_s)
        self._canaries_left = min(CANARIES_RPS, self._canaries_left + more)
        while self._canaries_left >= 1.0 and (name := self._idle.take(now)) is not None:
            condition = self._conditions.get(name, _ABSENT)
            if condition.health is not Health.READY or name not in self._records:
                continue  # it is due again once it is ready
            record = self._records[name]
            due_s = self._tried_s(record) + self._every_s(name, record)
            if due_s <= now:
                self.probe(name)
                self._canaries_left -= 1.0
                due_s = now + self._every_s(name, record)
            self._idle.put(name, due_s)

    def _every_s(self, name: str, record: ServerRecord) -> float:
        """Return after how long without a request a server gets a canary."""
        watches = self._state.watches
        own = watches.get(record.server.spec.labels.partition)
        # One that several partitions share may serve any of them.
        stands_by = all(one.active.server != name for one in (watches.values() if own is None else (own,)))
        return CANARY_EVERY_S * (_STANDING_BY if stands_by else 1.0)

    def _failing(self, record: ServerRecord) -> int:
        """Return how many requests of one of a server's queues failed in a row."""
        if not record.failures:
            return 0
        return max(record.failed(queue).requests for queue in self._queues(record.server))

    def _queue(self, server: Server, endpoint: str) -> tuple[str, ...]:
        """Return the endpoints of the queue that an endpoint's requests wait in."""
        return next((one for one in self._queues(server) if endpoint in one), (endpoint,))

    def _queues(self, server: Server) -> tuple[tuple[str, ...], ...]:
        """Return the endpoints of each queue, its model first."""
        watch = self._state.watches.get(server.spec.labels.partition)
        if watch is None:
            return tuple((endpoint,) for endpoint in server.spec.endpoints)
        return tuple(promise.endpoints for promise in watch.partition.promises)

    def _watch(self, server: Server) -> Watch | None:
        """Return the partition of a server; of a shared one, that which it serves."""
        own = self._state.watches.get(server.spec.labels.partition)
        return own or next((w for w in self._state.watches.values() if w.active.server == server.name), None)

    def _is_silent(self, record: ServerRecord, now: float) -> bool:
        """Return whether a process has been silent since it spoke; a contended core delays a healthy one."""
        contended = bool(contention(self._host.seen())) or starved(record.quota.delays(now))
        enough = _SILENT_IF_CONTENDED if contended else SILENT_READINGS
        signs = record.signs
        return signs.are_recent(now) and signs.silent >= enough and signs.silent_s > record.spoke_s


def _hung(held: InFlight, reason: str) -> ServerSeen:
    """Return a hung server with what it holds: while sequences live, it is waited for longer."""
    return ServerSeen(
        Health.HUNG, held.requests, reason=reason, streaming=held.streaming, sequences=held.sequences
    )


def _plain(health: Health, reason: str) -> ServerSeen:
    return _READY if health is Health.READY else ServerSeen(health, reason=reason)
