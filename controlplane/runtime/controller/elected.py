"""A controller in a cluster: while it leads, it keeps a fleet as the cluster's Fleet object wants it.

The truth is in the cluster: the object has the plan, the pods say what runs, the gateway what is routed. The
files of this controller only repeat it, so each leadership begins without any.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from controlplane.domain.errors import (
    EngineError,
    FleetBusy,
    InputError,
    LogOnce,
    NotNow,
    TrisectError,
    Troubles,
)
from controlplane.domain.observation import Event, FleetReport, FleetStanding, Guarding, WantedFleet
from controlplane.domain.plan import Plan, PlannedGpu
from controlplane.domain.serving import FollowLoad, Serving
from controlplane.files.documents import Document, versioned
from controlplane.files.fleets import FleetSettings, read_guarding, write_guarding
from controlplane.files.following import Following as FollowingSettings
from controlplane.files.plans import plan_hash, plan_of, spec_of
from controlplane.runtime.controller.answers import ReplicaLogs
from controlplane.runtime.devices import devices_of
from controlplane.runtime.fleet.fleet import Fleet, locked
from controlplane.runtime.fleet.preflight import ApplyRequest
from controlplane.runtime.fleet.status import standing

LOOK_S = 2.0
_EXISTS_S = 0.1
"""The interval at which a leader without a fleet looks whether one was adopted."""
_AGAIN_S = 5.0
_INVENTORY_S = 10.0
_PLAN = "spec.plan"
_DEFECT, _DEFECT_S = "Defect", 60.0
"""The reason why a fleet is degraded, and for how long after the last time."""
_DEFECTS_IN_A_ROW = 3
"""So often a guard fails within `_DEFECT_S` before its leader ends."""
_KEPT_EVENTS = 100
_EVENTS_OF_A_LOOK = 10
"""So that a fleet in trouble does not keep the API server busy."""


class Wanted(Protocol):
    """The cluster's object of a fleet. Raises EngineError."""

    def read(self) -> WantedFleet | None:
        """Return what is wanted now; None where there is no object."""

    def hold(self) -> None:
        """Keep the object, once it is deleted, until `release`."""

    def release(self) -> None:
        """Let the object go."""

    def begin(self, generation: int) -> None:
        """Say that a generation is being applied."""

    def report(self, report: FleetReport) -> None:
        """Say what became of it."""

    def show(self, standing: FleetStanding) -> None:
        """Say how the fleet stands."""

    def degrade(self, reason: str, message: str) -> None:
        """Say what keeps the fleet's controller from its work."""

    def announce(self, event: Event) -> None:
        """Say what happened to the fleet."""

    def remember(self, guarding: Sequence[Guarding]) -> None:
        """Keep this for the next leader."""

    def follow(self, plan: Mapping[str, Any] | None, generation: int) -> None:
        """Keep the plan by which this generation follows the load for the next leader; None: no longer."""

    def followed(self, generation: int) -> Mapping[str, Any] | None:
        """Return the plan by which a leader followed the load of this generation; None without one."""

    def profiles(self) -> Mapping[str, str]:
        """Return the files of profiles that were given with the plan, by their places."""


@dataclass(frozen=True, slots=True)
class Installation:
    """What a fleet in a cluster has around it.

    `settings` returns the settings of a plan, given the devices that the object has on record, and whether it
    runs on them. `look` reads what else of the cluster changes, such as the gateway's replicas. `wait_for`
    has pods wait for devices.
    """

    settings: Callable[[Plan, Mapping[str, str], bool], FleetSettings]
    look: Callable[[], None]
    wait_for: Callable[[Sequence[PlannedGpu]], None]


class Keeper:
    """Applies what the object wants, and has the object say how the fleet stands. One thread calls it."""

    def __init__(self, fleet: Fleet, wanted: Wanted, installation: Installation) -> None:
        self._fleet = fleet
        self._wanted = wanted
        self.installation = installation
        self._done = 0
        self._again_s = -math.inf
        self._remembered: list[tuple[object, ...]] | None = None
        self._events: deque[Event] = deque(maxlen=_KEPT_EVENTS)
        self._redirects = 0
        self._plan: Plan | None = None
        self.counts: Mapping[str, int] = {}
        """How many devices of each type the spec allowed at the last look."""
        self._counted_s = -math.inf
        self._shown: FleetStanding | None = None
        self._unreported: FleetReport | None = None
        self._troubles = Troubles(fleet.say)
        self._defects = LogOnce(_DEFECT_S)
        self._defect = "", -math.inf

    def apply(self, request: ApplyRequest) -> None:
        """Apply a plan that follows the load; the next leader goes on with it where this one ends meanwhile.

        Raises as `Fleet.apply`; then the plan before is the one to go on with.
        """
        before, generation = self._plan, self._done
        self._wanted.follow(versioned(request.plan), generation)
        try:
            self._fleet.apply(request)
        except TrisectError:
            self._wanted.follow(None if before is None else versioned(before), generation)
            raise
        self._plan = request.plan
        self._report(_report(generation, request.plan, request.settings, "follows the load"))

    def note(self, event: Event) -> None:
        """Take an event of the fleet, which the object gets at the next look. Any thread may call."""
        self._redirects += event.kind == "redirect"
        self._events.append(event)

    def begin(self) -> None:
        """Forget the files of an earlier leadership: another leader may have changed the fleet since."""
        shutil.rmtree(self._fleet.files.directory, ignore_errors=True)

    def keep(self, stop: threading.Event) -> None:
        """Look at the object again and again until `stop` is set."""
        while not stop.is_set():
            try:
                self.step()
            except Exception:  # a defect must not leave a leader that guards and looks no more
                self._again_s = time.monotonic() + _AGAIN_S
                self.meet_defect()
            stop.wait(LOOK_S)

    def meet_defect(self) -> None:
        """Say the defect that is being handled, on the object too; the same one once in `_DEFECT_S`.

        Any thread may call.
        """
        told = traceback.format_exc()
        self._defect = told.splitlines()[-1], time.monotonic()
        if self._defects.is_new(told, about=told, now_s=self._defect[1]):
            self._fleet.say(told)
            event = Event(self._fleet.clock.wall(), "error", "defect", self._fleet.name, self._defect[0])
            try:
                self._wanted.degrade(_DEFECT, event.reason)
                self._wanted.announce(event)
            except Exception:  # the thread that met the first one goes on
                self._fleet.say(traceback.format_exc())

    def step(self) -> None:
        """Look once, and apply a new generation. Troubles are said once, and tried again at the next look."""
        try:
            self.installation.look()
            wanted = self._wanted.read()
            if wanted is None:
                return
            if wanted.ending:
                self._end()
            elif wanted.generation != self._done:
                if time.monotonic() >= self._again_s:
                    self._bring_about(wanted)
                return
            else:
                self._report_late()
                guarding = read_guarding(self._fleet.files.guarding)
                self._remember(guarding)
                self._count()
                self._tell(guarding)
            self._troubles.over()
        except TrisectError as error:
            self._troubles.met(error)

    def _end(self) -> None:
        """Drain and stop the fleet, then let the object go."""
        self.installation.wait_for(())
        self._fleet.destroy()
        self._plan = None
        self._finish(0)
        self._wanted.release()

    def _finish(self, generation: int) -> None:
        """Note that a generation is done with: its object has said nothing of the standing yet."""
        self._done, self._shown, self._remembered = generation, None, None

    def _report(self, report: FleetReport) -> None:
        """Have the object say what became of a generation, which is not applied again if that fails."""
        self._unreported = report
        with contextlib.suppress(EngineError):  # said at the next look, if it lasts
            self._report_late()

    def _report_late(self) -> None:
        report = self._unreported
        if report is not None:
            self._wanted.report(report)
            if self._unreported is report:
                self._unreported = None

    def _count(self) -> None:
        """Count the devices that the spec allows once in a while, for a fleet that follows its load."""
        now_s, plan = time.monotonic(), self._plan
        if plan is None or not self._fleet.files.following.settings().follow:
            return
        if now_s - self._counted_s >= _INVENTORY_S and (known := spec_of(plan)) is not None:
            labels = {gpu.type: gpu.node_selector for gpu in known[0].gpus}
            self.counts = {
                kind: sum(device.has(labels.get(kind, {})) for device in found)
                for kind, found in devices_of(self._fleet.launcher).items()
            }
            self._counted_s = now_s

    def _tell(self, guarding: Sequence[Guarding]) -> None:
        """Have the object say how the fleet stands, and what happened to it."""
        if self._plan is not None:
            now = standing(self._plan, guarding, self._redirects)
            if time.monotonic() < self._defect[1] + _DEFECT_S:
                now = replace(now, trouble=_DEFECT, message=self._defect[0])
            if now != self._shown:
                self._wanted.show(now)
                self._shown = now
        for _ in range(min(_EVENTS_OF_A_LOOK, len(self._events))):
            event = self._events.popleft()
            try:
                self._wanted.announce(event)
            except NotNow:
                self._events.appendleft(event)
                raise

    def _remember(self, guarding: Sequence[Guarding]) -> None:
        """Have the object keep what no server's label says: shares that are lent, and how servers end."""
        found = [one for one in guarding if one.lent or one.ending]
        known: list[tuple[object, ...]] = [
            (one.partition, one.owned_gpu, one.owned_percent, one.active, one.ending) for one in found
        ]
        if known != self._remembered:
            self._wanted.remember(found)
            self._remembered = known

    def _bring_about(self, wanted: WantedFleet) -> None:
        """Apply a generation and report. Raises EngineError where the API server does not answer."""
        try:
            self._wanted.hold()
            try:  # the plan by which the leader before followed the load
                if (followed := self._wanted.followed(wanted.generation)) is not None:
                    wanted = replace(wanted, plan=followed, followed=True)
            except InputError as error:
                self._drop(wanted.generation, error)
            self._wanted.begin(wanted.generation)
            report = self._applied(wanted)
        except FleetBusy:
            raise  # a command in this pod works on the fleet
        except InputError as error:
            if wanted.followed:
                self._drop(wanted.generation, error)
                return
            report = FleetReport(wanted.generation, False, "Invalid", str(error))
        except TrisectError as error:
            self._again_s = time.monotonic() + _AGAIN_S
            self._troubles.met(error)
            self._wanted.report(FleetReport(wanted.generation, False, "Failed", str(error)))
            return
        self._report(report)
        self._finish(wanted.generation)
        level = "info" if report.applied else "error"
        self.note(Event(self._fleet.clock.wall(), level, report.reason, self._fleet.name, report.message))
        self._fleet.say(f"generation {wanted.generation}: {report.message}")

    def _drop(self, generation: int, error: TrisectError) -> None:
        """Go back from a followed plan, which cannot be applied any more, to the object's own."""
        self._wanted.follow(None, generation)
        reason = f"the plan that followed the load is dropped for the object's own: {error}"
        self.note(Event(self._fleet.clock.wall(), "warning", "load", self._fleet.name, reason))

    def _follow(self, plan: Plan) -> None:
        """Write down whether the fleet follows its load from now on, and the profiles to plan with."""
        following, wanted = self._fleet.files.following, (plan.serve or Serving()).follow_load
        if wanted is not None:
            following.receive(self._wanted.profiles())
        following.write(FollowingSettings(wanted is not None, (wanted or FollowLoad()).stabilisation_s))
        self.installation.wait_for(())

    def _applied(self, wanted: WantedFleet) -> FleetReport:
        plan = plan_of(Document(_PLAN, "", {**wanted.plan}))
        if plan.violations and not wanted.allow_violations:
            first = plan.violations[0]
            raise InputError(
                f"the plan does not keep its promises: {first.subject}: {first.reason}; plan again, or set "
                "spec.allowViolations",
                file=_PLAN,
            )
        if plan.serve is not None and plan.serve.follow_load is not None and plan.spec is None:
            problem = "needs a plan with its spec: `ctl plan` again"
            raise InputError(problem, file=_PLAN, field="serve.follow_load")
        runs = self._fleet.files.settings() is None and wanted.applied == plan_hash(plan)
        devices = wanted.devices
        if runs:
            known_gpus = {gpu.id for gpu in plan.gpus}
            devices = {name: device for name, device in devices.items() if name in known_gpus}
        settings = self.installation.settings(plan, devices, runs)
        if runs:
            # An earlier leader applied it, and the guard may have redirected since: that stays.
            self._redirects = wanted.redirects
            with locked(self._fleet.files):
                self._fleet.files.write_settings(settings)
                self._fleet.files.write_plans(plan, None)
                write_guarding(self._fleet.files.guarding, wanted.guarding)
            message = "taken over from the leader before"
        else:
            outcome = self._fleet.apply(
                ApplyRequest(plan, settings, rename_endpoints=True, cause="by its Fleet object")
            )
            self._redirects = 0
            message = f"{len(outcome.servers)} servers"
        self._plan = plan
        self._follow(plan)
        return _report(wanted.generation, plan, settings, message)


def _report(generation: int, plan: Plan, settings: FleetSettings, message: str) -> FleetReport:
    count = sum(1 for _ in plan.partitions())
    return FleetReport(generation, True, "Applied", message, plan_hash(plan), count, dict(settings.devices))


def lead(keeper: Keeper, guard: Callable[[], None], fleet: Fleet, stop: threading.Event) -> None:
    """Keep a fleet until `stop` is set. `guard` runs while the fleet exists, in this thread.

    An apply under way holds up no end: the next leader completes it. Raises what `guard` raises again and
    again, EngineError excepted; then `stop` is set, since the next leader begins with clean files.
    """
    keeper.begin()
    defects = 0
    keeping = threading.Thread(target=keeper.keep, args=(stop,), name="keeper", daemon=True)
    keeping.start()
    while not stop.is_set():
        if not fleet.files.exists():
            stop.wait(_EXISTS_S)
            continue
        began_s = time.monotonic()
        try:
            guard()
        except EngineError as error:
            fleet.say(str(error))
            stop.wait(LOOK_S)
        except Exception:
            keeper.meet_defect()
            defects = 1 if time.monotonic() - began_s > _DEFECT_S else defects + 1
            if defects == _DEFECTS_IN_A_ROW:
                stop.set()
                raise
            stop.wait(LOOK_S)


@dataclass(frozen=True, slots=True)
class Following:
    """What following the load needs of the cluster: the keeper's plans, and all replicas' requests."""

    keeper: Keeper
    logs: ReplicaLogs

    @property
    def heard_since_s(self) -> float:
        """The time (monotonic) since which no request of any replica is missing."""
        return self.logs.heard_whole_since_s

    @property
    def counts(self) -> Mapping[str, int]:
        """How many devices of each type the spec allowed at the last look."""
        return self.keeper.counts

    def apply(self, request: ApplyRequest) -> None:
        """Apply a plan, so that the next leader goes on with it."""
        self.keeper.apply(request)

    def ask_for(self, gpus: Sequence[PlannedGpu]) -> None:
        """Have pods wait for devices that are not there, and no others."""
        self.keeper.installation.wait_for(gpus)
