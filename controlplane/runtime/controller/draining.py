"""When a server that no route leads to has drained, or can answer no more."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from controlplane.control.guard.effects import DrainAndStop, Ending
from controlplane.domain.errors import EngineError, GatewayError
from controlplane.domain.fleet import InFlight, Server
from controlplane.ports import Gateway, Launcher
from controlplane.runtime.controller.probes import read_counters
from controlplane.runtime.fleet.execute import backend

LIVE_S = 0.5
"""The longest wait for an answer that needs no model."""


@dataclass(slots=True)
class Drain:
    """A server that ends as the guard decided (`how`), when it last answered and what it owed then.

    `answers` is how many its models had given by then, `silent_since_s` is when it stopped answering calls,
    `used_s` the time of a core that it had used when it was last silent. Times are monotonic.
    """

    server: Server
    how: DrainAndStop
    gateway: Gateway
    launcher: Launcher
    answered_s: float
    owed: int = 0
    answers: int | None = None
    silent_since_s: float | None = None
    used_s: float | None = None

    def may_answer(self, now_s: float, grace_s: float) -> bool:
        """Return whether the server owes answers that it may still give.

        A hung one may not while its process does nothing, which takes `grace_s` to see where nothing counts.
        """
        found: InFlight | None = None
        with contextlib.suppress(GatewayError):
            found = self.gateway.in_flight(backend(self.server))
        if found is not None:
            if found.total < self.owed:
                self.answered_s = now_s
            self.owed = found.total
        if self.how.ending is Ending.DRAINED:
            if found is not None and (found.streaming + found.sequences or not found.requests):
                return found.total > 0
        elif found is not None and (not found.total or self._does_nothing(now_s, grace_s)):
            return False
        return now_s - self.answered_s <= self.how.patience_s

    def _does_nothing(self, now_s: float, grace_s: float) -> bool:
        """Return whether the process answers no call and uses no time of a core.

        Counters of answers that move give it its time again: a stream ends late, but answers all the while.
        Those of failures show nothing, for they may be their requests' own fault. Where the process's use of
        a core is not counted, its silence counts after `grace_s`.
        """
        reading = read_counters(self.server, self.server.spec.endpoints, LIVE_S)
        if reading.error is not None and isinstance(reading.error.__cause__, TimeoutError | ConnectionError):
            return self._is_idle(now_s, grace_s)
        self.silent_since_s, self.used_s = None, None
        if reading.counted is not None:
            before = self.answers
            self.answers = sum(m.successes + m.responses for m in reading.counted.values())
            if before is not None and self.answers != before:
                self.answered_s = now_s
        return False

    def _is_idle(self, now_s: float, grace_s: float) -> bool:
        try:
            used_s = self.launcher.usage(self.server).cpu_seconds
        except EngineError:
            used_s = None
        before_s, self.used_s = self.used_s, used_s
        if self.silent_since_s is None:
            self.silent_since_s = now_s
        if used_s is not None and before_s is not None:
            return used_s <= before_s
        return now_s - self.silent_since_s >= grace_s
