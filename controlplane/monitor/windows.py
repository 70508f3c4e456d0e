"""Statistics of requests in any window of the last minutes up to now. Pure.

Latencies are stored one by one, since percentiles of percentiles are meaningless. A minute of thousands of
requests a second needs a few megabytes.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from controlplane.domain.observation import LatencyWindow
from controlplane.monitor.records import Record

KEEP_S = 120
_SHORTEST_S = 1.0
"""The shortest window of a rate."""


@dataclass(slots=True)
class Second:
    """Requests that ended within one second, in the order of their lines; refused ones are only counted."""

    number: int
    ended_s: array[float] = field(default_factory=lambda: array("d"))
    latency_ms: array[float] = field(default_factory=lambda: array("d"))
    errors_s: array[float] = field(default_factory=lambda: array("d"))
    refused: int = 0


class Windows:
    """Requests by endpoint, without abandoned ones."""

    def __init__(self) -> None:
        self._seconds: dict[str, deque[Second]] = {}

    def add(self, record: Record) -> None:
        """Add an ended request. Lines may be slightly out of order."""
        if record.abandoned and not record.refused:
            return
        seconds = self._seconds.setdefault(record.endpoint, deque(maxlen=KEEP_S))
        number = int(record.ended_s)
        if not seconds or seconds[-1].number < number:
            seconds.append(Second(number))
        into = seconds[-1]
        if into.number != number:
            into = next((second for second in reversed(seconds) if second.number == number), into)
        if record.refused:
            into.refused += 1
            return
        into.ended_s.append(record.ended_s)
        into.latency_ms.append(record.latency_ms)
        if record.failed:
            into.errors_s.append(record.ended_s)

    def forget(self, now_s: float) -> None:
        """Drop endpoints without recent requests, and seconds to come: the clock was set back."""
        for seconds in self._seconds.values():
            while seconds and seconds[-1].number > now_s:
                seconds.pop()
        oldest = now_s - KEEP_S
        self._seconds = {e: s for e, s in self._seconds.items() if s and s[-1].number >= oldest}

    def by_endpoint(self, now_s: float, seconds: float) -> dict[str, LatencyWindow]:
        """Return the requests that ended within the last `seconds`, by endpoint."""
        return {endpoint: self._window(endpoint, now_s, seconds) for endpoint in sorted(self._seconds)}

    def _window(self, endpoint: str, now_s: float, length_s: float) -> LatencyWindow:
        since, stored = now_s - length_s, self._seconds[endpoint]
        ended, latencies, errors, refused = array("d"), array("d"), 0, 0
        for second in reversed(stored):
            if second.number < int(since):
                break
            ended.extend(second.ended_s)
            latencies.extend(second.latency_ms)
            errors += sum(since < at <= now_s for at in second.errors_s)
            refused += second.refused if since < second.number + 1 and second.number <= now_s else 0
        at_s = np.frombuffer(ended)
        every = np.frombuffer(latencies)[(at_s > since) & (at_s <= now_s)]
        p50, p99 = _quantiles(every)
        first_s = next((second.ended_s[0] for second in stored if second.ended_s), since)
        known_s = max(_SHORTEST_S, now_s - first_s)
        return LatencyWindow(endpoint, min(length_s, known_s), len(every), errors, p50, p99, refused)


def _quantiles(latencies: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float | None, float | None]:
    """Return the smallest latencies that 50 % and 99 % of the requests do not exceed."""
    if not len(latencies):
        return None, None
    ordered = np.sort(latencies)  # np.quantile takes five times as long for a short window
    p50, p99 = (float(ordered[math.ceil(q * len(ordered)) - 1]) for q in (0.5, 0.99))
    return p50, p99
