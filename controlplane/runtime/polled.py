"""Calls that may block, made in threads beside the loop, and names by the time at which each is due."""

from __future__ import annotations

import heapq
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class Polled(Generic[T]):
    """Answers to calls, of which at most one is under way for each name. A call that raises has none."""

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._lock = threading.Lock()
        self._asked_s: dict[str, float] = {}
        self._under_way: dict[str, object] = {}
        self._answers: list[tuple[str, T]] = []

    def ask(self, name: str, call: Callable[[], T], now: float, every_s: float = 0.0) -> None:
        """Begin a call, unless the one before is under way or began less than `every_s` ago."""
        with self._lock:
            if name in self._under_way or now - self.asked_s(name) < every_s:
                return
            self._asked_s[name] = now
            token = self._under_way[name] = object()
        self._pool.submit(self._make, name, token, call)

    def asked_s(self, name: str) -> float:
        """Return when the latest call began."""
        return self._asked_s.get(name, -math.inf)

    def asked_since(self, then: float) -> int:
        """Return how many names' latest call began after `then`."""
        return sum(at > then for at in self._asked_s.values())

    def is_under_way(self, name: str) -> bool:
        """Return whether a call has not ended."""
        with self._lock:
            return name in self._under_way

    def take(self) -> list[tuple[str, T]]:
        """Return the answers since the call before, by name."""
        with self._lock:
            found, self._answers = self._answers, []
        return found

    def forget(self, name: str) -> None:
        """Drop a name, and the answer of a call under way."""
        with self._lock:
            self._under_way.pop(name, None)
            self._asked_s.pop(name, None)
            self._answers = [one for one in self._answers if one[0] != name]

    def close(self) -> None:
        """Begin no more calls; those under way end at their deadlines."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _make(self, name: str, token: object, call: Callable[[], T]) -> None:
        found: list[tuple[str, T]] = []
        try:
            found.append((name, call()))
        finally:
            with self._lock:
                if self._under_way.get(name) is token:
                    del self._under_way[name]
                    self._answers += found


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

    def until(self, at_s: float) -> list[str]:
        """Return the names that are due by then, and stay so."""
        return [name for name, due_s in self._at_s.items() if due_s <= at_s]

    def forget(self, name: str) -> None:
        """Drop a name."""
        self._at_s.pop(name, None)
