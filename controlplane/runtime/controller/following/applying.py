"""The thread that applies a proposed plan, so that the guard's loop does not wait for it.

An apply is that of `ctl apply`: the same lock, the same order of steps, and afterwards the loop adopts what
runs.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from controlplane.control.converge.devices import map_devices
from controlplane.domain.errors import EngineError, TrisectError
from controlplane.files.plans import read_plan
from controlplane.runtime.controller.actor import Notice
from controlplane.runtime.devices import devices_of
from controlplane.runtime.fleet.fleet import Fleet
from controlplane.runtime.fleet.history import Event


class Applying:
    """Applies the plan of the fleet's proposal, or with `plan_only` only announces it."""

    def __init__(self, fleet: Fleet, notice: Notice, *, plan_only: bool) -> None:
        self._fleet = fleet
        self._notice = notice
        self._plan_only = plan_only
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="follow")
        self._under_way: Future[None] | None = None

    def begin(self, reason: str, made_from: str) -> None:
        """Apply the proposal for this reason, if the plan with the hash `made_from` still runs."""
        if self._plan_only:
            where = self._fleet.files.following.proposal
            self._event("would apply", self._fleet.name, f"{reason}; `ctl apply {where}` accepts")
            self._under_way = Future()
            self._under_way.set_exception(EngineError("it was only proposed"))
        else:
            self._event("load", self._fleet.name, reason)
            self._under_way = self._pool.submit(self._apply, made_from)

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
        self._fleet.apply(
            plan, replace(settings, devices=devices), cause="following the load", made_from=made_from
        )
        used = {gpu.id for gpu in plan.gpus}
        for gpu in before.gpus:
            if gpu.id not in used:
                self._event("free", gpu.id, "no partition of the fleet uses it any more")

    def _event(self, kind: str, subject: str, reason: str) -> None:
        self._notice(Event(self._fleet.clock.wall(), "info", kind, subject, reason))
