"""The plan that runs, whether and how it follows the load, and the thread that applies another one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from controlplane.control.autoscaler.state import LoadLimits
from controlplane.control.converge.devices import map_devices
from controlplane.domain.errors import EngineError, TrisectError
from controlplane.domain.observation import Event
from controlplane.domain.plan import Plan
from controlplane.files.fleets import FleetFiles
from controlplane.files.following import Following
from controlplane.files.plans import read_plan
from controlplane.runtime.devices import devices_of, host_devices
from controlplane.runtime.fleet.fleet import Fleet
from controlplane.runtime.fleet.preflight import ApplyRequest

NO_SPEC = "no: the plan has no spec (`ctl plan` and `ctl apply` again)"


class Running:
    """What a fleet's files say of its plan, read again where another command wrote."""

    def __init__(self, files: FleetFiles, *, plan_only: bool) -> None:
        self._files = files
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
        return self._plan

    def obstacle(self, plan: Plan) -> str | None:
        """Return why the plan does not follow the load; None where it does."""
        if plan.spec is None:
            return NO_SPEC
        if not self._following.follow and not self._plan_only:
            return "no: it was not asked for (`follow_load` in the spec's section `serve`)"
        return None

    def limits(self) -> LoadLimits:
        """Return the times that decisions keep."""
        return LoadLimits(dwell_s=self._following.dwell_s)

    def gpus(self) -> Mapping[str, tuple[int, int]]:
        """Return by type how many GPUs of this host the plan uses, and how many it leaves free."""
        used = Counter(gpu.type for gpu in self._plan.gpus) if self._plan is not None else Counter[str]()
        return {kind: (count, max(0, self._available.get(kind, 0) - count)) for kind, count in used.items()}


class Applying:
    """Applies the plan of the fleet's proposal in a thread, or only announces it.

    An apply is that of `ctl apply`: the same lock, the same order of steps, and afterwards the loop adopts
    what runs.
    """

    def __init__(self, fleet: Fleet, notice: Callable[[Event], None]) -> None:
        self._fleet = fleet
        self._notice = notice
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="follow")
        self._under_way: Future[None] | None = None

    def begin(self, reason: str, made_from: str) -> None:
        """Apply the proposal for this reason, if the plan with the hash `made_from` still runs."""
        self._event("load", self._fleet.name, reason)
        self._under_way = self._pool.submit(self._apply, made_from)

    def announce(self, reason: str) -> None:
        """Propose the plan for this reason."""
        where, name = self._fleet.files.following.proposal, self._fleet.name
        self._event("would apply", name, f"{reason}; `ctl apply {where} --fleet {name}` accepts")
        self._under_way = Future()
        self._under_way.set_exception(EngineError("it was only proposed"))

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
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _apply(self, made_from: str) -> None:
        files = self._fleet.files
        plan, _ = read_plan(files.following.proposal)
        settings, before = files.settings(), files.plan()
        if settings is None or before is None:
            raise EngineError(f"fleet {files.fleet!r} is gone")
        devices = map_devices(plan, devices_of(self._fleet.launcher))
        settings = replace(settings, devices=devices)
        self._fleet.apply(ApplyRequest(plan, settings, cause="following the load", made_from=made_from))
        used = {gpu.id for gpu in plan.gpus}
        for gpu in before.gpus:
            if gpu.id not in used:
                self._event("free", gpu.id, "no partition of the fleet uses it any more")

    def _event(self, kind: str, subject: str, reason: str) -> None:
        self._notice(Event(self._fleet.clock.wall(), "info", kind, subject, reason))
