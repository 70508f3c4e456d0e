"""Arrivals by second, from requests that have ended.

A request counts in the second of its arrival. A second is complete once the requests that arrived in it have
had the longest latency seen lately. So an overload shows its full rate, later, and not what the servers can
answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from controlplane.domain.observation import Answer

_LOG_S = 0.5
"""So long a line of the log may take."""
_RECENT_S = 5.0
_LONGEST_S = 10.0
"""A second does not wait longer: what arrived in it and ends later counts in the next one."""

Counts = Mapping[str, int]
"""Requests by endpoint."""


class Arrivals:
    """Collects ended requests; times are those of the monotonic clock."""

    def __init__(self, now_s: float) -> None:
        self._next = math.floor(now_s)
        self._counts: dict[int, dict[str, int]] = {}
        self._longest_ms: dict[int, float] = {}

    def add(self, answers: Iterable[Answer]) -> None:
        """Count requests that ended."""
        for answer in answers:
            second = max(math.floor(answer.ended_s - answer.latency_ms / 1000.0), self._next)
            counts = self._counts.setdefault(second, {})
            counts[answer.endpoint] = counts.get(answer.endpoint, 0) + 1
            ended = math.floor(answer.ended_s)
            self._longest_ms[ended] = max(self._longest_ms.get(ended, 0.0), answer.latency_ms)

    def complete(self, now_s: float, heard_since_s: float) -> list[Counts | None]:
        """Return the seconds that are complete now and were not before; None for one that was not seen whole.

        From `heard_since_s` on no request is missing.
        """
        self._longest_ms = {s: ms for s, ms in self._longest_ms.items() if s > now_s - _RECENT_S}
        late_s = min(max(self._longest_ms.values(), default=0.0) / 1000.0 + _LOG_S, _LONGEST_S)
        found: list[Counts | None] = []
        while self._next + 1.0 + late_s <= now_s:
            counts = self._counts.pop(self._next, {})
            found.append(counts if self._next >= heard_since_s else None)
            self._next += 1
        return found
