"""Statistics of requests: each second of the last minutes, and any window up to now. Pure.

Latencies are stored one by one, since percentiles of percentiles are meaningless. A minute of thousands of
requests a second needs a few megabytes.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from controlplane.domain.observation import LatencyWindow
from controlplane.monitor.records import Record

KEEP_S = 120
_SHORTEST_S = 1.0
"""The shortest window of a rate."""

Key = tuple[str, str]
"""Endpoint and server."""


@dataclass(slots=True)
class Second:
    """The requests that ended within one second, in the order of their lines."""

    number: int
    ended_s: array[float] = field(default_factory=lambda: array("d"))
    latency_ms: array[float] = field(default_factory=lambda: array("d"))
    errors_s: array[float] = field(default_factory=lambda: array("d"))
    bytes_in: int = 0
    bytes_out: int = 0


@dataclass(frozen=True, slots=True)
class Summary:
    """One second of one endpoint on one server; latencies are None where nothing was answered."""

    endpoint: str
    server: str
    second: int
    requests: int
    errors: int
    bytes_in: int
    bytes_out: int
    p50_ms: float | None
    p99_ms: float | None


class Windows:
    """Requests by endpoint and server, without abandoned ones; refused ones are only counted."""

    def __init__(self) -> None:
        self._seconds: dict[Key, deque[Second]] = {}
        self._refused: dict[str, Counter[int]] = {}

    def add(self, record: Record, server: str) -> None:
        """Add an ended request. Lines may be slightly out of order."""
        if record.refused:
            self._refused.setdefault(record.endpoint, Counter())[int(record.ended_s)] += 1
        if record.abandoned or record.refused:
            return
        seconds = self._seconds.setdefault((record.endpoint, server), deque(maxlen=KEEP_S))
        number = int(record.ended_s)
        if not seconds or seconds[-1].number < number:
            seconds.append(Second(number))
        into = seconds[-1]
        if into.number != number:
            into = next((second for second in reversed(seconds) if second.number == number), into)
        into.ended_s.append(record.ended_s)
        into.latency_ms.append(record.latency_ms)
        into.bytes_in += record.bytes_in
        into.bytes_out += record.bytes_out
        if record.failed:
            into.errors_s.append(record.ended_s)

    def keys(self) -> tuple[Key, ...]:
        """Return the endpoints and servers with stored requests."""
        return tuple(sorted(self._seconds))

    def forget(self, now_s: float) -> None:
        """Drop endpoints and servers without recent requests, and seconds to come: the clock was set back."""
        oldest = now_s - KEEP_S
        for seconds in self._seconds.values():
            while seconds and seconds[-1].number > now_s:
                seconds.pop()
        self._seconds = {k: s for k, s in self._seconds.items() if s and s[-1].number >= oldest}
        refused = {
            endpoint: Counter({second: n for second, n in counts.items() if oldest <= second <= now_s})
            for endpoint, counts in self._refused.items()
        }
        self._refused = {endpoint: counts for endpoint, counts in refused.items() if counts}

    def by_endpoint(self, now_s: float, seconds: float) -> dict[str, LatencyWindow]:
        """Return the requests that ended within the last `seconds`, by endpoint."""
        keys: dict[str, list[Key]] = {endpoint: [] for endpoint in self._refused}
        for key in self.keys():
            keys.setdefault(key[0], []).append(key)
        found = {endpoint: self._window(endpoint, now_s, seconds, own) for endpoint, own in keys.items()}
        for endpoint, counts in self._refused.items():
            recent = sum(
                n for second, n in counts.items() if now_s - seconds < second + 1 and second <= now_s
            )
            found[endpoint] = replace(found[endpoint], refused=recent)
        return found

    def by_server(self, now_s: float, seconds: float) -> dict[Key, LatencyWindow]:
        """Return the requests that ended within the last `seconds`, by endpoint and server."""
        return {key: self._window(key[0], now_s, seconds, (key,)) for key in self.keys()}

    def each_second(self, since: int, until: int) -> list[Summary]:
        """Return every stored second from `since` up to, but without, `until`."""
        return [
            _summary(key, second)
            for key, seconds in sorted(self._seconds.items())
            for second in seconds
            if since <= second.number < until
        ]

    def _window(self, endpoint: str, now_s: float, seconds: float, keys: Collection[Key]) -> LatencyWindow:
        since = now_s - seconds
        ended, latencies, errors = array("d"), array("d"), 0
        for second in self._since(keys, since):
            ended.extend(second.ended_s)
            latencies.extend(second.latency_ms)
            errors += sum(since < at <= now_s for at in second.errors_s) if second.errors_s else 0
        at_s = np.frombuffer(ended)
        every = np.frombuffer(latencies)[(at_s > since) & (at_s <= now_s)]
        p50, p99 = _quantiles(every)
        first_s = min((self._seconds[key][0].ended_s[0] for key in keys), default=since)
        known_s = max(_SHORTEST_S, now_s - first_s)
        return LatencyWindow(endpoint, min(seconds, known_s), len(every), errors, p50, p99)

    def _since(self, keys: Iterable[Key], since: float) -> Iterator[Second]:
        for key in keys:
            for second in reversed(self._seconds[key]):
                if second.number < int(since):
                    break
                yield second


def _summary(key: Key, second: Second) -> Summary:
    p50, p99 = _quantiles(np.array(second.latency_ms))
    return Summary(
        *key,
        second.number,
        len(second.ended_s),
        len(second.errors_s),
        second.bytes_in,
        second.bytes_out,
        p50,
        p99,
    )


def _quantiles(latencies: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float | None, float | None]:
    """Return the smallest latencies that 50 % and 99 % of the requests do not exceed."""
    if not len(latencies):
        return None, None
    ordered = np.sort(latencies)  # np.quantile takes five times as long for a short window
    p50, p99 = (float(ordered[math.ceil(q * len(ordered)) - 1]) for q in (0.5, 0.99))
    return p50, p99
