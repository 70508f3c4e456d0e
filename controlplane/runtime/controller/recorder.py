"""Writes down, minute by minute, how each partition was served: for `ctl validate`, off the deciding thread.

Requests and failures are the partition's, whichever of its servers was asked: a redirect loses none.
Executions are the active server's, whose share they are held against. A minute is written while it lasts,
so that a controller that is killed takes only its last moments along; executions are added when it is over.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from controlplane.control.guard.state import Watch
from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import Server
from controlplane.domain.observation import Answer, BatchStatistics, ModelStatistics
from controlplane.monitor.triton import StatisticsClient, difference
from controlplane.ports import Clock
from controlplane.runtime.fleet.history import History, Key, Minute

EVERY_S = 60.0
SAVE_S = 5.0
"""How much a controller that is killed has heard and not written."""

_Told = tuple[NDArray[np.float32], int]
"""The latencies of one endpoint by one partition, and how many of its requests failed."""


@dataclass(slots=True)
class _Heard:
    """The answers of one endpoint by one partition since the last minute."""

    latency_ms: array[float] = field(default_factory=lambda: array("f"))
    failed: int = 0


class Recorder:
    """Hears every answer, and reads Triton's counters when a minute is over."""

    def __init__(self, history: History, clock: Clock) -> None:
        self._history = history
        self._clock = clock
        self._began_s = self._written_s = clock.monotonic()
        self._heard: dict[Key, _Heard] = {}
        self._partitions: dict[str, str] = {}
        self._read: dict[tuple[str, str], ModelStatistics] = {}
        self._rows: Mapping[Key, int] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="recorder")

    def hear(self, answers: Iterable[Answer], watches: Collection[Watch]) -> None:
        """Answers by these partitions' servers, or by those that were theirs since the minute began.

        What no known server answered counts for the first partition that serves its endpoint.
        """
        for watch in watches:
            for placed in (watch.active, watch.standby):
                if placed is not None:
                    self._partitions[placed.server] = watch.partition.id
        for answer in answers:
            partition = self._partitions.get(answer.server) or _serving(answer.endpoint, watches)
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
        """Whether there is something to be written down."""
        return self._clock.monotonic() - self._written_s >= SAVE_S

    def write(self, active: Sequence[tuple[Watch, Server | None]]) -> None:
        """Write the minute down as far as it is known, and begin the next where it is over.

        `active`: each partition with the server that answers, None where none runs.
        """
        now_s = self._clock.monotonic()
        seconds = now_s - self._began_s
        over = seconds >= EVERY_S
        told = {
            key: (np.array(heard.latency_ms, np.float32), heard.failed) for key, heard in self._heard.items()
        }
        self._written_s = now_s
        if over:
            self._heard, self._partitions, self._began_s = {}, {}, now_s
        self._pool.submit(self._write, tuple(active), told, seconds, over)

    def close(self, active: Sequence[tuple[Watch, Server | None]]) -> None:
        """Write what was heard by those of `active`, and end the thread."""
        if self._heard and active:
            self.write(active)
        self._pool.shutdown()

    def _write(
        self,
        active: Sequence[tuple[Watch, Server | None]],
        told: Mapping[Key, _Told],
        seconds: float,
        over: bool,
    ) -> None:
        minutes = []
        for watch, server in active:
            # What executed is counted by the models; their aliases would count it once more.
            models = {promise.endpoint for promise in watch.partition.promises}
            asked = server if over else None
            for endpoint in watch.partition.endpoints:
                latency, failed = told.get((watch.partition.id, endpoint), (np.empty(0, np.float32), 0))
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

    def _batches(self, server: Server, endpoint: str) -> dict[int, BatchStatistics] | None:
        """What it executed since it was read before; None where it was not, or does not answer."""
        try:
            with StatisticsClient(server, deadline_s=2.0) as client:
                now = client.read(endpoint)
            before = self._read.get((server.name, endpoint))
            self._read[server.name, endpoint] = now
            return dict(difference(before, now).batches) if before is not None else None
        except EngineError:
            return None


def _serving(endpoint: str, watches: Iterable[Watch]) -> str | None:
    return next((watch.partition.id for watch in watches if endpoint in watch.partition.endpoints), None)
