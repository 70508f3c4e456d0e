"""What other commands read: each partition's minutes, for `ctl validate`, and the guard's state.

Requests and failures are those of all servers of a partition, so a redirect loses none. Executions are the
active server's, since they are compared with its share. A minute is written every few seconds, in a thread,
so a killed controller loses only its last seconds; its executions are added at its end.
"""

from __future__ import annotations

import contextlib
import math
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from controlplane.control.guard.state import GuardState, Watch, phase
from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import Server
from controlplane.domain.observation import Answer, BatchStatistics, Guarding, ModelStatistics
from controlplane.files.fleets import write_guarding
from controlplane.ports import Clock
from controlplane.runtime.controller.workers import Endings
from controlplane.runtime.fleet.history import History, Key, Minute
from controlplane.triton.client import TritonClient
from controlplane.triton.statistics import difference

EVERY_S = 60.0
SAVE_S = 5.0
"""The interval of writes, which is what a killed controller loses."""

_Latencies = tuple[NDArray[np.float32], int]
"""The latencies of one endpoint by one partition, and how many of its requests failed."""


@dataclass(slots=True)
class _Heard:
    """The answers of one endpoint by one partition since the last minute."""

    latency_ms: array[float] = field(default_factory=lambda: array("f"))
    failed: int = 0


class Recorder:
    """Collects every answer, and reads Triton's counters at the end of a minute."""

    def __init__(self, history: History, clock: Clock) -> None:
        self._history = history
        self._clock = clock
        self._began_s = self._written_s = clock.monotonic()
        self._heard: dict[Key, _Heard] = {}
        self._partitions: dict[str, str] = {}
        self._watches: dict[str, Watch] = {}
        self._read: dict[tuple[str, str], ModelStatistics] = {}
        self._rows: Mapping[Key, int] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="recorder")

    def hear(self, answers: Iterable[Answer], watches: Collection[Watch]) -> None:
        """Add answers of the partitions' servers, including those replaced within the minute.

        An answer of an unknown or shared server counts for the first partition that serves its endpoint.
        """
        for watch in watches:
            if self._watches.get(watch.partition.id) is watch:
                continue
            self._watches[watch.partition.id] = watch
            for placed in watch.servers:
                if not placed.shared:
                    self._partitions[placed.server] = watch.partition.id
        for answer in answers:
            serving = (w.partition.id for w in watches if answer.endpoint in w.partition.endpoints)
            partition = self._partitions.get(answer.server) or next(serving, None)
            if partition is None:
                continue
            key = (partition, answer.endpoint)
            heard = self._heard.get(key)
            if heard is None:
                heard = self._heard[key] = _Heard()
            if answer.failed:
                heard.failed += 1
            else:
                heard.latency_ms.append(answer.latency_ms)

    def is_due(self) -> bool:
        """Return whether the next write is due."""
        return self._clock.monotonic() - self._written_s >= SAVE_S

    def write(self, active: Sequence[tuple[Watch, Server | None]]) -> None:
        """Write the present minute, and begin the next if it is over.

        `active` has each partition with its active server, None where none runs.
        """
        now_s = self._clock.monotonic()
        seconds = now_s - self._began_s
        over = seconds >= EVERY_S
        heard_of = {
            key: (np.array(heard.latency_ms, np.float32), heard.failed) for key, heard in self._heard.items()
        }
        self._written_s = now_s
        if over:
            self._heard, self._partitions, self._watches, self._began_s = {}, {}, {}, now_s
        self._pool.submit(self._write, tuple(active), heard_of, seconds, over)

    def close(self, active: Sequence[tuple[Watch, Server | None]]) -> None:
        """Write the present minute of the partitions in `active`, and end the thread."""
        if self._heard and active:
            self.write(active)
        self._pool.shutdown()

    def _write(
        self,
        active: Sequence[tuple[Watch, Server | None]],
        heard_of: Mapping[Key, _Latencies],
        seconds: float,
        over: bool,
    ) -> None:
        minutes = []
        for watch, server in active:
            # Only models have execution counters; their aliases would count executions twice.
            models = {promise.endpoint for promise in watch.partition.promises}
            asked = self._counted(watch, server, heard_of) if over else None
            for endpoint in watch.partition.endpoints:
                latency, failed = heard_of.get((watch.partition.id, endpoint), (np.empty(0, np.float32), 0))
                minutes.append(
                    Minute(
                        at_s=self._clock.wall(),
                        seconds=seconds,
                        partition=watch.partition.id,
                        endpoint=endpoint,
                        percent=watch.active.percent,
                        requests=int(latency.size) + failed,
                        failed=failed,
                        p99_ms=float(np.percentile(latency, 99)) if latency.size else None,
                        batches=self._batches(asked, endpoint) if asked and endpoint in models else None,
                    )
                )
        rows = self._history.write_minutes(minutes, self._rows)
        self._rows = {} if over else rows

    def _counted(
        self, watch: Watch, server: Server | None, heard_of: Mapping[Key, _Latencies]
    ) -> Server | None:
        """Return the server if its counters are to be read: not after a minute without requests.

        They are read anew then: a difference over such minutes would hold many canaries and little else.
        """
        endpoints = watch.partition.endpoints
        if server is None or any((watch.partition.id, endpoint) in heard_of for endpoint in endpoints):
            return server
        for endpoint in endpoints:
            self._read.pop((server.name, endpoint), None)
        return None

    def _batches(self, server: Server, endpoint: str) -> dict[int, BatchStatistics] | None:
        """Return the executions since the last reading; None without one, or without an answer."""
        try:
            with TritonClient(server, deadline_s=2.0) as client:
                now = client.statistics(endpoint)
            before = self._read.get((server.name, endpoint))
            self._read[server.name, endpoint] = now
            return dict(difference(before, now).batches) if before is not None else None
        except EngineError:
            return None


_SHOW_S = 1.0


class StatusFile:
    """Writes the file. A failing disk does not stop the controller."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._written_s = -math.inf
        self._written: dict[str, Guarding] = {}
        self._watches: Mapping[str, Watch] = {}
        self._ending: Endings = {}

    def show(self, state: GuardState, ending: Endings, *, changed: bool) -> None:
        """Write a different state at most once a second, or at once if something `changed`.

        A phase keeps its start time.
        """
        if state.now_s - self._written_s < _SHOW_S and not changed:
            return
        self._written_s = state.now_s
        wall_s = self._clock.wall()
        # The guard's clock has another origin: only its differences are meaningful here.
        ahead_s = wall_s - state.now_s
        states = {}
        for name, watch in state.watches.items():
            before = self._written.get(name)
            since_s = round(wall_s, 3)
            if before is not None and before.phase == phase(watch, state.now_s).value:
                since_s = before.since_s
                rests = before.retry_at_s is None and self._ending == ending
                if rests and _stands_as(self._watches.get(name), watch):
                    states[name] = before
                    continue
            fresh = _guarding(watch, ending, state.now_s, ahead_s, since_s)
            if before is not None and before.retry_at_s is not None and fresh.retry_at_s is not None:
                same = abs(before.retry_at_s - fresh.retry_at_s) < 1.0
                fresh = replace(fresh, retry_at_s=before.retry_at_s) if same else fresh
            states[name] = fresh
        self._watches, self._ending = state.watches, ending
        if states == self._written:
            return
        self._written = states
        with contextlib.suppress(EngineError):
            write_guarding(self._path, list(states.values()))


def _stands_as(before: Watch | None, watch: Watch) -> bool:
    """Return whether only the evidence on a partition is new, as in most looks."""
    return (
        before is not None
        and before.active is watch.active
        and before.standby is watch.standby
        and before.launches is watch.launches
        and before.owned is watch.owned
    )


def _guarding(watch: Watch, ending: Endings, now_s: float, ahead_s: float, since_s: float) -> Guarding:
    starts, standby = watch.launches, watch.standby
    waits = starts.retry_at_s > now_s
    return Guarding(
        partition=watch.partition.id,
        phase=phase(watch, now_s).value,
        since_s=since_s,
        standby=standby.server if standby is not None else None,
        standby_ready=standby is not None and standby.since_s <= now_s,
        failed_starts=starts.failures,
        breaker_open=starts.open,
        retry_at_s=round(starts.retry_at_s + ahead_s, 3) if waits else None,
        owned_gpu=watch.share.gpu,
        owned_percent=watch.share.percent,
        active=watch.active.server,
        ending=ending.get(watch.partition.id, {}),
        lent=watch.owned is not None,
    )
