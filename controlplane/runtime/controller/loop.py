"""The controller's loop: look, decide, act.

`control.guard` decides, an actor carries the decisions out or announces them, workers do what takes long. The
loop keeps no state that it could not read again: the engine knows what runs, the gateway what is routed, the
plan what is promised. So it may be killed at any time, and the next controller adopts the fleet.

It holds the fleet's lock only while it acts. While another command holds the lock, the loop waits, and then
adopts the command's result.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from functools import partial

from controlplane.control.batches import in_force
from controlplane.control.converge.actions import batches_as_planned
from controlplane.control.converge.desired import NamedRoute
from controlplane.control.guard import decide
from controlplane.control.guard.observe import LOOK_S, due, missed_s, observe
from controlplane.control.guard.state import GuardState, guarded_partitions
from controlplane.control.guard.state import Limits as GuardLimits
from controlplane.domain.errors import EngineError, FleetBusy, GatewayError, LogOnce, TrisectError
from controlplane.domain.fleet import Batches, Routes
from controlplane.domain.observation import Health
from controlplane.domain.workload import ShadowPolicy
from controlplane.files.fleets import read_guarding
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.gateway import processes
from controlplane.monitor.host import GatewayHost
from controlplane.runtime.autoscaler.autoscaler import Autoscaler
from controlplane.runtime.controller.adopt import Adopted, adoption
from controlplane.runtime.controller.answers import Requests
from controlplane.runtime.controller.executor import Actor, Decision
from controlplane.runtime.controller.observer import Observer
from controlplane.runtime.controller.watches import GatewayWatch
from controlplane.runtime.controller.workers import Workers
from controlplane.runtime.fleet.execute import named
from controlplane.runtime.fleet.fleet import Fleet

_HURRIED_S = 0.05
_CHECK_S = 1.0
_LOCK_TRIES_S = 0.2
_BUSY_S = 60.0
"""A command that holds the fleet for longer is reported: nothing is repaired meanwhile."""
_IDLE_TICKS = 30
"""Ticks without anything to do after which a repair ends: the loop finds a dead server within them."""


class Controller:
    """Guards one fleet. Its decisions and events go to `actor`."""

    def __init__(
        self,
        fleet: Fleet,
        requests: Requests,
        actor: Actor,
        limits: GuardLimits,
        autoscaler: Autoscaler | None = None,
    ) -> None:
        self._fleet = fleet
        self._requests = requests
        self._actor = actor
        self._limits = limits
        self.autoscaler = autoscaler
        places = GatewayPaths.of(fleet.files.gateway)
        self._host = GatewayHost(lambda: processes.find(places, processes.HAPROXY))
        self._workers, self._observer = self._new_workers()
        self.gateway = GatewayWatch(fleet.gateway, actor)
        self._adopted: Adopted | None = None
        self._checked_s = 0.0
        # The gateway's and our routes that were last found to be the same.
        self._alike: tuple[Routes, Mapping[str, NamedRoute]] = ({}, {})
        self._failures = LogOnce(limits.repeat_s)
        self._listed: Mapping[str, Batches] = {}
        self._without_files: set[str] = set()
        self._busy_since_s: float | None = None
        self._troubles = LogOnce()
        self.ticked_s = time.monotonic()
        self.busy_s = 0.0

    @property
    def state(self) -> GuardState | None:
        """The guard's state; None before the fleet was adopted."""
        return self._adopted.state if self._adopted is not None else None

    def run(self, stop: threading.Event) -> None:
        """Run until `stop` is set or the fleet is destroyed."""
        while not stop.is_set() and self._fleet.files.exists():
            began = time.monotonic()
            self.gateway.look(began)
            try:
                self.step()
                self._busy_since_s = None
                if self.autoscaler is not None:
                    self.autoscaler.step(self._requests.heard_since_s)
            except (OSError, TrisectError) as error:
                # The engine, the gateway or the disk fails now; traffic does not need this loop. The state
                # is kept, and the decision is made again until it can be carried out.
                self._report_failure(error)
                stop.wait(_LOCK_TRIES_S if isinstance(error, FleetBusy | GatewayError) else _CHECK_S)
            self.ticked_s = time.monotonic()
            self.busy_s += self.ticked_s - began
            # Short under suspicion, since clients wait for the verdict.
            hurried = self.state is not None and due(self.state, self.state.now_s)
            stop.wait(max(0.0, (_HURRIED_S if hurried else LOOK_S) - (self.ticked_s - began)))

    def repair(self, stop: threading.Event) -> None:
        """Run until nothing is left to do, or nothing more can be done now."""
        idle = 0
        while not stop.is_set() and idle < _IDLE_TICKS:
            self.step()
            idle = 0 if self._actor.is_busy(self.state, self._workers) else idle + 1
            stop.wait(LOOK_S)
        self._workers.close(wait=True)

    def step(self) -> None:
        """Run one tick: adopt the fleet if needed, look, decide, act. Raises EngineError, GatewayError.

        The state is kept after an error.
        """
        if self._adopted is None:
            self._adopt()
        elif self._is_check_due() and self._changed_by_others(self._adopted):
            # The command still works: its result is adopted when it has ended.
            with contextlib.suppress(FleetBusy):
                self._adopt()
        adopted = self._adopted
        if adopted is None:
            return
        seen = self._observer.look(adopted.state)
        if self.autoscaler is not None:
            self.autoscaler.hear(seen.answers)
        trouble = self.gateway.trouble
        if not trouble and seen.host is not None and seen.host.stood_s > self._limits.gap_s:
            trouble = "its process does not run: the latency of requests meanwhile counts against no server"
        self._report_troubles({**self._observer.troubles, "gateway": trouble})
        self._workers.retry(seen.now_s)
        self._restore_batches(adopted)
        if missed := missed_s(adopted.state, seen):
            reason = (
                f"the controller did not run for {missed:.1f} s: requests that were slow in that time do not "
                "count against a server"
            )
            self._actor.event("warning", "controller", self._fleet.name, reason)
        # Kept even if the decision fails: an alarm must not have to build up again.
        adopted.state = observe(adopted.state, seen)
        state, effects = decide.decide(adopted.state, seen)
        # Where no partition was decided on, the routes are as they were too.
        routes = adopted.routes if state is adopted.state else decide.routes(state, seen)
        decision = Decision(state, effects, routes, seen)
        try:
            self._act(decision, adopted)
            if self.autoscaler is not None:
                self.autoscaler.learn(effects)
        finally:
            self._actor.publish(decision, adopted.state, self._workers)

    def close(self) -> None:
        """End the threads. The next controller finds servers that are being started by their labels."""
        if self.autoscaler is not None:
            self.autoscaler.close()
        self._observer.close()
        self._workers.close(wait=False)
        self._actor.close(self.state if self._fleet.files.exists() else None, self._workers)

    def _act(self, decision: Decision, adopted: Adopted) -> None:
        unchanged = decision.routes is adopted.routes or decision.routes == adopted.routes
        if not decision.effects and unchanged:
            adopted.state = decision.state
            return
        with self._actor.hold_fleet():
            # A command may have ended since the look: the servers that it stopped did not die.
            if self._changed_by_others(adopted):
                self._adopted = None
            else:
                self._actor.act(decision, adopted, self._workers, self._observer)

    def _report_failure(self, error: Exception) -> None:
        """Report why a step failed, the same reason only once in a while. A working command is no problem."""
        now, reason = time.monotonic(), str(error)
        if isinstance(error, FleetBusy):
            self._busy_since_s = self._busy_since_s or now
            if now - self._busy_since_s < _BUSY_S:
                return
        if self._failures.is_new(reason, reason, now):
            self._actor.event("warning", "controller", self._fleet.name, reason)

    def _report_troubles(self, troubles: Mapping[str, str]) -> None:
        """Report once when the engine or the monitor stops answering, and when it answers again."""
        for part, trouble in troubles.items():
            if self._troubles.is_new("met" if trouble else "", part):
                level, reason = ("warning", trouble) if trouble else ("info", f"the {part} answers again")
                self._actor.event(level, part, self._fleet.name, reason)

    def _new_workers(self) -> tuple[Workers, Observer]:
        fleet = self._fleet

        def failed(subject: str, reason: str) -> None:
            self._actor.event("warning", "failed", subject, reason)

        workers = Workers(fleet.launcher, fleet.gateway, failed, fleet.waits)
        return workers, Observer(
            fleet.launcher, fleet.gateway, fleet.name, workers, self._requests, self._host
        )

    def _is_check_due(self) -> bool:
        """Return whether to check for changes by other commands."""
        now = time.monotonic()
        if now - self._checked_s < _CHECK_S:
            return False
        self._checked_s = now
        return True

    def _changed_by_others(self, adopted: Adopted) -> bool:
        if self._fleet.files.changed_s() != adopted.changed_s:
            return True
        found = self._fleet.gateway.routes()
        if found is self._alike[0] and adopted.routes is self._alike[1]:
            return False
        present = {e: set(r.members) for e, r in named(found).items()}
        addressed = adopted.addressed(adopted.routes, self._workers)
        if present != {e: {b.server for b in r.members} for e, r in addressed.items()}:
            return True
        self._alike = found, adopted.routes
        return False

    def _adopt(self) -> None:
        """Adopt what runs. Raises EngineError where another command works on the fleet."""
        files = self._fleet.files
        with self._actor.hold_fleet():
            settings, plan, changed_s = files.settings(), files.plan(), files.changed_s()
            if settings is None or plan is None:
                raise EngineError(f"fleet {self._fleet.name!r} has no plan; apply one first")
            desired = self._fleet.desired(plan, settings)
            self._actor.open_gateway()
            servers = self._fleet.launcher.servers(self._fleet.name)
            present = self._fleet.gateway.routes()
            # An apply that was killed may have changed batches for a plan that it did not record.
            by_name = {server.name: server for server in servers}
            for action in batches_as_planned(desired, servers):
                self._actor.set_batches(by_name[action.server], action.batches)
        # From the clock, so that no server's name is used twice: starts take longer than a millisecond.
        generation = int(1000.0 * self._fleet.clock.wall())
        routes, guarding = named(present), read_guarding(files.guarding)
        partitions = guarded_partitions(plan, desired)
        found = adoption(partitions, desired, settings, servers, routes, self._limits, generation, guarding)
        self._adopted = None
        self._observer.close()
        self._workers.hand_over([server.name for server in (*found.kept, *found.surplus)])
        self._workers, self._observer = self._new_workers()
        # A routed server or a backup has answered a real inference before.
        backends = {m.server: m for r in present.values() for m in r.servers}
        self._adopted = adopted = Adopted(
            found.state, found.planned, settings.devices, routes, backends, changed_s
        )
        policies = {name: watch.partition.policy for name, watch in found.state.watches.items()}
        for server in found.kept:
            if server.name in backends:
                self._workers.adopt(server, Health.READY)
            elif server.spec.reloads and policies.get(server.spec.labels.partition) is ShadowPolicy.WARM:
                self._actor.adopt_warm(server, self._workers)
            else:
                gives_way = partial(adopted.gives_way, server.spec.labels.partition)
                self._actor.adopt_standby(server, self._workers, gives_way)
        self._actor.stop_surplus(found, self._workers)

    def _restore_batches(self, adopted: Adopted) -> None:
        """Make lost batch files again, each once, by a list of servers that is new."""
        listed = self._observer.batches
        if listed is self._listed:
            return
        self._listed, before = listed, self._without_files
        self._without_files = set()
        for name, server in self._workers.servers().items():
            planned = adopted.planned.get(server.spec.labels.partition)
            present = dict(listed.get(server.name, planned.batches if planned else ()))
            if planned is None or all(model in present for model, _ in planned.batches):
                continue
            self._without_files.add(name)
            if name not in before:
                self._actor.set_batches(server, in_force(adopted.state, name, planned.batches))
