"""Requests as the guard sees them: those that ended, by the logs of all replicas, and those in flight."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

from controlplane.control.guard.batch_times import CLOSED_S
from controlplane.control.guard.observe import AGAIN_S, resumed
from controlplane.control.guard.state import Watch
from controlplane.domain.errors import GatewayError
from controlplane.domain.fleet import NOTHING_IN_FLIGHT, InFlight, Server
from controlplane.domain.observation import Answer, Health, News
from controlplane.gateway.replicas.control_port import monitor_stream
from controlplane.monitor.client import QUERY, RequestLog
from controlplane.monitor.records import Record
from controlplane.ports import Gateway
from controlplane.runtime.controller.probes import Failures, ServerRecord
from controlplane.runtime.fleet.execute import backend
from controlplane.runtime.polled import Agenda

_WAITED_S = 0.5
"""A request that failed sooner did not wait for its model: one that stands still fails a batch after 1 s."""


class Requests(Protocol):
    """The source of ended requests."""

    def take(self) -> Iterable[Record]:
        """Return the requests that ended since the call before, in order."""

    @property
    def heard_since_s(self) -> float:
        """The time (monotonic) since which no request is missing."""


class AnswerLog:
    """Reads the log of one fleet. `queue_of` is the endpoints of the queue that an endpoint's requests share.

    `records` are of the servers by name. The log was last heard at `heard_s`.
    Answers are kept until their server is looked at, for LOOK_S, or twice that where one is alone.
    """

    def __init__(
        self,
        requests: Requests,
        records: Mapping[str, ServerRecord],
        queue_of: Callable[[Server, str], tuple[str, ...]],
    ) -> None:
        self._requests = requests
        self._records = records
        self._queue_of = queue_of
        self._by_instance: dict[str, str] = {}
        self._by_endpoint: dict[str, list[str]] = {}
        self._kept: dict[str, list[Answer]] = {}
        self.heard_s = self._gave_all_s = time.monotonic()

    @property
    def since_s(self) -> float:
        """The time (monotonic) since which no request is missing."""
        return self._requests.heard_since_s

    def serve(self, servers: Mapping[str, Server]) -> None:
        """Take the servers that run now."""
        self._by_instance = {s.instance: name for name, s in servers.items()}
        self._by_endpoint = {}
        for name, server in servers.items():
            for endpoint in server.spec.endpoints:
                self._by_endpoint.setdefault(endpoint, []).append(name)

    def take(self, now: float, servers: Collection[str]) -> tuple[float, list[Answer]]:
        """Return the new answers of these servers; every LOOK_S those of all, and when that was last done."""
        self._read(now)
        since_s = self._gave_all_s
        if now - since_s >= AGAIN_S:
            self._gave_all_s = now
            servers = [
                name for name, kept in self._kept.items() if name in servers or not _may_grow(kept, now)
            ]
        kept = (self._kept.pop(name, []) for name in servers)
        return since_s, [answer for answers in kept for answer in answers]

    def _read(self, now: float) -> None:
        # Log lines have the time of day, which may be changed at any time.
        ahead_s = time.time() - now
        ends = self._requests.take()
        if self._requests.heard_since_s < now:
            self.heard_s = now
        for end in ends:
            name = self._by_instance.get(end.server, "")
            ended_s = min(now, end.ended_s - ahead_s)
            if end.abandoned:
                for one in [name] if end.server else self._by_endpoint.get(end.endpoint, ()):
                    if one in self._records:
                        self._records[one].left_s[end.endpoint] = ended_s
                continue
            self._kept.setdefault(name, []).append(
                Answer(
                    ended_s,
                    end.latency_ms,
                    end.failed,
                    end.endpoint,
                    name,
                    end.refused,
                    end.held,
                    end.client,
                    end.lost,
                )
            )
            if name:  # others say nothing about a server's health
                self._remember(self._records[name], end, ended_s, now)

    def _remember(self, record: ServerRecord, end: Record, ended_s: float, now: float) -> None:
        record.spoke_s = now
        if end.unloaded:
            record.note(News((record.server.name,), "it has unloaded its models", health=Health.ENDING))
        began_s = ended_s - end.latency_ms / 1000.0
        if end.failed:
            before = record.failed((end.endpoint,))
            waited_s = ended_s if ended_s - began_s >= _WAITED_S else before.waited_s
            record.failures[end.endpoint] = Failures(before.requests + 1, now, waited_s)
        elif not end.refused:  # a full queue shows that the server lives, not that it works
            record.answered_s = now
            if end.succeeded:
                record.answered_of[end.endpoint] = now
            if end.succeeded and (record.failures or record.left_s):
                queue = self._queue_of(record.server, end.endpoint)
                for one in queue:
                    record.failures.pop(one, None)
                record.passed(queue, began_s)


def _may_grow(kept: Sequence[Answer], now: float) -> bool:
    """Return whether an answer is alone and so new that others of its batch may follow.

    They are weighed together: of a server with few requests, a look for each answer would see half a batch.
    """
    return len(kept) == 1 and not kept[0].failed and now - kept[0].ended_s <= CLOSED_S


_REPLICA_AGAIN_S = 2.0
"""A replica that does not answer is tried at this interval: each try may hold up the controller's loop."""


class ReplicaLogs:
    """Follows the log of each replica that there is at the time."""

    def __init__(self, addresses: Callable[[], Sequence[str]], token: str) -> None:
        self._addresses = addresses
        self._token = token
        self._tried_s: dict[str, float] = {}
        self._logs: dict[str, RequestLog] = {}

    def take(self) -> list[Record]:
        """Return the requests that ended since the call before, in order."""
        present = self._addresses()
        for address in self._logs.keys() - set(present):
            self._logs.pop(address).close()
            self._tried_s.pop(address, None)
        for address in present:
            if address not in self._logs:
                self._logs[address] = RequestLog(partial(self._open, address))
        found = [record for log in self._logs.values() for record in log.take()]
        return sorted(found, key=lambda record: record.ended_s)

    @property
    def heard_since_s(self) -> float:
        """The time (monotonic) since which no line of the replicas that answer is missing; else now."""
        now = time.monotonic()
        heard = [since for log in self._logs.values() if (since := log.heard_since_s) < now]
        return max(heard, default=now)

    @property
    def heard_whole_since_s(self) -> float:
        """The same, but now where any replica does not answer: clients may call it all the same."""
        return max((log.heard_since_s for log in self._logs.values()), default=time.monotonic())

    def close(self) -> None:
        """Stop following."""
        for log in self._logs.values():
            log.close()
        self._logs.clear()

    def _open(self, address: str) -> socket.socket | None:
        now = time.monotonic()
        if now - self._tried_s.get(address, -math.inf) < _REPLICA_AGAIN_S:
            return None
        self._tried_s[address] = now
        return monitor_stream(address, self._token, QUERY)


_GATEWAY_AGAIN_S = 2.0
_SILENT_S = 0.2
_WEIGHED_S = 0.1
_SILENT_REQUESTS = 3.0
_LULL_S = 1.0
"""The longest silence of a server with traffic until its open requests are read, in a small fleet; ..."""
_LULLS_RPS = 50.0
"""... and how many servers are read in a second in a large one."""
_RARE_RPS = 0.02
"""Requests that come more rarely are no traffic."""


class OpenRequests:
    """Reads a server's requests in flight once it has been silent for long enough."""

    def __init__(self, gateway: Gateway, records: Mapping[str, ServerRecord]) -> None:
        self._gateway = gateway
        self._records = records
        self._silences = Agenda()
        self._due: set[str] = set()
        self._gateway_again_s = -math.inf

    def due(self, now: float, watch_of: Callable[[Server], Watch | None], log_since_s: float) -> set[str]:
        """Return the servers to look at again, which are due no more.

        One whose requests are not to be read yet is not looked at.
        """
        self._due = set()
        while (name := self._silences.take(now)) is not None:
            record = self._records.get(name)
            watch = None if record is None else watch_of(record.server)
            if record is not None and watch is not None and watch.active.server == name:
                until_s = self._silent_until(watch, record, now, log_since_s)
                if now < until_s:
                    self._silences.put(name, until_s)
                    continue
            self._due.add(name)
        return self._due

    def forget(self, name: str) -> None:
        """Drop a server."""
        self._silences.forget(name)

    def read(self, watch: Watch, record: ServerRecord, now: float, log_since_s: float) -> InFlight:
        """Return the requests in flight of a partition's active server.

        They are read only if it answers nothing under load. Its log is complete since `log_since_s`.
        """
        name = watch.active.server
        if record.active_s is None:
            record.active_s = now
        until_s = self._silent_until(watch, record, now, log_since_s)
        if now < until_s:
            self._silences.put(name, until_s)
            return NOTHING_IN_FLIGHT
        if now - record.in_flight_s > _SILENT_S and now > self._gateway_again_s:
            self._read(record, now)
        self._silences.put(name, now)
        return record.in_flight

    def _silent_until(self, watch: Watch, record: ServerRecord, now: float, log_since_s: float) -> float:
        """Return until when a server must be silent for its requests in flight to be read."""
        active_s = now if record.active_s is None else record.active_s
        # Silence counts only while the log is complete, since the server is routed, and since its requests in
        # flight were last read as 0.
        since_s = max(
            record.answered_s,
            active_s,
            log_since_s,
            -math.inf if record.in_flight.unanswered else record.in_flight_s,
        )
        if record.in_flight.unanswered or now - since_s < _SILENT_S:
            return since_s + _SILENT_S
        # The rates know of the answers that this look has only after it.
        if -math.inf < watch.looked_s < record.answered_s and now - record.answered_s < _LULL_S:
            return now + _WEIGHED_S
        paused_s = record.in_flight_s - max(record.answered_s, active_s)
        return since_s + _read_after_s(resumed(watch, now), paused_s, len(self._records))

    def _read(self, record: ServerRecord, now: float) -> None:
        """Read a server; others that rest are read with it, and from then on at the same times."""
        names = self._due.union(self._silences.until(now + _lull_s(len(self._records))))
        due = (self._records.get(name) for name in names)
        resting = [one for one in due if one is not None and now - one.answered_s >= _SILENT_S]
        read = {backend(one.server): one for one in (record, *resting)}
        try:
            found = self._gateway.in_flights(tuple(read))
        except GatewayError:
            # A hanging gateway blocks each query until its deadline, so it is not queried again at once.
            found = {backend(record.server).server: NOTHING_IN_FLIGHT}
            self._gateway_again_s = time.monotonic() + _GATEWAY_AGAIN_S
        for at, one in read.items():
            if at.server in found:
                one.in_flight, one.in_flight_s = found[at.server], now


def _lull_s(servers: int) -> float:
    return max(_LULL_S, servers / _LULLS_RPS)


def _read_after_s(watch: Watch, paused_s: float, servers: int) -> float:
    """Return the silence after which open requests are read, where none was open for `paused_s`."""
    rates_rps = [max(queue.rates_rps) for queue in watch.queues]
    lull_s = _lull_s(servers)
    # The longer nothing was open, the less soon is it read again: requests have paused.
    expected_s = max(_SILENT_REQUESTS / max(sum(rates_rps), _RARE_RPS), min(paused_s, lull_s))
    return max(_SILENT_S, min(expected_s, lull_s) if max(rates_rps) > _RARE_RPS else expected_s)
