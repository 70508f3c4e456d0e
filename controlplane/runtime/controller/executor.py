"""What becomes of the guard's decisions: an `Actor` announces them, an `Executor` carries them out."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from controlplane.control import batches
from controlplane.control.converge.desired import NamedRoute
from controlplane.control.guard import decide
from controlplane.control.guard.deaths import drain_s, overdue_s
from controlplane.control.guard.effects import (
    DrainAndStop,
    Effect,
    Ending,
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
from controlplane.control.guard.state import GuardState, PlacedServer, Watch
from controlplane.control.order import with_errors
from controlplane.domain.errors import EngineError, LogOnce, TrisectError
from controlplane.domain.fleet import Batches, Server
from controlplane.domain.observation import Event, FleetSeen, Health
from controlplane.domain.workload import ShadowPolicy
from controlplane.ports import GivesWay
from controlplane.runtime.controller.adopt import Adopted, Adoption
from controlplane.runtime.controller.observer import Observer
from controlplane.runtime.controller.recorder import Recorder, StatusFile
from controlplane.runtime.controller.workers import Workers, memory_limit_mb, spec_for
from controlplane.runtime.fleet.fleet import Fleet, locked
from controlplane.runtime.fleet.history import EventLog, History

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


class Executor(Actor):
    """Commits routes, starts and stops servers, and writes the fleet's history and status file."""

    def __init__(self, fleet: Fleet, history: History, notice: Notice) -> None:
        super().__init__(fleet, notice)
        self._log = EventLog(history)
        self._recorder = Recorder(history, fleet.clock)
        self._status = StatusFile(fleet.files.guarding, fleet.clock)

    def hold_fleet(self) -> contextlib.AbstractContextManager[None]:
        """Lock the fleet. Raises FleetBusy at once if another command has the lock."""
        return locked(self._fleet.files, patience_s=0.0)

    def open_gateway(self) -> None:
        """Start the gateway if it does not listen, as the last apply has set it."""
        settings, plan = self._fleet.files.settings(), self._fleet.files.plan()
        if settings is not None and plan is not None:
            self._fleet.open_gateway(plan, settings.endpoints)

    def restore_gateway(self) -> None:
        """Start the gateway's supervisor where it died."""
        self._fleet.gateway.restore()

    def adopt_standby(self, server: Server, workers: Workers, gives_way: GivesWay) -> None:
        """Test the shadow like a new server."""
        workers.resume(server, gives_way)

    def adopt_warm(self, server: Server, workers: Workers) -> None:
        """Unload the shadow's models."""
        workers.resume_warm(server)

    def stop_surplus(self, found: Adoption, workers: Workers) -> None:
        """Drain and stop the surplus servers."""
        state, endings = found.state, found.endings
        for server in found.surplus:
            watch = state.watches.get(server.spec.labels.partition)
            patience_s = state.limits.drain_s if watch is None else drain_s(watch, state.limits)
            ending = endings.get(server.name, Ending.DRAINED)
            if ending is Ending.HUNG:
                patience_s = state.limits.overdue_s if watch is None else overdue_s(watch, state.limits)
            workers.adopt(server)
            workers.stop(DrainAndStop(server.name, ending, patience_s))
        self.event(
            "info", "adopt", self._fleet.name, f"adopted the fleet; {len(found.surplus)} servers stopped"
        )

    def act(self, decision: Decision, adopted: Adopted, workers: Workers, observer: Observer) -> None:
        """Commit the routes, write the events, then start and stop servers.

        Routes come first, since clients wait for them. After a crash in between, the next controller finds
        the unfinished steps in the difference between routes and servers, so it needs no record of them.
        """
        for effect in decision.effects:
            if isinstance(effect, Refuse):  # before the next server is reached
                self._refuse(effect)
        if decision.routes != adopted.routes:
            self._commit(decision, adopted, workers)
        for effect in decision.effects:
            if not isinstance(effect, SetBatch):  # when it is set
                self._note_effect(effect, decision)
        if any(isinstance(effect, Learn) for effect in decision.effects):
            self._rearrange(decision.state)
        before, adopted.state = adopted.state, decision.state
        for effect in decision.effects:
            if not isinstance(effect, SetBatch):
                _carry_out(effect, adopted, workers, observer)
            elif self._set_batch(effect, adopted, workers):
                self._note_effect(effect, decision)
            else:
                adopted.state = batches.undone(adopted.state, before, effect)

    def set_batches(self, server: Server, batches: Batches) -> bool:
        """Return whether the server has the batches now; where not, it serves on with its own."""
        try:
            self._fleet.launcher.set_batches(server, batches)
        except EngineError as error:
            self.event("warning", "failed", server.name, str(error))
            return False
        return True

    def publish(self, decision: Decision, state: GuardState, workers: Workers) -> None:
        """Write the record and the status file, each when it is due."""
        self._recorder.hear(decision.seen.answers, state.watches.values())
        if self._recorder.is_due():
            self._recorder.write(_active(state, workers))
        self._status.show(state, workers.ending(), changed=bool(decision.effects))

    def is_busy(self, state: GuardState | None, workers: Workers) -> bool:
        """Return whether a server starts, or is down and can still be started without help."""
        conditions = workers.conditions()
        put_off = {n for n, c in conditions.items() if c.health is Health.STARTING and c.reason}
        if (
            workers.draining
            or state is None
            or any(c.health is Health.STARTING and n not in put_off for n, c in conditions.items())
        ):
            return True
        down = [w for w in state.watches.values() if w.down and not w.launches.open]
        return any(w.standby is None or w.standby.server not in put_off for w in down)

    def note(self, event: Event) -> None:
        """Write an event to the history and pass it to the caller."""
        self._log.write(event)
        self._notice(event)

    def close(self, state: GuardState | None, workers: Workers) -> None:
        """Write the rest of the record, unless the fleet's folder is gone."""
        self._log.close()
        self._recorder.close(_active(state, workers) if state is not None else [])

    def _commit(self, decision: Decision, adopted: Adopted, workers: Workers) -> None:
        began = time.monotonic()
        self._fleet.gateway.commit(adopted.addressed(decision.routes, workers))
        took_ms = 1000.0 * (time.monotonic() - began)
        before, adopted.routes = adopted.routes, decision.routes
        if changed := changed_routes(before, decision.routes):
            self.event("info", "commit", self._fleet.name, f"{changed} after {took_ms:.0f} ms")
        for partition, reason in found_dead(decision.state, before, decision.effects):
            self.event("warning", "redirect", partition, reason)

    def _note_effect(self, effect: Effect, decision: Decision) -> None:
        if (event := event_of(effect, self._fleet.clock.wall(), decision.seen.now_s)) is not None:
            self.note(event)

    def _set_batch(self, change: SetBatch, adopted: Adopted, workers: Workers) -> bool:
        """Return whether the server has the batch now."""
        server, batch = workers.server(change.server), change.batch
        if batch is None:
            batch = dict(adopted.planned[change.partition].batches).get(change.endpoint)
        if server is None or batch is None:
            return False
        return self.set_batches(server, ((change.endpoint, batch),))

    def _refuse(self, refuse: Refuse) -> None:
        until_s = self._fleet.clock.wall() + refuse.seconds
        try:
            self._fleet.gateway.refuse(refuse.accused.endpoint, refuse.accused.client, until_s)
        except TrisectError as error:  # the servers still need their decisions
            self.event("warning", "refuse", refuse.partition, f"{refuse.accused} is not refused: {error}")

    def _rearrange(self, state: GuardState) -> None:
        """Have requests wait in the order of the learned times."""
        settings, plan = self._fleet.files.settings(), self._fleet.files.plan()
        if settings is None or plan is None:
            return
        try:
            self._fleet.arrange(with_errors(plan, state.learned), settings.endpoints)
        except TrisectError as error:  # as above
            self.event("warning", "order", self._fleet.name, f"not by the learned times: {error}")


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


def _carry_out(effect: Effect, adopted: Adopted, workers: Workers, observer: Observer) -> None:
    match effect:
        case Launch():
            planned = adopted.planned[effect.partition]
            spec = spec_for(effect, planned, adopted.devices[effect.gpu])
            watch = adopted.state.watches.get(effect.partition)  # None for a shared shadow
            warm = watch is not None and watch.partition.policy is ShadowPolicy.WARM and not watch.down
            running = [s.spec for s in workers.servers().values()]
            limit_mb = memory_limit_mb(planned, running, observer.exhausted_mb.get(effect.partition))
            spec = replace(spec, reloads=warm, memory_limit_mb=limit_mb)
            workers.launch(spec, partial(adopted.gives_way, effect.partition))
        case Load():
            workers.load(effect)
        case DrainAndStop():
            workers.stop(effect)
        case Probe(server):
            observer.probe(server)
        case Redirect() | Refuse() | OpenBreaker() | Learn() | SetBatch() | Report():
            pass


def _active(state: GuardState, workers: Workers) -> list[tuple[Watch, Server | None]]:
    return [(watch, workers.server(watch.active.server)) for watch in state.watches.values()]


def found_dead(
    state: GuardState, before: Mapping[str, NamedRoute], effects: tuple[Effect, ...]
) -> list[tuple[str, str]]:
    """Return (partition, reason) where an adoption replaced a dead server, for the history."""
    redirected = {effect.partition for effect in effects if isinstance(effect, Redirect)}
    found = []
    for watch in state.watches.values():
        members = next((before[e].members for e in watch.partition.endpoints if e in before), ())
        if members and watch.active.server not in members and watch.partition.id not in redirected:
            reason = f"{', '.join(members)} -> {watch.active.server}: found dead when the fleet was adopted"
            found.append((watch.partition.id, reason))
    return found
