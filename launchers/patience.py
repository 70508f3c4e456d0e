"""How long the start of a server is awaited, and which weight it has meanwhile."""

from __future__ import annotations

import time

from controlplane.domain.fleet import ShareUsage
from controlplane.ports import GivesWay, always
from launchers.cpu_quota.mechanism import Weight

_LOOK_S = 1.0
_LONGEST = 10
"""How many times the limit a start may take in all: a process that spins for ever makes progress too."""
_MEMORY_STEP_MB = 4.0
_BUSY = 0.05
"""The part of a core above which a process works, and does not only wait."""
_SLOW = 0.25
"""A start that uses less than this part of its share lacks a core, or waits for its files."""


class Patience:
    """The wait for one start: `limit_s` without progress in its log, its memory or its processor time.

    `gives_way` says whether its neighbours go before it, and `weight` is what it has meanwhile.
    """

    def __init__(self, limit_s: float, gives_way: GivesWay = always) -> None:
        self.limit_s, self.gives_way = limit_s, gives_way
        self.weight = Weight.START
        self._began_s = self._moved_s = self._looked_s = time.monotonic()
        self._log_bytes, self._memory_mb, self._cpu_s = 0, 0.0, 0.0

    def wants_a_look(self) -> bool:
        """Return whether it is time to look for progress again."""
        return time.monotonic() - self._looked_s >= min(_LOOK_S, self.limit_s / 4)

    def look(self, log_bytes: int, usage: ShareUsage, percent: float) -> Weight:
        """Note how far the start of a server with this share is; return the weight that it needs now."""
        now = time.monotonic()
        memory_mb, cpu_s = usage.memory_mb or 0.0, usage.cpu_seconds or 0.0
        used = (cpu_s - self._cpu_s) / (now - self._looked_s)
        if used > _BUSY or log_bytes > self._log_bytes or memory_mb > self._memory_mb + _MEMORY_STEP_MB:
            self._moved_s = now
        self._looked_s, self._cpu_s, self._log_bytes = now, cpu_s, log_bytes
        self._memory_mb = max(self._memory_mb, memory_mb)
        is_slow = self.weight is Weight.START and 100.0 * used < _SLOW * percent
        return Weight.SLOW_START if is_slow else self.weight

    def over(self) -> str:
        """Return after how long the start has failed, in words; empty while it may go on."""
        now = time.monotonic()
        if now - self._moved_s > self.limit_s:
            return f"after {self.limit_s:g} s without progress (load_timeout_s sets them)"
        if now - self._began_s > _LONGEST * self.limit_s:
            return f"after {_LONGEST} times {self.limit_s:g} s (load_timeout_s sets them)"
        return ""
