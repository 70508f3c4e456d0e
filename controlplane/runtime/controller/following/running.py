"""The plan that runs, and whether and how it follows the load: read again where another command wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from controlplane.control.load.state import LoadLimits
from controlplane.domain.plan import Plan
from controlplane.files.fleets import FleetFiles
from controlplane.files.following.kept import Following
from controlplane.runtime.devices import host_devices


class Running:
    """What a fleet's files say of its plan."""

    def __init__(self, files: FleetFiles, *, plan_only: bool) -> None:
        self._files = files
        self._plan_only = plan_only
        self._read_s: tuple[float, float | None] | None = None
        self._plan: Plan | None = None
        self._following: Following | None = None
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
        following = self._following
        if following is None:
            return "no: the fleet keeps no spec (`ctl apply PLAN --spec SPEC --follow-load`)"
        if following.spec_sha256 != plan.spec_sha256:
            return (
                "no: the plan was made from another spec than the fleet keeps (`ctl apply PLAN --spec SPEC`)"
            )
        if not following.follow and not self._plan_only:
            return "no: it was not asked for (`ctl apply PLAN --follow-load`)"
        return None

    def limits(self) -> LoadLimits:
        """Return the times that decisions keep."""
        return LoadLimits() if self._following is None else LoadLimits(dwell_s=self._following.dwell_s)

    def gpus(self) -> Mapping[str, tuple[int, int]]:
        """Return by type how many GPUs of this host the plan uses, and how many it leaves free."""
        used = Counter(gpu.type for gpu in self._plan.gpus) if self._plan is not None else Counter[str]()
        return {kind: (count, max(0, self._available.get(kind, 0) - count)) for kind, count in used.items()}
