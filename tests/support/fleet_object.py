"""A Fleet object without a cluster, and a fleet whose commands are only remembered."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import build

from controlplane.domain.device import HeldDevice
from controlplane.domain.errors import EngineError, TrisectError
from controlplane.domain.observation import Event, FleetReport, FleetStanding, Guarding, WantedFleet
from controlplane.domain.plan import Plan
from controlplane.files.documents import Document, versioned
from controlplane.files.fleets import FleetFiles, FleetSettings
from controlplane.files.plans import plan_of
from controlplane.runtime import SystemClock
from controlplane.runtime.controller.elected import Installation, Keeper
from controlplane.runtime.fleet.fleet import Fleet, Outcome
from controlplane.runtime.fleet.preflight import ApplyRequest

SETTINGS = FleetSettings("kubernetes", "/m", "/o", {"cpu-0": "b/cpu-0"})


def plan(*names: str) -> Plan:
    made = build.plan(*(build.partition(name, 30.0, batch=4) for name in names), gpu="cpu-0")
    return plan_of(Document("", "", versioned(made)))


PLAN = plan("a", "b")


@dataclass
class Object:
    """The Fleet object."""

    now: WantedFleet | None
    begun: list[int] = field(default_factory=list)
    reports: list[FleetReport] = field(default_factory=list)
    shown: list[FleetStanding] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    degraded: list[tuple[str, str]] = field(default_factory=list)
    kept: list[tuple[Guarding, ...]] = field(default_factory=list)
    plans: list[Mapping[str, Any] | None] = field(default_factory=lambda: [None])
    given: dict[str, str] = field(default_factory=dict)
    refuses: dict[str, TrisectError] = field(default_factory=dict)
    held: bool = False
    away: bool = False

    def _permit(self, call: str) -> None:
        if call in self.refuses:
            raise self.refuses[call]

    def read(self) -> WantedFleet | None:
        if self.away:
            raise EngineError("the API server does not answer")
        return self.now

    def hold(self) -> None:
        self.held = True

    def release(self) -> None:
        self.held, self.now = False, None

    def begin(self, generation: int) -> None:
        self.begun.append(generation)

    def report(self, report: FleetReport) -> None:
        self._permit("report")
        self.reports.append(report)

    def show(self, standing: FleetStanding) -> None:
        self.shown.append(standing)

    def degrade(self, reason: str, message: str) -> None:
        self.degraded.append((reason, message))

    def announce(self, event: Event) -> None:
        self._permit("announce")
        self.events.append(event)

    def follow(self, plan: Mapping[str, Any] | None, generation: int) -> None:
        self.plans.append(plan)
        self.refuses.pop("followed", None)

    def followed(self, generation: int) -> Mapping[str, Any] | None:
        self._permit("followed")
        return self.plans[-1] if generation == 1 else None

    def profiles(self) -> Mapping[str, str]:
        return self.given

    def remember(self, guarding: Sequence[Guarding]) -> None:
        self.kept.append(tuple(guarding))


@dataclass
class Deeds:
    """What the fleet did, what it is to fail with, and what it waits for."""

    applied: list[Plan] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    destroyed: int = 0
    fails: TrisectError | None = None
    begun: threading.Event = field(default_factory=threading.Event)
    may_end: threading.Event | None = None

    def inventory(self) -> tuple[HeldDevice, ...]:
        return (HeldDevice("cpu", "n1/cpu-0", "n1", (("pool", "a"),)), HeldDevice("cpu", "n2/cpu-0", "n2"))


class DoneFleet(Fleet):
    """A fleet whose commands only are remembered."""

    def apply(self, request: ApplyRequest) -> Outcome:
        plan, settings = request.plan, request.settings
        deeds = cast(Deeds, self.launcher)
        if deeds.fails is not None:
            raise deeds.fails
        deeds.begun.set()
        if deeds.may_end is not None:
            deeds.may_end.wait()
        deeds.applied.append(plan)
        self.files.make()
        self.files.write_settings(settings)
        self.files.write_plans(plan, None)
        return Outcome((), ())

    def destroy(self) -> Outcome:
        cast(Deeds, self.launcher).destroyed += 1
        return Outcome((), ())


def done(files: FleetFiles, deeds: Deeds) -> DoneFleet:
    return DoneFleet(files, cast(Any, deeds), cast(Any, None), SystemClock(), deeds.said.append)


def keeper(directory: Path, wanted: Object) -> tuple[Keeper, Deeds, FleetFiles]:
    deeds, files = Deeds(), FleetFiles(directory, "f")

    def settings(plan: Plan, devices: Mapping[str, str], runs: bool) -> FleetSettings:
        return replace(SETTINGS, devices=dict(devices)) if runs else SETTINGS

    around = Installation(settings, lambda: None, lambda gpus: None)
    return Keeper(done(files, deeds), wanted, around), deeds, files


def wanting(plan: Plan = PLAN, **more: Any) -> WantedFleet:
    return WantedFleet(versioned(plan), 1, **more)
