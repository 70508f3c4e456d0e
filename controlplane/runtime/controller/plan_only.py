"""A controller that keeps its hands still: it looks and decides, and says what it would do."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace

from controlplane.control.converge.desired import NamedRoute
from controlplane.control.guard import decisions
from controlplane.control.guard.state import Effect, GuardState, Limits, PlacedServer, Probe, Say
from controlplane.domain.fleet import Server
from controlplane.domain.observation import FleetSeen, Health
from controlplane.runtime.controller.loop import TICK_S, Adopted, Controller, Notice, event_of, turned_over
from controlplane.runtime.controller.observer import Requests
from controlplane.runtime.fleet.fleet import Fleet
from controlplane.runtime.fleet.history import Event, History

_REPEAT_S = 60.0
_LOOKS = 30
"""Ticks after which a single look has ended: a dead server is noticed within them."""


class Onlooker(Controller):
    """Tells each decision once a minute as `would <what>`, and goes on from what is: nothing changed."""

    def __init__(
        self, fleet: Fleet, requests: Requests, history: History, notice: Notice, limits: Limits
    ) -> None:
        super().__init__(fleet, requests, history, notice, limits)
        self._said_s: dict[tuple[str, str, str], float] = {}

    def repair(self, stop: threading.Event) -> None:
        """Look for a moment, and say what there is to do."""
        for _ in range(_LOOKS):
            if not stop.is_set():
                self.step()
                stop.wait(TICK_S)
        self._crew.close(wait=True)

    def _act(
        self,
        adopted: Adopted,
        state: GuardState,
        effects: tuple[Effect, ...],
        routes: dict[str, NamedRoute],
        seen: FleetSeen,
    ) -> None:
        """Say, where the controller would do."""
        if turned := turned_over(adopted.routes, routes):
            self._note(Event(self._fleet.clock.wall(), "warning", "would route", self._fleet.name, turned))
        for effect in effects:
            if isinstance(effect, Probe):
                self._observer.probe(effect.server)
            event = event_of(effect, self._fleet.clock.wall(), seen.now_s)
            if event is not None:
                self._note(event if isinstance(effect, Say) else replace(event, kind=f"would {event.kind}"))
        only_words = all(isinstance(effect, Probe | Say) for effect in effects)
        adopted.state = state if only_words else _as_it_was(adopted.state)

    def _note(self, event: Event) -> None:
        """To the caller only: the history is of what was done."""
        said = (event.kind, event.subject, event.level)
        if event.at_s - self._said_s.get(said, -_REPEAT_S) >= _REPEAT_S:
            self._said_s[said] = event.at_s
            self._notice(event)

    def _alone(self) -> contextlib.AbstractContextManager[None]:
        """It changes nothing: a controller beside it that decides the same is not held up."""
        return contextlib.nullcontext()

    def _tell_others(self, state: GuardState, effects: tuple[Effect, ...], seen: FleetSeen) -> None:
        """A controller beside it may tell them."""

    def _open(self) -> None:
        """The gateway is left as it is."""

    def _take_on(self, server: Server) -> None:
        self._crew.adopt(server, Health.READY)

    def _take_on_warm(self, server: Server) -> None:
        self._crew.adopt(server, Health.UNLOADED)

    def _part_with(self, surplus: tuple[Server, ...]) -> None:
        for server in surplus:
            self._tell("info", "stop", server.name, "left by what was interrupted")


def _as_it_was(state: GuardState) -> GuardState:
    """The same servers on the same placed_servers, with nothing found out about them."""
    placed_servers: dict[str, tuple[PlacedServer, ...]] = {}
    for name, watch in state.watches.items():
        placed_servers[name] = (watch.active,) if watch.standby is None else (watch.active, watch.standby)
    return decisions.begin(tuple(w.partition for w in state.watches.values()), placed_servers, state.limits)
