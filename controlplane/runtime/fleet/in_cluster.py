"""A fleet that controllers in a cluster keep: apply, roll back and destroy it from outside by its object.

The files here repeat what was asked, so that a rollback knows the plan before. The truth is the object.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from controlplane.domain.errors import EngineError, InputError
from controlplane.domain.observation import FleetReport
from controlplane.domain.plan import Plan
from controlplane.files.documents import Document
from controlplane.files.fleets import FleetFiles, FleetSettings
from controlplane.files.following import profile_texts
from controlplane.files.plans import fleet_manifest, plan_hash, plan_of
from controlplane.planning.replan.differences import Ending, endings
from controlplane.runtime.fleet.execute import Say
from controlplane.runtime.fleet.fleet import locked
from controlplane.runtime.fleet.preflight import check_endings

T = TypeVar("T")

_POLL_S = 0.5
_WITHOUT_CONTROLLER_S = 60.0
"""How long no controller may run: a Deployment replaces its pods in that time."""


class Orders(Protocol):
    """The fleet's object in its cluster. Raises EngineError."""

    def controllers(self) -> tuple[str, ...]:
        """Return the controllers that run."""

    def plan(self) -> Mapping[str, Any] | None:
        """Return the document of the plan that is wanted now; None where there is no object."""

    def put(self, manifest: Mapping[str, Any]) -> int:
        """Make the object as it is here; return its generation."""

    def put_profiles(self, profiles: Mapping[str, str]) -> None:
        """Give the controllers the profiles with which they plan for other rates."""

    def report(self) -> FleetReport | None:
        """Return what the controllers reported last."""

    def delete(self) -> None:
        """Delete the object."""


@dataclass(frozen=True, slots=True)
class FleetInCluster:
    """One fleet's object, and this host's record of it."""

    files: FleetFiles
    orders: Orders
    say: Say

    def apply(
        self,
        plan: Plan,
        settings: FleetSettings,
        *,
        allow_violations: bool,
        rename_endpoints: bool,
        profiles: Path | None = None,
    ) -> FleetReport:
        """Write the object, and return the controllers' report of it.

        Raises InputError for a plan that they refuse, EngineError where they could not apply it: they try
        again by themselves. InputError, before any change, as `Fleet.apply`.
        """
        with locked(self.files):
            check_endings(self._endings(plan), self.say, accepted=rename_endpoints)
            if profiles is not None and plan.serve is not None and plan.serve.follow_load is not None:
                self.orders.put_profiles(profile_texts(profiles))
            generation = self.orders.put(
                fleet_manifest(self.files.fleet, plan, allow_violations=allow_violations)
            )
            before = self.files.plan()
            self.files.write_settings(settings)
            changed = before is not None and plan_hash(before) != plan_hash(plan)
            self.files.write_plans(plan, before if changed else None)
        self.say(f"generation {generation} of Fleet {self.files.fleet} is written; its controllers apply it")

        def reported() -> FleetReport | None:
            found = self.orders.report()
            return found if found is not None and found.generation >= generation else None

        report = self._awaited(reported)
        if report.applied:
            return report
        if report.reason == "Invalid":
            raise InputError(report.message, field="Fleet")
        raise EngineError(f"{report.message}; the controllers try again")

    def rollback(self) -> FleetReport:
        """Write the plan that this host applied before the present one. Raises as `apply`."""
        settings, previous = self.files.settings(), self.files.previous_plan()
        if settings is None or previous is None:
            raise InputError(
                f"this host applied no plan of fleet {self.files.fleet!r} before the present one: "
                "apply an earlier plan's file"
            )
        return self.apply(previous, settings, allow_violations=True, rename_endpoints=True)

    def destroy(self) -> None:
        """Delete the object, and return once its servers are drained and stopped."""
        with locked(self.files):
            self.orders.delete()
            self.say(f"Fleet {self.files.fleet} is deleted; its controllers drain and stop the servers")
            self._awaited(lambda: self.orders.plan() is None or None)
        shutil.rmtree(self.files.directory, ignore_errors=True)

    def _awaited(self, look: Callable[[], T | None]) -> T:
        """Look until there is something. Raises EngineError where no controller has run for a while."""
        alive_s = time.monotonic()
        while (found := look()) is None:
            if self.orders.controllers():
                alive_s = time.monotonic()
            elif time.monotonic() - alive_s > _WITHOUT_CONTROLLER_S:
                raise EngineError(
                    f"no controller of fleet {self.files.fleet!r} runs, so its object waits: `kubectl get "
                    "pods --selector app.kubernetes.io/component=controller` says why"
                )
            time.sleep(_POLL_S)
        return found

    def _endings(self, plan: Plan) -> tuple[Ending, ...]:
        """Return the endpoints that a plan ends."""
        document = self.orders.plan()
        return endings(plan_of(Document("spec.plan", "", document)), plan) if document else ()
