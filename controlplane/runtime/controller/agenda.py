"""Names by the time at which each is due."""

from __future__ import annotations

import heapq
import math


class Agenda:
    """At most one time for each name. Taking what is due costs nothing for the others."""

    def __init__(self) -> None:
        self._at_s: dict[str, float] = {}
        self._order: list[tuple[float, str]] = []

    def put(self, name: str, at_s: float) -> None:
        """Have a name due at this time, unless it is due before."""
        if at_s < self._at_s.get(name, math.inf):
            self._at_s[name] = at_s
            heapq.heappush(self._order, (at_s, name))

    def take(self, now_s: float) -> str | None:
        """Return the first name that is due, which is due no more; None where none is."""
        while self._order and self._order[0][0] <= now_s:
            at_s, name = heapq.heappop(self._order)
            if self._at_s.get(name) == at_s:  # else it was put earlier since, or is forgotten
                del self._at_s[name]
                return name
        return None

    def forget(self, name: str) -> None:
        """Drop a name."""
        self._at_s.pop(name, None)
