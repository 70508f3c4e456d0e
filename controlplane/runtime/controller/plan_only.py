"""The actor of `ctl serve --plan-only`: announces the guard's decisions and changes nothing."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from controlplane.control.guard import decisions
from controlplane.control.guard.state import GuardState, PlacedServer, Probe, Report
from controlplane.domain.fleet import Server
from controlplane.domain.observation import Health
from controlplane.runtime.controller.actor import Decision, Notice
from controlplane.runtime.controller.adopt import Adopted
from controlplane.runtime.controller.decision_events import changed_routes, event_of
from controlplane.runtime.controller.observer import Observer
from controlplane.runtime.controller.workers import Workers
from controlplane.runtime.fleet.fleet import Fleet
from controlplane.runtime.fleet.history import Event

_REPEAT_S = 60.0


class Announcer:
    """Announces each decision as an event `would <kind>`, at most once a minute.

    A controller may run beside it, so it takes no lock and writes no file.
    """

    def __init__(self, fleet: Fleet, notice: Notice) -> None:
        self._fleet = fleet
        self._notice = notice
        self._announced_s: dict[tuple[str, str, str], float] = {}

    def hold_fleet(self) -> contextlib.AbstractContextManager[None]:
        """Take no lock."""
        return contextlib.nullcontext()

    def open_gateway(self) -> None:
        """Leave the gateway as it is."""

    def restore_gateway(self) -> None:
        """Leave it to the controller."""

    def adopt_standby(self, server: Server, workers: Workers) -> None:
        """Count the shadow as ready."""
        workers.adopt(server, Health.READY)

    def adopt_warm(self, server: Server, workers: Workers) -> None:
        """Count the shadow as unloaded."""
        workers.adopt(server, Health.UNLOADED)

    def stop_surplus(self, servers: tuple[Server, ...], state: GuardState, workers: Workers) -> None:
        """Announce the servers that a controller would stop."""
        for server in servers:
            reason = "left by an interrupted command or controller"
            self.note(Event(self._fleet.clock.wall(), "info", "would stop", server.name, reason))

    def act(self, decision: Decision, adopted: Adopted, workers: Workers, observer: Observer) -> None:
        """Announce the decision; then the guard begins again with the present servers."""
        wall_s = self._fleet.clock.wall()
        if changed := changed_routes(adopted.routes, decision.routes):
            self.note(Event(wall_s, "warning", "would route", self._fleet.name, changed))
        for effect in decision.effects:
            if isinstance(effect, Probe):
                observer.probe(effect.server)
            event = event_of(effect, wall_s, decision.seen.now_s)
            if event is not None:
                self.note(event if isinstance(effect, Report) else replace(event, kind=f"would {event.kind}"))
        changes_nothing = all(isinstance(effect, Probe | Report) for effect in decision.effects)
        adopted.state = decision.state if changes_nothing else _begun_again(adopted.state)

    def publish(self, decision: Decision, state: GuardState, workers: Workers) -> None:
        """Write nothing: the files are the controller's."""

    def is_busy(self, state: GuardState | None, workers: Workers) -> bool:
        """Return False: nothing is repaired."""
        return False

    def note(self, event: Event) -> None:
        """Pass an event to the caller, unless it was passed a moment ago."""
        key = (event.kind, event.subject, event.level)
        if event.at_s - self._announced_s.get(key, -_REPEAT_S) >= _REPEAT_S:
            self._announced_s[key] = event.at_s
            self._notice(event)

    def close(self, state: GuardState | None, workers: Workers) -> None:
        """Do nothing."""


def _begun_again(state: GuardState) -> GuardState:
    """Return a new state with the same servers in the same roles."""
    placed: dict[str, tuple[PlacedServer, ...]] = {}
    for name, watch in state.watches.items():
        placed[name] = (watch.active,) if watch.standby is None else (watch.active, watch.standby)
    return decisions.begin(tuple(w.partition for w in state.watches.values()), placed, state.limits)
