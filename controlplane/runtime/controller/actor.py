"""What becomes of the guard's decisions: an `Actor` announces them, `executor.Executor` carries them out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from controlplane.control.converge.desired import NamedRoute
from controlplane.control.guard import decide
from controlplane.control.guard.effects import (
    DrainAndStop,
    Effect,
    Launch,
    Learn,
    Load,
    OpenBreaker,
    Probe,
    Redirect,
    Refuse,
    Report,
    SetBatch,
)
from controlplane.control.guard.state import GuardState, PlacedServer
from controlplane.domain.errors import LogOnce
from controlplane.domain.fleet import Batches, Server
from controlplane.domain.observation import Event, FleetSeen, Health
from controlplane.ports import GivesWay
from controlplane.runtime.controller.adopt import Adopted, Adoption
from controlplane.runtime.controller.observer import Observer
from controlplane.runtime.controller.workers import Workers
from controlplane.runtime.fleet.fleet import Fleet

Notice = Callable[[Event], None]
_REPEAT_S = 60.0


@dataclass(frozen=True, slots=True)
class Decision:
    """The guard's decision of one tick, and the observation on which it rests."""

    state: GuardState
    effects: tuple[Effect, ...]
    routes: dict[str, NamedRoute]
    seen: FleetSeen


class Actor:
    """Announces each decision as an event `would <kind>`, at most once a minute, for --plan-only.

    A controller may run beside it, so it takes no lock and writes no file.
    """

    def __init__(self, fleet: Fleet, notice: Notice) -> None:
        self._fleet = fleet
        self._notice = notice
        self._announced = LogOnce(_REPEAT_S)

    def hold_fleet(self) -> contextlib.AbstractContextManager[None]:
        """Keep other commands from the fleet. Raises FleetBusy at once if one works on it."""
        return contextlib.nullcontext()

    def open_gateway(self) -> None:
        """Make the gateway listen as the last apply has set it."""

    def restore_gateway(self) -> None:
        """Start the gateway's supervisor where it died."""

    def adopt_standby(self, server: Server, workers: Workers, gives_way: GivesWay) -> None:
        """Adopt a hot shadow that runs, ready or not."""
        workers.adopt(server, Health.READY)

    def adopt_warm(self, server: Server, workers: Workers) -> None:
        """Adopt a warm shadow that runs; its models may be loaded."""
        workers.adopt(server, Health.UNLOADED)

    def stop_surplus(self, found: Adoption, workers: Workers) -> None:
        """Stop the servers that an interrupted command or controller left."""
        for server in found.surplus:
            self.event("info", "would stop", server.name, "left by an interrupted command or controller")

    def act(self, decision: Decision, adopted: Adopted, workers: Workers, observer: Observer) -> None:
        """Process a decision and update `adopted`. After an announcement the guard begins again."""
        wall_s = self._fleet.clock.wall()
        if changed := changed_routes(adopted.routes, decision.routes):
            self.event("warning", "would route", self._fleet.name, changed)
        for effect in decision.effects:
            if isinstance(effect, Probe):
                observer.probe(effect.server)
            event = event_of(effect, wall_s, decision.seen.now_s)
            if event is not None:
                self.note(event if isinstance(effect, Report) else replace(event, kind=f"would {event.kind}"))
        changes_nothing = all(isinstance(effect, Probe | Report) for effect in decision.effects)
        adopted.state = decision.state if changes_nothing else _begun_again(adopted.state)

    def set_batches(self, server: Server, batches: Batches) -> bool:
        """Return whether a server was given the batches."""
        return False

    def publish(self, decision: Decision, state: GuardState, workers: Workers) -> None:
        """Write what `ctl status` and `ctl validate` read."""

    def is_busy(self, state: GuardState | None, workers: Workers) -> bool:
        """Return whether something is being repaired, or can still be repaired without help."""
        return False

    def event(self, level: str, kind: str, subject: str, reason: str) -> None:
        """Note an event of now."""
        self.note(Event(self._fleet.clock.wall(), level, kind, subject, reason))

    def note(self, event: Event) -> None:
        """Pass an event to the caller, unless it was passed a moment ago."""
        if self._announced.is_new(event.kind, (event.kind, event.subject, event.level), event.at_s):
            self._notice(event)

    def close(self, state: GuardState | None, workers: Workers) -> None:
        """End threads and write what is left; `state` is None if the fleet is gone."""


def changed_routes(before: Mapping[str, NamedRoute], after: Mapping[str, NamedRoute]) -> str:
    """Describe the endpoints that get other servers; empty if there are none."""
    moved: dict[tuple[str, ...], list[str]] = {}
    for endpoint, route in sorted(after.items()):
        if endpoint not in before or before[endpoint].members != route.members:
            moved.setdefault(route.members, []).append(endpoint)
    return "; ".join(
        f"{', '.join(endpoints)} -> {', '.join(members)}" for members, endpoints in moved.items()
    )


def event_of(effect: Effect, wall_s: float, now_s: float) -> Event | None:
    """Return the event of an effect; None if it needs none. `now_s` is the guard's clock."""
    match effect:
        case Redirect(partition, source, target, cause):
            return Event(wall_s, "warning", "redirect", partition, f"{source} -> {target}: {cause}")
        case Launch(partition, server, gpu, percent, attempt):
            before = f", after {attempt - 1} in a row that did not last" if attempt > 1 else ""
            reason = f"{server}: {percent:g} % of {gpu}{before}"
            return Event(wall_s, "info", "launch", partition, reason)
        case DrainAndStop(server, ending):
            return Event(wall_s, "info", "stop", server, str(ending))
        case Refuse(partition, accused, seconds):
            what = f"refused for {seconds:g} s" if seconds else "no second server for a lost request"
            return Event(wall_s, "critical", "refuse", partition, f"{accused}: {what}")
        case OpenBreaker(partition, until_s):
            return Event(wall_s, "critical", "breaker", partition, f"no start for {until_s - now_s:.0f} s")
        case SetBatch(partition, server, endpoint, _, reason):
            return Event(wall_s, "warning", "batch", partition, f"{server}, {endpoint}: {reason}")
        case Report(level, subject, reason):
            return Event(wall_s, str(level), "notice", subject, reason)
        case Load() | Probe() | Learn():
            return None


def _begun_again(state: GuardState) -> GuardState:
    """Return a new state with the same servers in the same roles."""
    placed: dict[str, tuple[PlacedServer, ...]] = {}
    for name, watch in state.watches.items():
        placed[name] = (watch.active,) if watch.standby is None else (watch.active, watch.standby)
    owned = {name: watch.owned for name, watch in state.watches.items() if watch.owned is not None}
    partitions = tuple(w.partition for w in state.watches.values())
    return decide.begin(partitions, placed, state.limits, owned=owned)
