"""The one loop: look, decide, do. Everything it decides is `control.guard`'s; everything slow is the crew's.

It keeps nothing that it could not find again: what runs is asked of the engine, what is routed of the
gateway, what was promised of the plan. So it may be killed anywhere; the next one adopts what there is. It
works under the fleet's lock only while it acts: an `apply` that holds the lock is waited for, and what it
left is adopted anew.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from controlplane.control.converge.desired import NamedRoute
from controlplane.control.guard import decisions
from controlplane.control.guard.signals import hear, missed_s
from controlplane.control.guard.state import (
    DrainAndStop,
    Effect,
    Ending,
    GuardState,
    Launch,
    Load,
    OpenBreaker,
    Probe,
    Redirect,
    Say,
    Watch,
    guarded_partitions,
)
from controlplane.control.guard.state import Limits as GuardLimits
from controlplane.domain.errors import EngineError, FleetBusy, GatewayError, TrisectError
from controlplane.domain.fleet import Backend, Route, Server, ServerSpec
from controlplane.domain.observation import FleetSeen, Health
from controlplane.domain.workload import ShadowPolicy
from controlplane.gateway import processes
from controlplane.gateway.places import Places
from controlplane.monitor.host import GatewayHost
from controlplane.runtime.controller.adopt import take_over
from controlplane.runtime.controller.observer import Observer, Requests
from controlplane.runtime.controller.recorder import Recorder
from controlplane.runtime.controller.status_file import Board
from controlplane.runtime.controller.workers import Crew, spec_for
from controlplane.runtime.fleet.execute import backend, named
from controlplane.runtime.fleet.fleet import Fleet, locked
from controlplane.runtime.fleet.history import Event, EventLog, History

TICK_S = 0.2
_LOOK_AROUND_S = 1.0
_LOCK_TRIES_S = 0.2
_LOOKS = 30
"""Ticks without anything to do after which a repair is done: a dead server is noticed within them."""

Notice = Callable[[Event], None]


@dataclass(slots=True)
class Adopted:
    """What a fleet was when it was last adopted, and what has been made of it since."""

    state: GuardState
    planned: Mapping[str, ServerSpec]
    devices: Mapping[str, str]
    warm: frozenset[str]
    routes: dict[str, NamedRoute]
    backends: dict[str, Backend] = field(default_factory=dict)
    plan_mark: object = None


class Controller:
    """Guards one fleet. `notice` is called with every event, from the deciding thread and from the crew."""

    def __init__(
        self, fleet: Fleet, requests: Requests, history: History, notice: Notice, limits: GuardLimits
    ) -> None:
        self._fleet = fleet
        self._requests = requests
        self._log = EventLog(history)
        self._notice = notice
        self._limits = limits
        places = Places.of(fleet.files.gateway)
        self._host = GatewayHost(lambda: processes.find(places, processes.HAPROXY))
        self._crew, self._observer = self._hands()
        self._recorder = Recorder(history, fleet.clock)
        self._board = Board(fleet.files.guarding, fleet.clock)
        self._adopted: Adopted | None = None
        self._looked_s = 0.0
        self._refused_s: dict[str, float] = {}
        self._troubles: Mapping[str, str] = {}
        self.ticked_s = time.monotonic()
        self.busy_s = 0.0

    @property
    def state(self) -> GuardState | None:
        """What the guard knows; None before anything was adopted."""
        return self._adopted.state if self._adopted is not None else None

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set or the fleet is destroyed."""
        while not stop.is_set() and self._fleet.files.exists():
            began = time.monotonic()
            try:
                self.step()
            except TrisectError as error:
                # The engine, the gateway or the disk refuses now; traffic flows without us. What is known
                # stays known, and what is decided waits until it can be carried out.
                self._tell_refusal(error)
                stop.wait(_LOCK_TRIES_S if isinstance(error, FleetBusy | GatewayError) else _LOOK_AROUND_S)
            self.ticked_s = time.monotonic()
            self.busy_s += self.ticked_s - began
            stop.wait(max(0.0, TICK_S - (self.ticked_s - began)))

    def repair(self, stop: threading.Event) -> None:
        """Look, do what there is to do, and return once nothing starts and no more can be done now."""
        looks = 0
        while not stop.is_set() and looks < _LOOKS:
            self.step()
            looks = 0 if self._hopeful() else looks + 1
            stop.wait(TICK_S)
        self._crew.close(wait=True)

    def _hopeful(self) -> bool:
        """Whether something starts, or is down and may still be started, without anybody's help."""
        conditions = self._crew.conditions()
        put_off = {n for n, c in conditions.items() if c.health is Health.STARTING and c.reason}
        if self.state is None or any(
            c.health is Health.STARTING and n not in put_off for n, c in conditions.items()
        ):
            return True
        down = [w for w in self.state.watches.values() if w.down and not w.launches.open]
        return any(w.standby is None or w.standby.server not in put_off for w in down)

    def step(self) -> None:
        """One tick: adopt if need be, look, decide, do. Raises EngineError, GatewayError; forgets nothing."""
        if self._adopted is None or (self._is_time() and self._changed_by_others(self._adopted)):
            self._adopt()
        adopted = self._adopted
        if adopted is None:
            return
        seen = self._observer.look(adopted.state)
        self._tell_troubles(self._observer.troubles)
        self._crew.retry(seen.now_s)
        if missed := missed_s(adopted.state, seen):
            reason = f"nobody looked for {missed:.1f} s: what was slow meanwhile is held against no server"
            self._tell("warning", "controller", self._fleet.name, reason)
        # Kept, whatever becomes of what is decided now: an alarm is not to be waited for twice.
        adopted.state = hear(adopted.state, seen)
        state, effects = decisions.decide(adopted.state, seen)
        routes = decisions.routes(state, seen)
        try:
            if not effects and routes == adopted.routes:
                adopted.state = state
                return
            with self._alone():
                # A command may have ended since the look: what it stopped is no death.
                if self._changed_by_others(adopted):
                    self._adopted = None
                else:
                    self._act(adopted, state, effects, routes, seen)
        finally:
            self._tell_others(adopted.state, effects, seen)

    def close(self) -> None:
        """End what can be ended at once; servers being started are found by the next controller."""
        self._observer.close()
        self._crew.close(wait=False)
        self._log.close()
        # Not into the directory of a fleet that is gone.
        told = self.state if self._fleet.files.exists() else None
        self._recorder.close(self._active(told) if told is not None else [])

    def _alone(self) -> contextlib.AbstractContextManager[None]:
        """Hold the fleet. Raises FleetBusy at once where another command does."""
        return locked(self._fleet.files, patience_s=0.0)

    def _tell_others(self, state: GuardState, effects: tuple[Effect, ...], seen: FleetSeen) -> None:
        """What `ctl status` and `ctl validate` read."""
        self._recorder.hear(seen.answers, state.watches.values())
        if self._recorder.is_due():
            self._recorder.write(self._active(state))
        self._board.show(state, changed=bool(effects))

    def _active(self, state: GuardState) -> list[tuple[Watch, Server | None]]:
        return [(watch, self._crew.server(watch.active.server)) for watch in state.watches.values()]

    def _tell_refusal(self, error: TrisectError) -> None:
        """Say why nothing could be done, and again only after a while. A command that works is no trouble."""
        now, repeat_s, reason = time.monotonic(), self._limits.repeat_s, str(error)
        self._refused_s = {told: at for told, at in self._refused_s.items() if now - at < repeat_s}
        if reason not in self._refused_s:
            self._refused_s[reason] = now
            level = "info" if isinstance(error, FleetBusy) else "warning"
            self._tell(level, "controller", self._fleet.name, reason)

    def _tell_troubles(self, troubles: Mapping[str, str]) -> None:
        """Say so once when somebody does not answer, and when it does again. Redirects need no engine."""
        for who, trouble in troubles.items():
            if bool(trouble) != bool(self._troubles.get(who)):
                level, words = ("warning", trouble) if trouble else ("info", f"the {who} answers again")
                self._tell(level, who, self._fleet.name, words)
        self._troubles = troubles

    def _hands(self) -> tuple[Crew, Observer]:
        crew = Crew(self._fleet.launcher, self._fleet.gateway, self._failed, self._fleet.limits)
        return crew, Observer(
            self._fleet.launcher, self._fleet.gateway, self._fleet.name, crew, self._requests, self._host
        )

    def _act(
        self,
        adopted: Adopted,
        state: GuardState,
        effects: tuple[Effect, ...],
        routes: dict[str, NamedRoute],
        seen: FleetSeen,
    ) -> None:
        if routes != adopted.routes:
            # Before anything is written down: clients wait for this. What was under way after a crash is
            # what differs between the routes and the servers, not what a file says.
            began = time.monotonic()
            self._fleet.gateway.commit(self._routes(adopted, routes))
            took_ms = 1000.0 * (time.monotonic() - began)
            before, adopted.routes = adopted.routes, routes
            if turned := turned_over(before, routes):
                self._tell("info", "commit", self._fleet.name, f"{turned} after {took_ms:.0f} ms")
            for partition, reason in found_dead(state, before, effects):
                self._tell("warning", "redirect", partition, reason)
        for effect in effects:
            event = event_of(effect, self._fleet.clock.wall(), seen.now_s)
            if event is not None:
                self._note(event)
        adopted.state = state
        for effect in effects:
            match effect:
                case Launch():
                    planned = adopted.planned[effect.partition]
                    spec = spec_for(effect, planned, adopted.devices[effect.gpu])
                    watch = state.watches[effect.partition]
                    warm = watch.partition.policy is ShadowPolicy.WARM and not watch.down
                    self._crew.launch(effect, spec, unload=warm)
                case Load():
                    self._crew.load(effect)
                case DrainAndStop():
                    self._crew.stop(effect)
                case Probe(server):
                    self._observer.probe(server)
                case Redirect() | OpenBreaker() | Say():
                    pass

    def _routes(self, adopted: Adopted, routes: Mapping[str, NamedRoute]) -> dict[str, Route]:
        """Routes with addresses; a server nobody knows an address of cannot be routed to."""

        def address(name: str) -> Backend | None:
            server = self._crew.server(name)
            if server is not None:
                adopted.backends[name] = backend(server)
            return adopted.backends.get(name)

        found = {}
        for endpoint, route in routes.items():
            members = tuple(b for name in route.members if (b := address(name)) is not None)
            if members:
                found[endpoint] = Route(members, None if route.backup is None else address(route.backup))
        return found

    def _is_time(self) -> bool:
        """To look around for what other commands did."""
        now = time.monotonic()
        if now - self._looked_s < _LOOK_AROUND_S:
            return False
        self._looked_s = now
        return True

    def _changed_by_others(self, adopted: Adopted) -> bool:
        if self._plan_mark() != adopted.plan_mark:
            return True
        present = {e: set(r.members) for e, r in named(self._fleet.gateway.routes()).items()}
        ours = {e: {b.server for b in r.members} for e, r in self._routes(adopted, adopted.routes).items()}
        return present != ours

    def _plan_mark(self) -> object:
        """Changes whenever a plan is applied."""
        return self._fleet.files.planned_s()

    def _adopt(self) -> None:
        """Take over what runs. Raises EngineError where another command works on the fleet."""
        files = self._fleet.files
        with self._alone():
            settings, plan, mark = files.settings(), files.plan(), self._plan_mark()
            if settings is None or plan is None:
                raise EngineError(f"fleet {self._fleet.name!r} has no plan; apply one first")
            desired = self._fleet.desired(plan, settings)
            self._open()
            servers = self._fleet.launcher.servers(self._fleet.name)
            present = self._fleet.gateway.routes()
        # Of the moment, so that no name is given twice: more servers than milliseconds were never started.
        generation = int(1000.0 * self._fleet.clock.wall())
        taken = take_over(
            guarded_partitions(plan), desired, settings, servers, named(present), self._limits, generation
        )
        self._adopted = None
        self._observer.close()
        self._crew.hand_over([server.name for server in (*taken.kept, *taken.surplus)])
        self._crew, self._observer = self._hands()
        # Whoever is routed to, or backs that up, has answered a real inference before.
        backends = {m.server: m for r in present.values() for m in (*r.members, r.backup) if m is not None}
        self._adopted = Adopted(
            taken.state, taken.planned, settings.devices, desired.warm, named(present), backends, mark
        )
        for server in taken.kept:
            if server.name in backends:
                self._crew.adopt(server, Health.READY)
            elif taken.state.watches[server.spec.labels.partition].partition.policy is ShadowPolicy.WARM:
                self._take_on_warm(server)
            else:
                self._take_on(server)
        self._part_with(taken.surplus)

    def _open(self) -> None:
        """Have the gateway listening."""
        self._fleet.gateway.start()

    def _take_on(self, server: Server) -> None:
        """A server that was left standing by, ready or not."""
        self._crew.resume(server)

    def _take_on_warm(self, server: Server) -> None:
        """One that is to stand by with its models unloaded."""
        self._crew.resume_warm(server)

    def _part_with(self, surplus: tuple[Server, ...]) -> None:
        """What an interrupted command or controller left."""
        for server in surplus:
            self._crew.adopt(server)
            self._crew.stop(DrainAndStop(server.name, Ending.DRAINED))
        self._tell("info", "adopt", self._fleet.name, f"took the fleet over; {len(surplus)} servers stopped")

    def _failed(self, subject: str, reason: str) -> None:
        self._tell("warning", "failed", subject, reason)

    def _tell(self, level: str, kind: str, subject: str, reason: str) -> None:
        self._note(Event(self._fleet.clock.wall(), level, kind, subject, reason))

    def _note(self, event: Event) -> None:
        self._log.write(event)
        self._notice(event)


def turned_over(before: Mapping[str, NamedRoute], after: Mapping[str, NamedRoute]) -> str:
    """The endpoints that others answer for than before, in words; empty for none."""
    moved: dict[tuple[str, ...], list[str]] = {}
    for endpoint, route in sorted(after.items()):
        if endpoint not in before or before[endpoint].members != route.members:
            moved.setdefault(route.members, []).append(endpoint)
    return "; ".join(
        f"{', '.join(endpoints)} -> {', '.join(members)}" for members, endpoints in moved.items()
    )


def found_dead(
    state: GuardState, before: Mapping[str, NamedRoute], effects: tuple[Effect, ...]
) -> list[tuple[str, str]]:
    """Partitions that another server was seated for at the take-over, and what is written down of it."""
    told = {effect.partition for effect in effects if isinstance(effect, Redirect)}
    found = []
    for watch in state.watches.values():
        members = next((before[e].members for e in watch.partition.endpoints if e in before), ())
        if members and watch.active.server not in members and watch.partition.id not in told:
            reason = f"{', '.join(members)} -> {watch.active.server}: found dead at the take-over"
            found.append((watch.partition.id, reason))
    return found


def event_of(effect: Effect, wall_s: float, now_s: float) -> Event | None:
    """What is written down of an effect that is had at `now_s` of the guard's clock; None for no news."""
    match effect:
        case Redirect(partition, source, target, cause):
            return Event(wall_s, "warning", "redirect", partition, f"{source} -> {target}: {cause}")
        case Launch(partition, server, gpu, percent, attempt):
            before = f", after {attempt - 1} in a row that did not last" if attempt > 1 else ""
            reason = f"{server}: {percent:g} % of {gpu}{before}"
            return Event(wall_s, "info", "launch", partition, reason)
        case DrainAndStop(server, ending):
            return Event(wall_s, "info", "stop", server, str(ending))
        case OpenBreaker(partition, until_s):
            return Event(wall_s, "critical", "breaker", partition, f"no start for {until_s - now_s:.0f} s")
        case Say(level, subject, reason):
            return Event(wall_s, str(level), "said", subject, reason)
        case Load() | Probe():
            return None
