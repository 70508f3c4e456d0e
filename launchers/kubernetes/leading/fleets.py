"""The custom resource `Fleet` (trisect.dev/v1alpha1): the plan that is wanted, and what became of it.

What is too large for its status is in ConfigMaps, with a compressed document each.
"""

from __future__ import annotations

import base64
import datetime
import gzip
import json
import threading
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from lightkube.generic_resource import create_namespaced_resource
from lightkube.models.core_v1 import ObjectReference
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, Pod
from lightkube.resources.core_v1 import Event as ObjectEvent
from lightkube.types import PatchType

from controlplane.domain.errors import EngineError, InputError
from controlplane.domain.fleet import Cluster
from controlplane.domain.observation import Event, FleetReport, FleetStanding, Guarding, WantedFleet
from launchers.kubernetes import names
from launchers.kubernetes.api import ClusterApi
from launchers.kubernetes.leading.remote import run_in_pod

FLEET: Any = create_namespaced_resource(names.DOMAIN, "v1alpha1", "Fleet", "fleets")
FINALIZER = f"{names.DOMAIN}/servers"
"""Keeps a deleted Fleet until its servers are drained and stopped."""
API_VERSION = f"{names.DOMAIN}/v1alpha1"
_APPLIED = "Applied"
_LONGEST_NOTE = 1024
"""The API server's limit for the text of an event."""
_FOLLOWED = "following"
"""The plan by which a leader follows the load, and the generation that it follows."""
_PROFILES = "profiles"
"""The profiles with which it plans."""
_CONTENT = "content.json.gz"
_LARGEST = 1 << 20
"""The API server's limit."""


def applied_condition(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the condition that says whether a generation was applied; empty before there is one."""
    return next((c for c in status.get("conditions") or () if c.get("type") == _APPLIED), {})


class FleetObject:
    """One fleet's object in the namespace; `leader` is the pod that writes it. Any thread may call."""

    def __init__(self, api: ClusterApi, fleet: str, leader: str) -> None:
        self._api = api
        self._fleet = fleet
        self._leader = leader
        self._metadata: Mapping[str, Any] = {}
        self._conditions: dict[str, Mapping[str, Any]] = {}
        self._devices: Mapping[str, str] = {}
        self._lock = threading.Lock()

    def read(self) -> WantedFleet | None:
        """Return what is wanted now; None where there is no such object. Raises EngineError."""
        found = self._api.get(FLEET, self._fleet)
        if found is None:
            return None
        self._metadata = found["metadata"]
        spec, status = found.get("spec") or {}, found.get("status") or {}
        with self._lock:
            self._conditions = {one["type"]: one for one in status.get("conditions") or ()}
            self._devices = status.get("devices") or {}
        applied = applied_condition(status).get("status") == "True"
        return WantedFleet(
            plan=spec.get("plan") or {},
            allow_violations=bool(spec.get("allowViolations")),
            generation=self._generation,
            ending="deletionTimestamp" in self._metadata,
            applied=status.get("plan") if applied else None,
            guarding=_guarding(status.get("guarding") or ()),
            devices=status.get("devices") or {},
            redirects=int(status.get("redirects") or 0),
        )

    def hold(self) -> None:
        """Keep the object, once it is deleted, until `release`."""
        held = list(self._metadata.get("finalizers") or ())
        if FINALIZER not in held:
            self._finalize([*held, FINALIZER])

    def release(self) -> None:
        """Let the API server remove the object."""
        _forget(self._api, self._fleet, _FOLLOWED, _PROFILES)
        held = list(self._metadata.get("finalizers") or ())
        self._finalize([name for name in held if name != FINALIZER])

    def begin(self, generation: int) -> None:
        """Say that a generation is being applied."""
        message = f"generation {generation} is being applied"
        self._write({"Progressing": (True, "Applying", message)}, generation)

    def report(self, report: FleetReport) -> None:
        """Say what became of a generation."""
        conditions = {
            _APPLIED: (report.applied, report.reason, report.message),
            "Progressing": (False, report.reason, report.message),
        }
        status: dict[str, Any] = {"observedGeneration": report.generation, "leader": self._leader}
        if report.applied:
            # A merge removes what is null.
            devices = {**dict.fromkeys(self._devices), **report.devices}
            status |= {"plan": report.plan, "partitions": report.partitions, "devices": devices}
        self._write(conditions, report.generation, **status)
        if report.applied:
            self._devices = report.devices

    def show(self, standing: FleetStanding) -> None:
        """Say how the fleet stands."""
        ready, partitions = standing.ready, standing.partitions
        trouble = standing.trouble or "AsPlanned"
        served = f"{ready} of {partitions} partitions are served"
        conditions = {
            "Ready": (ready == partitions, "Serving" if ready == partitions else trouble, served),
            "Degraded": (standing.trouble is not None, trouble, standing.message),
        }
        self._write(
            conditions,
            self._generation,
            ready=f"{ready}/{partitions}",
            gpus=standing.gpus,
            redirects=standing.redirects,
            covers=f"{standing.covers:.2f}x",
        )

    def degrade(self, reason: str, message: str) -> None:
        """Say what keeps the fleet's controller from its work."""
        self._write({"Degraded": (True, reason, message)}, self._generation)

    def announce(self, event: Event) -> None:
        """Write an event about the object."""
        at = datetime.datetime.fromtimestamp(event.at_s, datetime.UTC)
        about = ObjectReference(
            apiVersion=API_VERSION,
            kind="Fleet",
            name=self._fleet,
            namespace=self._api.namespace,
            uid=self._metadata.get("uid"),
        )
        self._api.create(
            ObjectEvent(
                involvedObject=about,
                metadata=ObjectMeta(generateName=f"{self._fleet}."),
                type="Normal" if event.level == "info" else "Warning",
                reason="".join(word.capitalize() for word in event.kind.split()),
                message=f"{event.subject}: {event.reason}"[:_LONGEST_NOTE],
                count=1,
                firstTimestamp=at,
                lastTimestamp=at,
                reportingComponent=names.MANAGER,
                reportingInstance=self._leader,
            )
        )

    def remember(self, guarding: Sequence[Guarding]) -> None:
        """Keep this in the status for the next leader."""
        self._write({}, 0, guarding=[asdict(one) for one in guarding])

    def follow(self, plan: Mapping[str, Any] | None, generation: int) -> None:
        """Keep the plan by which this generation follows the load for the next leader; None: no longer."""
        if plan is None:
            _forget(self._api, self._fleet, _FOLLOWED)
        else:
            _keep(self._api, self._fleet, _FOLLOWED, {"generation": generation, "plan": plan})

    def followed(self, generation: int) -> Mapping[str, Any] | None:
        """Return the plan by which a leader followed the load of this generation; None without one."""
        found = _kept(self._api, self._fleet, _FOLLOWED) or {}
        return found.get("plan") if found.get("generation") == generation else None

    def profiles(self) -> Mapping[str, str]:
        """Return the files of profiles that were given with the plan, by their places."""
        return _kept(self._api, self._fleet, _PROFILES) or {}

    @property
    def _generation(self) -> int:
        return int(self._metadata.get("generation") or 0)

    def _write(self, conditions: Mapping[str, tuple[bool, str, str]], generation: int, **status: Any) -> None:
        """Write conditions, beside those that stay, and other fields of the status."""
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        with self._lock:
            for kind, (holds, reason, message) in conditions.items():
                before, said = self._conditions.get(kind, {}), "True" if holds else "False"
                self._conditions[kind] = {
                    "type": kind,
                    "status": said,
                    "reason": reason,
                    "message": message,
                    "observedGeneration": generation,
                    "lastTransitionTime": before["lastTransitionTime"]
                    if before.get("status") == said
                    else now,
                }
            if conditions:
                status["conditions"] = list(self._conditions.values())
            self._api.patch(FLEET.Status, self._fleet, {"status": status}, PatchType.MERGE)

    def _finalize(self, finalizers: list[str]) -> None:
        # With the version that was read: another program's finalizer is not lost.
        version = self._metadata.get("resourceVersion")
        change = {"metadata": {"finalizers": finalizers, "resourceVersion": version}}
        self._api.patch(FLEET, self._fleet, change, PatchType.MERGE)


def _guarding(listed: Iterable[Mapping[str, Any]]) -> tuple[Guarding, ...]:
    """Return what a leader kept; the API server drops nulls, and a newer version may have kept more."""
    known = {one.name for one in fields(Guarding)}
    nothing = {"standby": None, "retry_at_s": None}
    found = ({key: kept for key, kept in one.items() if key in known} for one in listed)
    return tuple(Guarding(**{**nothing, **one}) for one in found)


class FleetOrders:
    """One fleet's object. Raises EngineError, and InputError for a place that is none."""

    def __init__(self, cluster: Cluster, fleet: str) -> None:
        self._cluster = cluster
        self._api = ClusterApi(cluster)
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

    def put_profiles(self, profiles: Mapping[str, str]) -> None:
        """Give the controllers the profiles with which they plan for other rates."""
        _keep(self._api, self._fleet, _PROFILES, dict(profiles))

    def report(self) -> FleetReport | None:
        """Return what the controllers reported last."""
        status = self._status()
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
        leader, running = self._status().get("leader"), self.controllers()
        pod = leader if leader in running else next(iter(running), None)
        if pod is None:
            raise EngineError(
                f"no controller of fleet {self._fleet!r} runs in namespace {self._api.namespace}: `kubectl "
                "get pods --selector app.kubernetes.io/component=controller` says why"
            )
        return run_in_pod(self._cluster, pod, command)

    def _status(self) -> Mapping[str, Any]:
        return (self._api.get(FLEET, self._fleet) or {}).get("status") or {}


CONTROL_PORT = 8003
_ENDED = ("Succeeded", "Failed")


class GatewayPods:
    """The gateway's pods of one fleet. `refresh` asks the API server, `addresses` never waits for it."""

    def __init__(self, api: ClusterApi, fleet: str) -> None:
        self._api = api
        self._labels = {names.COMPONENT: "gateway", names.FLEET: names.label_value(fleet)}
        self._seen: tuple[str, ...] = ()

    def refresh(self) -> None:
        """Read the pods anew. Raises EngineError; what was seen before stays."""
        found = self._api.find(Pod, self._labels)
        # A pod that has ended keeps its address.
        running = (one.status for one in found if one.status and one.status.phase not in _ENDED)
        self._seen = tuple(f"{status.podIP}:{CONTROL_PORT}" for status in running if status.podIP)

    def addresses(self) -> tuple[str, ...]:
        """Return the control ports of all replicas, ready or not."""
        return self._seen


def _keep(api: ClusterApi, fleet: str, what: str, document: Any) -> None:
    """Replace one of a fleet's documents. Raises EngineError, and InputError for one that is too large."""
    packed = base64.b64encode(gzip.compress(json.dumps(document).encode(), mtime=0)).decode()
    if len(packed) > _LARGEST:
        raise InputError(f"{len(packed)} bytes are more than a ConfigMap holds ({_LARGEST})", field=what)
    labels = {**names.fleet_labels(fleet), names.COMPONENT: what}
    metadata = ObjectMeta(name=names.object_name(fleet, what), labels=labels)
    api.apply(ConfigMap(metadata=metadata, binaryData={_CONTENT: packed}))


def _kept(api: ClusterApi, fleet: str, what: str) -> Any:
    """Return one of a fleet's documents; None where there is none.

    Raises EngineError, and InputError for one that another program changed.
    """
    name = names.object_name(fleet, what)
    found = api.get(ConfigMap, name)
    packed = ((found.binaryData if found is not None else None) or {}).get(_CONTENT)
    if packed is None:
        return None
    try:
        document = json.loads(gzip.decompress(base64.b64decode(packed)))
    except (ValueError, EOFError, OSError, zlib.error) as error:
        raise InputError(f"cannot be read: {error}", file=f"ConfigMap {name}", field=_CONTENT) from error
    if not isinstance(document, dict):
        raise InputError("is no JSON object", file=f"ConfigMap {name}", field=_CONTENT)
    return document


def _forget(api: ClusterApi, fleet: str, *which: str) -> None:
    """Remove documents of a fleet. Raises EngineError."""
    for what in which:
        api.delete(ConfigMap, names.object_name(fleet, what))
