"""Writes down, once a minute, what each active server did: for `ctl validate`, off the deciding thread."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from controlplane.control.guard_state import Watch
from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import Server
from controlplane.domain.observation import Answer, BatchStatistics, ModelStatistics
from controlplane.monitor.triton import StatisticsClient, difference
from controlplane.ports import Clock
from controlplane.runtime.history import History, Minute

EVERY_S = 60.0


@dataclass(slots=True)
class _Heard:
    """The answers of one endpoint by one server since the last minute."""

    latency_ms: array[float] = field(default_factory=lambda: array("f"))
    failed: int = 0


class Recorder:
    """Hears every answer and reads Triton's counters when a minute is over."""

    def __init__(self, history: History, clock: Clock) -> None:
        self._history = history
        self._clock = clock
        self._began_s = clock.monotonic()
        self._heard: dict[tuple[str, str], _Heard] = {}
        self._read: dict[tuple[str, str], ModelStatistics] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="recorder")

    def hear(self, answers: Iterable[Answer]) -> None:
        """Answers, by the guard's names for servers."""
        for answer in answers:
            key = (answer.server, answer.endpoint)
            heard = self._heard.get(key)
            if heard is None:
                heard = self._heard[key] = _Heard()
            if answer.failed:
                heard.failed += 1
            else:
                heard.latency_ms.append(answer.latency_ms)

    def is_over(self) -> bool:
        """Whether a minute has passed since it last turned."""
        return self._clock.monotonic() - self._began_s >= EVERY_S

    def turn(self, active: Sequence[tuple[Watch, Server]]) -> None:
        """Write the minute down and begin the next. `active`: each partition with the server that answers."""
        now_s = self._clock.monotonic()
        seconds = now_s - self._began_s
        heard, self._heard, self._began_s = self._heard, {}, now_s
        self._pool.submit(self._write, tuple(active), heard, seconds)

    def close(self) -> None:
        """Begin nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _write(
        self,
        active: Sequence[tuple[Watch, Server]],
        heard: dict[tuple[str, str], _Heard],
        seconds: float,
    ) -> None:
        minutes = []
        for watch, server in active:
            # What executed is counted by the models; their aliases would count it once more.
            models = {promise.endpoint for promise in watch.ward.promises}
            for endpoint in watch.ward.endpoints:
                told = heard.get((watch.active.server, endpoint), _Heard())
                latency = np.frombuffer(told.latency_ms, np.float32)
                minutes.append(
                    Minute(
                        at_s=self._clock.wall(),
                        seconds=seconds,
                        partition=watch.ward.id,
                        endpoint=endpoint,
                        percent=server.spec.percent,
                        requests=int(latency.size) + told.failed,
                        failed=told.failed,
                        p99_ms=float(np.percentile(latency, 99)) if latency.size else None,
                        batches=self._batches(server, endpoint) if endpoint in models else None,
                    )
                )
        self._history.write_minutes(minutes)

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
