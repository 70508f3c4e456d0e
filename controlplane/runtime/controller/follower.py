"""Load control in a running controller: what arrives, decisions, and the plans that follow from them.

Planning runs in a process, an apply in a thread, so that the guard's loop waits for neither. An apply is that
of `ctl apply`: the same lock, the same order of steps, and afterwards the loop adopts what runs.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from controlplane.control.load.decisions import Forecast, forecast, tick
from controlplane.control.load.rates import KEPT, is_bursty
from controlplane.control.load.state import (
    Apply,
    Effect,
    Kind,
    LoadLimits,
    LoadSeen,
    LoadState,
    PerWorkload,
    Proposal,
    Propose,
    Report,
    Unheld,
    begin,
    followed_workloads,
    resumed,
)
from controlplane.domain.errors import EngineError, InputError, TrisectError
from controlplane.domain.observation import Answer, RateSeen
from controlplane.domain.plan import Plan
from controlplane.files.following.kept import Following
from controlplane.files.following.rates import RatesSeen, write_rates
from controlplane.files.following.state import read_load, write_load
from controlplane.files.plans import read_plan
from controlplane.runtime.controller.actor import Notice
from controlplane.runtime.controller.arrivals import Arrivals
from controlplane.runtime.devices import host_devices
from controlplane.runtime.fleet.fleet import Fleet, map_devices
from controlplane.runtime.fleet.history import Event

_TICK_S = 1.0
_SAVE_S = 5.0
_PLANNING_S = 120.0


class Follower:
    """Follows the load of one fleet, or with `plan_only` only proposes plans."""

    def __init__(self, fleet: Fleet, notice: Notice, *, plan_only: bool) -> None:
        self._fleet = fleet
        self._notice = notice
        self._plan_only = plan_only
        self._arrivals = Arrivals(fleet.clock.monotonic())
        self._state: LoadState | None = None
        self._following: Following | None = None
        self._plan: Plan | None = None
        self._read_s: tuple[float, float | None] | None = None
        self._available: Mapping[str, int] = {}
        self._planning: _Planning | None = None
        self._applying: Future[None] | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="follow")
        self._ticked_s = self._saved_s = fleet.clock.monotonic()

    @property
    def seen(self) -> tuple[LoadState, Forecast] | None:
        """What is known about the load; None before the first look."""
        state = self._state
        return None if state is None else (state, forecast(state))

    @property
    def gpus(self) -> Mapping[str, tuple[int, int]]:
        """GPUs of this host by type: how many the plan uses, and how many it leaves free."""
        used = Counter(gpu.type for gpu in self._plan.gpus) if self._plan is not None else Counter[str]()
        return {kind: (count, max(0, self._available.get(kind, 0) - count)) for kind, count in used.items()}

    def hear(self, answers: Iterable[Answer]) -> None:
        """Count requests that ended."""
        self._arrivals.add(answers)

    def step(self, heard_since_s: float) -> None:
        """Look and decide, once a second. Raises EngineError, InputError for broken files."""
        now_s = self._fleet.clock.monotonic()
        if now_s - self._ticked_s < _TICK_S:
            return
        self._ticked_s = now_s
        plan = self._running_plan()
        if plan is None:
            return
        wall_s, workloads = self._fleet.clock.wall(), followed_workloads(plan)
        state = self._state or self._first_state(plan, wall_s)
        seconds = self._arrivals.complete(now_s, heard_since_s)
        arrivals: list[PerWorkload | None] = [
            None if counts is None else tuple(float(counts.get(w.endpoint, 0)) for w in workloads)
            for counts in seconds
        ]
        applied, failed = self._outcome()
        seen = LoadSeen(wall_s, tuple(arrivals), workloads, self._proposal(), applied, failed)
        state = replace(state, limits=self._limits())
        self._state, effects = tick(state, seen, follow=self._obstacle(plan) is None)
        for effect in effects:
            self._carry_out(effect)
        if not self._plan_only and now_s - self._saved_s >= _SAVE_S:
            self._saved_s = now_s
            self._save(plan, self._state)

    def _save(self, plan: Plan, state: LoadState) -> None:
        """Write what the next controller and other commands read; without it they begin anew."""
        files, found = self._fleet.files, forecast(state)
        bursty = is_bursty(state.seconds).tolist()
        rates = tuple(
            RateSeen(
                w.name,
                w.planned_rps,
                _finite(found.level[i]),
                _finite(found.lower[i]),
                _finite(found.upper[i]),
                float(state.seconds.dispersion[i]),
                bursty[i],
            )
            for i, w in enumerate(state.workloads)
        )
        with contextlib.suppress(EngineError):
            write_load(files.load, state)
            write_rates(files.rates, RatesSeen(state.now_s, self._obstacle(plan) or "yes", rates))

    def close(self) -> None:
        """End what plans; a plan that is being applied is completed by the next apply."""
        if self._planning is not None:
            self._planning.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _first_state(self, plan: Plan, wall_s: float) -> LoadState:
        """The state that the controller before left, with the time since as unseen; else a new one."""
        state = None
        if not self._plan_only:
            with contextlib.suppress(InputError):  # of another version: the load is learned anew
                state = read_load(self._fleet.files.load)
        if state is None:
            return begin(followed_workloads(plan), LoadLimits(), wall_s)
        unseen = min(max(int(wall_s - state.now_s), 0), KEPT)
        return tick(resumed(state), LoadSeen(wall_s, (None,) * unseen, state.workloads), follow=False)[0]

    def _running_plan(self) -> Plan | None:
        """The plan that runs, read again where another one was applied."""
        files = self._fleet.files
        planned_s = files.planned_s()
        if planned_s is None:
            return None
        if self._read_s != (read_s := (planned_s, files.following.changed_s())):
            self._plan, self._following, self._read_s = files.plan(), files.following.settings(), read_s
            self._available = {kind: len(devices) for kind, devices in host_devices().items()}
        return self._plan

    def _obstacle(self, plan: Plan) -> str | None:
        """Why the plan does not follow the load; None where it does."""
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

    def _limits(self) -> LoadLimits:
        following = self._following
        return LoadLimits() if following is None else LoadLimits(dwell_s=following.dwell_s)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Propose():
                self._planning = _Planning(self._fleet.name, effect, self._state)
            case Apply(_, reason) if self._plan_only:
                where = self._fleet.files.following.proposal
                self._event("info", "would apply", self._fleet.name, f"{reason}; `ctl apply {where}` accepts")
                self._applying = _ended(EngineError("it was only proposed"))
            case Apply(_, reason):
                self._event("info", "load", self._fleet.name, reason)
                self._applying = self._pool.submit(self._apply)
            case Report(level, subject, reason):
                self._event(level, "load", subject, reason)

    def _apply(self) -> None:
        files = self._fleet.files
        plan, _ = read_plan(files.following.proposal)
        settings, before = files.settings(), files.plan()
        if settings is None or before is None:
            raise EngineError(f"fleet {files.fleet!r} is gone")
        devices = map_devices(plan, host_devices())
        self._fleet.apply(plan, replace(settings, devices=devices), cause="following the load")
        used = {gpu.id for gpu in plan.gpus}
        for gpu in before.gpus:
            if gpu.id not in used:
                self._event("info", "free", gpu.id, "no partition of the fleet uses it any more")

    def _proposal(self) -> Proposal | None:
        """The answer of the planning process, once it has ended."""
        if self._planning is None:
            return None
        proposal = self._planning.answer()
        if proposal is not None:
            self._planning = None
        return proposal

    def _outcome(self) -> tuple[bool, str | None]:
        """Whether the plan under way was applied, and why it was not; neither while it is being applied."""
        if self._applying is None or not self._applying.done():
            return False, None
        error, self._applying = self._applying.exception(), None
        if error is None:
            return True, None
        return False, str(error) if isinstance(error, TrisectError) else repr(error)

    def _event(self, level: str, kind: str, subject: str, reason: str) -> None:
        self._notice(Event(self._fleet.clock.wall(), level, kind, subject, reason))


class _Planning:
    """A process that looks for a plan."""

    def __init__(self, fleet: str, asked: Propose, state: LoadState | None) -> None:
        assert state is not None
        self._number = asked.number
        names = [w.name for w in state.workloads]
        question = {
            "direction": asked.direction.value,
            "rates_rps": dict(zip(names, asked.rates_rps, strict=True)),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "controlplane.runtime.jobs.propose", fleet],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            text=True,
        )
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(question))
            self._process.stdin.close()

    def answer(self) -> Proposal | None:
        """The proposal; None while the process runs."""
        if self._process.poll() is None:
            return None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        text, problem = self._process.stdout.read(), self._process.stderr.read()
        self.close()
        try:
            parsed: dict[str, Any] = json.loads(text)
        except json.JSONDecodeError:
            last = (problem.strip().splitlines() or [f"exit {self._process.returncode}"])[-1]
            return Proposal(self._number, Kind.NONE, summary=f"planning failed: {last}")
        if parsed["kind"] == Kind.NONE:
            return Proposal(self._number, Kind.NONE, summary=parsed["summary"])
        return Proposal(
            self._number,
            Kind(parsed["kind"]),
            tuple(parsed["rates_rps"]),
            parsed["cost_before"],
            parsed["cost_after"],
            parsed["moved_cost"],
            tuple(Unheld(**one) for one in parsed["unheld"]),
            parsed["summary"],
        )

    def close(self) -> None:
        """End the process, if it runs still."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _ended(error: Exception) -> Future[None]:
    future: Future[None] = Future()
    future.set_exception(error)
    return future
