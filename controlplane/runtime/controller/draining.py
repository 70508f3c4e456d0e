"""When a server that no route leads to has drained, or can answer no more."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.control.guard.state import DrainAndStop, Ending
from controlplane.domain.errors import EngineError, GatewayError
from controlplane.domain.fleet import Server
from controlplane.ports import Gateway, Launcher
from controlplane.runtime.controller.probes import read_counters
from controlplane.runtime.fleet.execute import backend

LIVE_S = 0.5
"""The longest wait for an answer that needs no model."""


@dataclass(slots=True)
class Drain:
    """A server that ends as the guard decided (`how`), when it last answered and what it owed then.

    `failures` are the requests that it had refused by then, `silent_since_s` is when it stopped answering
    calls, `used_s` the time of a core that it had used when it was last silent. Times are monotonic.
    """

    server: Server
    how: DrainAndStop
    gateway: Gateway
    launcher: Launcher
    answered_s: float
    owed: int = 0
    failures: int | None = None
    silent_since_s: float | None = None
    used_s: float | None = None

    def may_answer(self, now_s: float, grace_s: float) -> bool:
        """Return whether the server owes answers that it may still give.

        A hung one may not while its process does nothing, which takes `grace_s` to see where nothing counts.
        """
        late = now_s - self.answered_s > self.how.patience_s
        try:
            found = self.gateway.in_flight(backend(self.server))
        except GatewayError:
            return not late
        if found.total < self.owed:
            self.answered_s, late = now_s, False
        self.owed = found.total
        if self.how.ending is Ending.DRAINED:
            return found.streaming + found.sequences > 0 or (found.requests > 0 and not late)
        return found.total > 0 and not late and not self._does_nothing(now_s, grace_s)

    def _does_nothing(self, now_s: float, grace_s: float) -> bool:
        """Return whether the process refuses what it has, or answers no call and uses no time of a core.

        Where its use of a core is not counted, its silence counts after `grace_s`.
        """
        reading = read_counters(self.server, self.server.spec.endpoints, LIVE_S)
        if reading.error is not None and isinstance(reading.error.__cause__, TimeoutError | ConnectionError):
            return self._is_idle(now_s, grace_s)
        counted = reading.counted
        failures = None if counted is None else sum(model.failures for model in counted.values())
        before, self.failures = self.failures, failures
        self.silent_since_s, self.used_s = None, None
        return before is not None and failures is not None and failures > before

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
