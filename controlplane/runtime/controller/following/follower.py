"""Load control in a running controller: what arrives, decisions, and the plans that follow from them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

from controlplane.control.load.decisions import Forecast, forecast, tick
from controlplane.control.load.state import (
    Apply,
    Effect,
    FollowedWorkload,
    LoadSeen,
    LoadState,
    PerWorkload,
    Propose,
    Report,
    begin,
    followed_workloads,
)
from controlplane.domain.errors import TrisectError
from controlplane.domain.observation import Answer
from controlplane.domain.plan import Plan
from controlplane.files.plans import plan_hash
from controlplane.runtime.controller.actor import Notice
from controlplane.runtime.controller.following import memory
from controlplane.runtime.controller.following.applying import Applying
from controlplane.runtime.controller.following.arrivals import Arrivals
from controlplane.runtime.controller.following.planning import Planner, Planning, PlanningProcess
from controlplane.runtime.controller.following.running import Running
from controlplane.runtime.fleet.fleet import Fleet
from controlplane.runtime.fleet.history import Event

_TICK_S = 1.0
_SAVE_S = 5.0
_SAVE_PART = 0.005
"""The part of a core that saving may take: what is known of a thousand workloads is saved less often."""
_PAUSE_S = 30.0
"""Load control rests so long after an unexpected error."""
_REPEAT_S = 600.0
"""The same error is reported again after this time."""


class Follower:
    """Follows the load of one fleet, or with `plan_only` only proposes plans.

    An unexpected error, a defect of load control, must not end the guard, which runs in the same loop: it is
    reported, and after a pause load control begins anew, since what it remembered may be the cause.
    """

    def __init__(
        self, fleet: Fleet, notice: Notice, *, plan_only: bool, planner: Planner = PlanningProcess
    ) -> None:
        now_s = fleet.clock.monotonic()
        self._fleet = fleet
        self._notice = notice
        self._plan_only = plan_only
        self._planner = planner
        self._running = Running(fleet.files, plan_only=plan_only)
        self._arrivals = Arrivals(now_s)
        self._applying = Applying(fleet, notice, plan_only=plan_only)
        self._planning: Planning | None = None
        self._state: LoadState | None = None
        self._followed: tuple[Plan, str, tuple[FollowedWorkload, ...]] | None = None
        self._ticked_s = now_s
        self._save_at_s = now_s + _SAVE_S
        self._recalls = not plan_only
        self._rests_until_s = 0.0
        self._reported_s: dict[str, float] = {}

    @property
    def seen(self) -> tuple[LoadState, Forecast] | None:
        """What is known about the load; None before the first look."""
        state = self._state
        return None if state is None else (state, forecast(state))

    @property
    def gpus(self) -> Mapping[str, tuple[int, int]]:
        """GPUs of this host by type: how many the plan uses, and how many it leaves free."""
        return self._running.gpus()

    def hear(self, answers: Iterable[Answer]) -> None:
        """Count requests that ended."""
        self._arrivals.add(answers)

    def step(self, heard_since_s: float) -> None:
        """Look and decide, once a second. Raises EngineError, InputError for broken files."""
        now_s = self._fleet.clock.monotonic()
        if now_s - self._ticked_s < _TICK_S or now_s < self._rests_until_s:
            return
        self._ticked_s = now_s
        try:
            self._follow(now_s, heard_since_s)
        except TrisectError:
            raise
        except Exception as error:
            self._rest(now_s, error)

    def close(self) -> None:
        """End what plans; a plan that is being applied is completed by the next apply."""
        self._drop_planning()
        self._applying.close()

    def _follow(self, now_s: float, heard_since_s: float) -> None:
        plan = self._running.plan()
        if plan is None:
            return
        wall_s, (running, workloads) = self._fleet.clock.wall(), self._identity(plan)
        seconds = self._arrivals.complete(now_s, heard_since_s)
        arrivals: list[PerWorkload | None] = [
            None if counts is None else tuple(float(counts.get(w.endpoint, 0)) for w in workloads)
            for counts in seconds
        ]
        proposal = None if self._planning is None else self._planning.answer()
        if proposal is not None:
            self._planning = None
        applied, failed = self._applying.outcome()
        seen = LoadSeen(wall_s, tuple(arrivals), workloads, proposal, applied, failed, running)
        state = replace(self._state or self._first_state(plan, wall_s), limits=self._running.limits())
        obstacle = self._running.obstacle(plan)
        self._state, effects = tick(state, seen, follow=obstacle is None)
        if self._state.under_way is None:
            self._drop_planning()
        for effect in effects:
            self._carry_out(effect, self._state)
        if not self._plan_only and now_s >= self._save_at_s:
            began_s = time.thread_time()
            memory.save(self._fleet.files, self._state, following=obstacle or "yes")
            self._save_at_s = now_s + max(_SAVE_S, (time.thread_time() - began_s) / _SAVE_PART)

    def _identity(self, plan: Plan) -> tuple[str, tuple[FollowedWorkload, ...]]:
        """Return the plan's hash and its workloads, computed once for a plan."""
        if self._followed is None or self._followed[0] is not plan:
            self._followed = plan, plan_hash(plan), followed_workloads(plan)
        return self._followed[1:]

    def _first_state(self, plan: Plan, wall_s: float) -> LoadState:
        """The state that the controller before left, else a new one."""
        known = memory.recall(self._fleet.files, wall_s) if self._recalls else None
        return known or begin(followed_workloads(plan), self._running.limits(), wall_s)

    def _carry_out(self, effect: Effect, state: LoadState) -> None:
        match effect:
            case Propose():
                # Two searches would write one proposal.
                self._drop_planning()
                self._planning = self._planner(self._fleet.name, effect, state)
            case Apply(_, reason, made_from):
                self._applying.begin(reason, made_from)
            case Report(level, subject, reason):
                self._event(level, subject, reason)

    def _rest(self, now_s: float, error: Exception) -> None:
        """Report an unexpected error, the same one once in a while, and pause."""
        self._drop_planning()
        self._state, self._recalls, self._rests_until_s = None, False, now_s + _PAUSE_S
        reason = f"{type(error).__name__}: {error}"
        if now_s - self._reported_s.get(reason, -_REPEAT_S) >= _REPEAT_S:
            self._reported_s[reason] = now_s
            self._event(
                "error",
                "load",
                f"load control met an unexpected error, pauses for {_PAUSE_S:g} s and begins anew; the plan "
                f"stays and the guard goes on: {reason}",
            )

    def _drop_planning(self) -> None:
        if self._planning is not None:
            self._planning.close()
            self._planning = None

    def _event(self, level: str, subject: str, reason: str) -> None:
        self._notice(Event(self._fleet.clock.wall(), level, "load", subject, reason))
