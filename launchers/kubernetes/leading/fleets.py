"""The custom resource `Fleet` (trisect.dev/v1alpha1): the plan that is wanted, and what became of it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from lightkube.generic_resource import create_namespaced_resource

from controlplane.domain.wanted import FleetReport, WantedFleet
from launchers.kubernetes import names
from launchers.kubernetes.api import ClusterApi

FLEET: Any = create_namespaced_resource(names.DOMAIN, "v1alpha1", "Fleet", "fleets")
FINALIZER = f"{names.DOMAIN}/servers"
"""Keeps a deleted Fleet until its servers are drained and stopped."""
_APPLIED = "Applied"


def applied_condition(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the condition that says whether a generation was applied; empty before there is one."""
    return next((c for c in status.get("conditions") or () if c.get("type") == _APPLIED), {})


class FleetObject:
    """One fleet's object in the namespace; `leader` is the pod that writes its status."""

    def __init__(self, api: ClusterApi, fleet: str, leader: str) -> None:
        self._api = api
        self._fleet = fleet
        self._leader = leader
        self._metadata: Mapping[str, Any] = {}

    def read(self) -> WantedFleet | None:
        """Return what is wanted now; None where there is no such object. Raises EngineError."""
        found = self._api.get(FLEET, self._fleet)
        if found is None:
            return None
        self._metadata = found["metadata"]
        spec, status = found.get("spec") or {}, found.get("status") or {}
        applied = applied_condition(status).get("status") == "True"
        return WantedFleet(
            plan=spec.get("plan") or {},
            allow_violations=bool(spec.get("allowViolations")),
            generation=int(self._metadata.get("generation") or 0),
            ending="deletionTimestamp" in self._metadata,
            applied=status.get("plan") if applied else None,
            devices=status.get("devices") or {},
        )

    def hold(self) -> None:
        """Keep the object, once it is deleted, until `release`."""
        held = list(self._metadata.get("finalizers") or ())
        if FINALIZER not in held:
            self._finalize([*held, FINALIZER])

    def release(self) -> None:
        """Let the API server remove the object."""
        held = list(self._metadata.get("finalizers") or ())
        self._finalize([name for name in held if name != FINALIZER])

    def report(self, report: FleetReport) -> None:
        """Write the status."""
        condition = {
            "type": _APPLIED,
            "status": "True" if report.applied else "False",
            "reason": report.reason,
            "message": report.message,
            "observedGeneration": report.generation,
            "lastTransitionTime": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        status: dict[str, Any] = {
            "observedGeneration": report.generation,
            "leader": self._leader,
            "conditions": [condition],
        }
        if report.applied:
            status |= {"plan": report.plan, "partitions": report.partitions, "devices": report.devices}
        self._api.merge(FLEET.Status, self._fleet, {"status": status})

    def _finalize(self, finalizers: list[str]) -> None:
        # With the version that was read: another program's finalizer is not lost.
        version = self._metadata.get("resourceVersion")
        change = {"metadata": {"finalizers": finalizers, "resourceVersion": version}}
        self._api.merge(FLEET, self._fleet, change)
