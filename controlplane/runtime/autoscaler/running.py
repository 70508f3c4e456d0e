"""The plan that runs, whether and how it follows the load, and the thread that applies another one."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Protocol

from controlplane.control.autoscaler.state import LoadLimits
from controlplane.control.converge.devices import map_devices, missing_gpus, packed_devices
from controlplane.domain.device import CPU_DEVICE, Stock
from controlplane.domain.errors import EngineError, NotNow, TrisectError, Troubles
from controlplane.domain.observation import Event
from controlplane.domain.plan import Plan, PlannedGpu
from controlplane.files.fleets import FleetFiles
from controlplane.files.following import Following
from controlplane.files.plans import plan_hash, read_plan
from controlplane.runtime.devices import devices_of, host_devices
from controlplane.runtime.fleet.fleet import Fleet
from controlplane.runtime.fleet.preflight import ApplyRequest

NO_SPEC = "no: the plan has no spec (`ctl plan` and `ctl apply` again)"
NODES_S = 300.0
"""How long pods may wait for a node; a cloud takes two to four minutes for one."""
AGAIN_S = 1800.0
"""So long no further node is asked for after none came."""
_POLL_S = 2.0


class InCluster(Protocol):
    """What following the load needs of a cluster whose controllers keep the fleet. Raises EngineError."""

    @property
    def heard_since_s(self) -> float:
        """The time (monotonic) since which no request of any replica of the gateway is missing."""

    @property
    def counts(self) -> Mapping[str, int]:
        """How many devices of each type the spec allowed at the last look, which this does not wait for."""

    def apply(self, request: ApplyRequest) -> None:
        """Apply a plan, so that the next leader goes on with it."""

    def ask_for(self, gpus: Sequence[PlannedGpu]) -> None:
        """Have pods wait for devices that are not there, and no others; none: no longer."""


class Running:
    """What a fleet's files say of its plan, read again where another command wrote."""

    def __init__(self, files: FleetFiles, cluster: InCluster | None, *, plan_only: bool) -> None:
        self._files = files
        self._cluster = cluster
        self._plan_only = plan_only
        self._read_s: tuple[float, float | None] | None = None
        self._plan: Plan | None = None
        self._following = Following()
        self._available: Mapping[str, int] = {}

    def plan(self) -> Plan | None:
        """Return the plan that runs; None where there is none. Raises InputError for broken files."""
        planned_s = self._files.planned_s()
        if planned_s is None:
            return None
        if self._read_s != (read_s := (planned_s, self._files.following.changed_s())):
            self._plan, self._following = self._files.plan(), self._files.following.settings()
            self._available = {kind: len(devices) for kind, devices in host_devices().items()}
            self._read_s = read_s
        if self._cluster is not None:
            self._available = self._cluster.counts
        return self._plan

    def obstacle(self, plan: Plan) -> str | None:
        """Return why the plan does not follow the load; None where it does."""
        if plan.spec is None:
            return NO_SPEC
        if self._cluster is not None and not self._available:
            return "no: the devices of the cluster are not counted yet"
        if not self._following.follow and not self._plan_only:
            return "no: it was not asked for (`follow_load` in the spec's section `serve`)"
        return None

    def limits(self) -> LoadLimits:
        """Return the times that decisions keep."""
        return LoadLimits(dwell_s=self._following.dwell_s)

    def stock(self, *, grows: bool) -> Stock:
        """Return what another plan may use; of a host's cores one stays free."""
        if self._cluster is not None:
            return Stock(self._available, grows)
        kept = 0 if self._following.all_cores else 1
        return Stock({k: n - kept * (k == CPU_DEVICE) for k, n in self._available.items()})

    def gpus(self) -> Mapping[str, tuple[int, int]]:
        """Return by type how many GPUs the plan uses, and how many it leaves free."""
        used = Counter(gpu.type for gpu in self._plan.gpus) if self._plan is not None else Counter[str]()
        return {kind: (count, max(0, self._available.get(kind, 0) - count)) for kind, count in used.items()}


class Applying:
    """Applies the plan of the fleet's proposal in a thread, or only announces it.

    An apply is that of `ctl apply`: the same lock, the same order of steps, and afterwards the loop adopts
    what runs.
    """

    def __init__(self, fleet: Fleet, notice: Callable[[Event], None], cluster: InCluster | None) -> None:
        self._fleet = fleet
        self._notice = notice
        self._cluster = cluster
        self._closing = threading.Event()
        self._asks_again_s = -math.inf
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="follow")
        self._under_way: Future[None] | None = None

    def begin(self, reason: str, made_from: str, *, breaks: bool) -> None:
        """Apply the proposal for this reason, if the plan with the hash `made_from` still runs.

        A cluster's object takes no plan that `breaks` promises unless a person allows it.
        """
        if self._cluster is not None and breaks:
            self.announce(reason, breaks=breaks)
            return
        self._event("load", self._fleet.name, reason)
        self._under_way = self._pool.submit(self._apply, made_from)

    def announce(self, reason: str, *, breaks: bool) -> None:
        """Propose the plan for this reason."""
        where, name = self._fleet.files.following.proposal, self._fleet.name
        allow = " --allow violations" if breaks else ""
        self._event("would apply", name, f"{reason}; `ctl apply {where} --fleet {name}{allow}` accepts")
        self._under_way = Future()
        self._under_way.set_exception(EngineError("it was only proposed"))

    @property
    def may_grow(self) -> bool:
        """Whether pods may wait for nodes: not for a while after none came."""
        return time.monotonic() >= self._asks_again_s

    def outcome(self) -> tuple[bool, str | None]:
        """Return whether the plan was applied, and why it was not; neither while it is being applied."""
        if self._under_way is None or not self._under_way.done():
            return False, None
        error, self._under_way = self._under_way.exception(), None
        if error is None:
            return True, None
        return False, str(error) if isinstance(error, TrisectError) else repr(error)

    def wait(self) -> None:
        """Wait for the end of an apply that is under way."""
        if self._under_way is not None:
            self._under_way.exception()

    def close(self) -> None:
        """Take no more plans; one that is being applied is completed by the next apply."""
        self._closing.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _apply(self, made_from: str) -> None:
        files = self._fleet.files
        plan, _ = read_plan(files.following.proposal)
        settings, before = files.settings(), files.plan()
        if settings is None or before is None:
            raise EngineError(f"fleet {files.fleet!r} is gone")
        if self._cluster is not None:
            plan = self._with_room(plan, self._cluster, made_from)
        available = devices_of(self._fleet.launcher)
        mapped = packed_devices if len(plan.gpus) < len(before.gpus) else map_devices
        settings = replace(settings, devices=mapped(plan, available, settings.devices))
        request = ApplyRequest(plan, settings, cause="following the load", made_from=made_from)
        if self._cluster is None:
            self._fleet.apply(request)
        else:
            self._apply_in_cluster(self._cluster, request)
        used = {gpu.id for gpu in plan.gpus}
        for gpu in before.gpus:
            if gpu.id not in used:
                self._event("free", gpu.id, "no partition of the fleet uses it any more")

    def _apply_in_cluster(self, cluster: InCluster, request: ApplyRequest) -> None:
        """Apply a plan; an API server that is away for a while is waited for."""
        ends_s = time.monotonic() + NODES_S
        while True:
            try:
                return cluster.apply(request)
            except NotNow:
                if time.monotonic() > ends_s or self._closing.wait(_POLL_S):
                    raise

    def _with_room(self, plan: Plan, cluster: InCluster, made_from: str) -> Plan:
        """Return the plan once its devices are there; after a while the one for those that are."""
        missing = self._missing(plan)
        if missing and self.may_grow:
            missing = self._awaited(plan, missing, cluster, made_from)
        if not missing:
            return plan
        where = self._fleet.files.following.without_more
        why = f"no node came within {NODES_S:g} s"
        if not where.exists():
            raise EngineError(f"{why}, and the devices that are there hold no more")
        self._event("nodes", self._fleet.name, f"{why}: planned for the devices that are there", "warning")
        return read_plan(where)[0]

    def _awaited(
        self, plan: Plan, missing: tuple[PlannedGpu, ...], cluster: InCluster, made_from: str
    ) -> tuple[PlannedGpu, ...]:
        """Have pods wait for devices; return what is missing after a while.

        Raises EngineError where this controller ends, or another plan runs than `made_from`.
        """
        name, ids = self._fleet.name, ", ".join(gpu.id for gpu in missing)
        self._event("nodes", name, f"pods wait for nodes: {ids} are not there")
        troubles = Troubles(lambda problem: self._event("nodes", name, problem, "warning"))
        ends_s = time.monotonic() + NODES_S
        try:
            while missing and time.monotonic() < ends_s:
                running = self._fleet.files.plan()
                if running is None or plan_hash(running) != made_from:
                    raise EngineError("another plan runs by now, so no pod waits for a node any more")
                try:  # the API server may be away for a while
                    cluster.ask_for(missing)
                    missing = self._missing(plan)
                except EngineError as error:
                    troubles.met(error)
                if self._closing.wait(_POLL_S if missing else 0.0):
                    raise EngineError("the controller ends while pods wait for nodes")
        finally:
            try:
                cluster.ask_for(())
            except EngineError as error:
                troubles.met(error)
        if missing:
            self._asks_again_s = time.monotonic() + AGAIN_S
        return missing

    def _missing(self, plan: Plan) -> tuple[PlannedGpu, ...]:
        return missing_gpus(plan, devices_of(self._fleet.launcher))

    def _event(self, kind: str, subject: str, reason: str, level: str = "info") -> None:
        self._notice(Event(self._fleet.clock.wall(), level, kind, subject, reason))
