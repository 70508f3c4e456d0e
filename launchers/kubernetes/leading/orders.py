"""A Fleet object as a user outside the cluster writes it, and what its controllers report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightkube.resources.core_v1 import Pod

from controlplane.domain.errors import EngineError
from controlplane.domain.wanted import FleetReport
from launchers.kubernetes import names
from launchers.kubernetes.api import ClusterApi, ClusterPlace
from launchers.kubernetes.leading.fleets import FLEET, applied_condition
from launchers.kubernetes.remote import run_in_pod


class FleetOrders:
    """One fleet's object. Raises EngineError, and InputError for a place that is none."""

    def __init__(self, place: ClusterPlace, fleet: str) -> None:
        self._place = place
        self._api = ClusterApi(place)
        self._fleet = fleet

    def controllers(self) -> tuple[str, ...]:
        """Return the pods of the fleet's controllers that run."""
        labels = {names.COMPONENT: "controller", names.FLEET: names.label_value(self._fleet)}
        found = self._api.find(Pod, labels)
        return tuple(
            names.object_of(one) for one in found if one.status is not None and one.status.phase == "Running"
        )

    def plan(self) -> Mapping[str, Any] | None:
        """Return the plan that is wanted now; None where there is no object."""
        found = self._api.get(FLEET, self._fleet)
        return None if found is None else (found.get("spec") or {}).get("plan") or {}

    def put(self, manifest: Mapping[str, Any]) -> int:
        """Make the object as it is here; return its generation, which a change of the plan raises."""
        made = self._api.apply(FLEET(**manifest))
        return int(made["metadata"].get("generation") or 0)

    def report(self) -> FleetReport | None:
        """Return what the controllers reported last."""
        found = self._api.get(FLEET, self._fleet)
        status = (found or {}).get("status") or {}
        condition = applied_condition(status)
        if not condition:
            return None
        return FleetReport(
            generation=int(condition.get("observedGeneration") or 0),
            applied=condition.get("status") == "True",
            reason=str(condition.get("reason", "")),
            message=str(condition.get("message", "")),
            plan=str(status.get("plan", "")),
            partitions=int(status.get("partitions") or 0),
            devices=status.get("devices") or {},
        )

    def delete(self) -> None:
        """Delete the object: its controllers drain and stop the servers, and then let it go."""
        self._api.delete(FLEET, self._fleet)

    def run_by_leader(self, *command: str) -> int:
        """Run a command in the leader's pod, with its output here; return its exit code."""
        found = self._api.get(FLEET, self._fleet)
        leader = ((found or {}).get("status") or {}).get("leader")
        running = self.controllers()
        pod = leader if leader in running else next(iter(running), None)
        if pod is None:
            raise EngineError(
                f"no controller of fleet {self._fleet!r} runs in namespace {self._api.namespace}: `kubectl "
                "get pods --selector app.kubernetes.io/component=controller` says why"
            )
        return run_in_pod(self._place, pod, command)
