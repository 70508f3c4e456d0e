"""Servers under suspicion: their times and signs of life, from Triton's counters, read in threads."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import Server
from controlplane.domain.observation import ModelStatistics
from controlplane.triton.client import TritonClient, timed_out
from controlplane.triton.statistics import compute_ms, difference, inferences_each, queue_ms

EVERY_S = 0.05
"""Between two readings of one server."""
READINGS_RPS = 40.0
"""The limit of readings of all servers: a busy host has many suspects, and no core to spare."""
_THREADS = 8
"""A reading waits where a server is silent, and must keep those of others waiting for a moment only."""
_KEPT_S = 2.0
_SUSPECT_S = 1.0


class Times(NamedTuple):
    """Mean times of a server under suspicion, those of its slowest model, and inferences per request."""

    queue_ms: float | None = None
    compute_ms: float | None = None
    inferences: Mapping[str, float] = MappingProxyType({})


UNKNOWN = Times()

_DEADLINE_S = 0.25
"""The longest wait for a reading, which runs no model."""
SILENT_READINGS = 2
"""So many in a row without an answer show a hang: Triton's HTTP threads take connections in turn, and one of
them may be busy with a large body."""


@dataclass(frozen=True, slots=True)
class Signs:
    """The signs of life of a server in its readings, the latest at `read_s`: when its counters last moved.

    `silent` is the number of readings in a row without an answer. Times are of the monotonic clock.
    """

    read_s: float = -math.inf
    moved_s: float = -math.inf
    silent: int = 0


NO_SIGNS = Signs()


class TimesOfSuspects:
    """Times and signs of life of servers under suspicion, from Triton's counters, read in threads."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="statistics")
        self._lock = threading.Lock()
        self._queried_s: dict[str, float] = {}
        # The time of the last look, and how many servers were read within the second before.
        self._counted: tuple[float, int] = (-math.inf, 0)
        self._under_way: set[str] = set()
        self._before: dict[str, dict[str, ModelStatistics]] = {}
        self._found: dict[str, tuple[float, Times]] = {}
        self._signs: dict[str, Signs] = {}

    def ask(self, server: Server, models: Sequence[str], now: float) -> None:
        """Start to read the counters of the models, unless the last reading is recent or under way.

        With many servers under suspicion each is read less often.
        """
        if self._counted[0] != now:
            self._counted = now, sum(now - at < _SUSPECT_S for at in self._queried_s.values())
        every_s = max(EVERY_S, self._counted[1] / READINGS_RPS)
        if now - self._queried_s.get(server.name, -math.inf) < every_s:
            return
        with self._lock:
            if server.name in self._under_way:
                return
            self._under_way.add(server.name)
        self._queried_s[server.name] = now
        self._pool.submit(self._read, server, models)

    def forget(self, name: str) -> None:
        """Drop what is known of a server that is gone."""
        self._queried_s.pop(name, None)
        with self._lock:
            self._under_way.discard(name)
            self._found.pop(name, None)
            self._before.pop(name, None)
            self._signs.pop(name, None)

    def found(self, name: str, now: float) -> Times:
        """Return the latest times; `UNKNOWN` without a recent reading."""
        with self._lock:
            at, times = self._found.get(name, (-math.inf, UNKNOWN))
        return times if now - at < _KEPT_S else UNKNOWN

    def signs(self, name: str, now: float) -> Signs:
        """Return the latest signs of life; `NO_SIGNS` without a recent reading."""
        with self._lock:
            signs = self._signs.get(name, NO_SIGNS)
        return signs if now - signs.read_s < _KEPT_S else NO_SIGNS

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _read(self, server: Server, models: Sequence[str]) -> None:
        counted: dict[str, ModelStatistics] | None = None
        late = False
        try:
            with TritonClient(server, deadline_s=_DEADLINE_S) as client:
                counted = {model: client.statistics(model) for model in models}
        except EngineError as error:
            late = timed_out(error)
        finally:
            with self._lock:
                forgotten = server.name not in self._under_way
                self._under_way.discard(server.name)
                if not forgotten and counted is not None:
                    self._take(server.name, counted)
                elif not forgotten and late:
                    now = time.monotonic()
                    signs = self._signs.get(server.name, NO_SIGNS)
                    silent = signs.silent if now - signs.read_s < _KEPT_S else 0
                    self._signs[server.name] = replace(signs, read_s=now, silent=silent + 1)

    def _take(self, name: str, counted: dict[str, ModelStatistics]) -> None:
        """Keep a reading. Needs the lock."""
        now, before = time.monotonic(), self._before.get(name, {})
        self._before[name] = counted
        moved = any(counted[model] != earlier for model, earlier in before.items() if model in counted)
        self._signs[name] = Signs(now, now if moved else self._signs.get(name, NO_SIGNS).moved_s)
        with contextlib.suppress(EngineError):  # a model that was loaded again counts from 0
            passed = {m: difference(before[m], found) for m, found in counted.items() if m in before}
            self._found[name] = (now, _times(passed))


def _times(passed: Mapping[str, ModelStatistics]) -> Times:
    """Return the times of what each model did since the reading before."""

    def slowest(mean_of: Callable[[ModelStatistics], float | None]) -> float | None:
        return max((mean for p in passed.values() if (mean := mean_of(p)) is not None), default=None)

    each = {model: n for model, p in passed.items() if (n := inferences_each(p)) is not None}
    return Times(slowest(queue_ms), slowest(compute_ms), each)
