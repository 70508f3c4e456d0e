"""Following the load in a running controller: what arrives, decisions, and the plans that follow."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from controlplane.control.autoscaler.decisions import Forecast, forecast, tick
from controlplane.control.autoscaler.rates import KEPT, is_bursty
from controlplane.control.autoscaler.state import (
    Apply,
    Effect,
    FollowedWorkload,
    Kind,
    LoadSeen,
    LoadState,
    PerWorkload,
    Proposal,
    Propose,
    begin,
    followed_workloads,
    resumed,
)
from controlplane.control.guard.effects import Learn, Report
from controlplane.domain.device import Stock
from controlplane.domain.errors import EngineError, InputError, LogOnce, TrisectError
from controlplane.domain.observation import Answer, Event, RateSeen
from controlplane.domain.plan import Plan
from controlplane.files.fleets import FleetFiles
from controlplane.files.following import RatesSeen, write_rates
from controlplane.files.following.load_state import read_load, write_load
from controlplane.files.plans import plan_hash
from controlplane.runtime.autoscaler.running import NO_SPEC, Applying, InCluster, Running
from controlplane.runtime.autoscaler.search import Begin, Search, SearchProcess
from controlplane.runtime.fleet.fleet import Fleet

_TICK_S = 1.0
_SAVE_S = 5.0
_SAVE_PART = 0.005
"""The part of a core that saving may take: what is known of a thousand workloads is saved less often."""
_PAUSE_S = 30.0
"""Load control rests so long after an unexpected error, and after a search that failed."""
_REPEAT_S = 600.0
"""The same error is reported again after this time."""


_LOG_S = 0.5
"""So long a line of the log may take."""
_RECENT_S = 5.0
_LONGEST_S = 10.0
"""A second does not wait longer: what arrived in it and ends later counts in the next one."""

Counts = Mapping[str, int]
"""Requests by endpoint."""


class Arrivals:
    """Arrivals by second, from requests that have ended; times are those of the monotonic clock.

    A request counts in the second of its arrival. A second is complete once the requests that arrived in it
    have had the longest latency seen lately. So an overload shows its full rate, later, and not what the
    servers can answer.
    """

    def __init__(self, now_s: float) -> None:
        self._next = math.floor(now_s)
        self._counts: dict[int, dict[str, int]] = {}
        self._longest_ms: dict[int, float] = {}

    def add(self, answers: Iterable[Answer]) -> None:
        """Count requests that ended."""
        for answer in answers:
            second = max(math.floor(answer.ended_s - answer.latency_ms / 1000.0), self._next)
            counts = self._counts.setdefault(second, {})
            counts[answer.endpoint] = counts.get(answer.endpoint, 0) + 1
            ended = math.floor(answer.ended_s)
            self._longest_ms[ended] = max(self._longest_ms.get(ended, 0.0), answer.latency_ms)

    def complete(self, now_s: float, heard_since_s: float) -> list[Counts | None]:
        """Return the seconds that are complete now and were not before; None for one that was not seen whole.

        From `heard_since_s` on no request is missing.
        """
        self._longest_ms = {s: ms for s, ms in self._longest_ms.items() if s > now_s - _RECENT_S}
        late_s = min(max(self._longest_ms.values(), default=0.0) / 1000.0 + _LOG_S, _LONGEST_S)
        found: list[Counts | None] = []
        while self._next + 1.0 + late_s <= now_s:
            counts = self._counts.pop(self._next, {})
            found.append(counts if self._next >= heard_since_s else None)
            self._next += 1
        return found


class Autoscaler:
    """Follows the load of one fleet, or with `plan_only` only proposes plans.

    An unexpected error, a defect of load control, must not end the guard, which runs in the same loop: it is
    reported, and after a pause load control begins anew, since what it remembered may be the cause.
    """

    def __init__(
        self,
        fleet: Fleet,
        notice: Callable[[Event], None],
        *,
        plan_only: bool,
        search: Begin = SearchProcess,
        cluster: InCluster | None = None,
    ) -> None:
        now_s = fleet.clock.monotonic()
        self._fleet = fleet
        self._notice = notice
        self._plan_only = plan_only
        self._begin_search = search
        self._running = Running(fleet.files, cluster, plan_only=plan_only)
        self._cluster = cluster
        self._arrivals = Arrivals(now_s)
        self._applying = Applying(fleet, notice, cluster)
        self._errors: tuple[Learn, ...] = ()
        self._search: Search | None = None
        self._ready: Search | None = None
        self._proposal: Proposal | None = None
        self._asked_s = now_s
        self._state: LoadState | None = None
        # A plan's hash and workloads, computed once for it.
        self._followed: tuple[Plan, str, tuple[FollowedWorkload, ...]] | None = None
        self._stock = Stock({})
        self._ticked_s = now_s
        self._save_at_s = now_s + _SAVE_S
        self._recalls = not plan_only
        self._rests_until_s = 0.0
        self._reported = LogOnce(_REPEAT_S)

    @property
    def seen(self) -> tuple[LoadState, Forecast] | None:
        """What is known about the load; None before the first look."""
        state = self._state
        return None if state is None else (state, forecast(state))

    @property
    def gpus(self) -> Mapping[str, tuple[int, int]]:
        """GPUs by type: how many the plan uses, and how many it leaves free."""
        return self._running.gpus()

    def hear(self, answers: Iterable[Answer]) -> None:
        """Count requests that ended."""
        self._arrivals.add(answers)

    def learn(self, effects: Iterable[object]) -> None:
        """Take the errors of execution times among what the guard has decided."""
        self._errors += tuple(effect for effect in effects if isinstance(effect, Learn))

    def step(self, heard_since_s: float) -> None:
        """Look and decide, once a second and at once where a search has ended.

        Raises EngineError, InputError for broken files.
        """
        now_s = self._fleet.clock.monotonic()
        if self._search is not None and self._proposal is None:
            self._proposal = self._search.answer()
        due = self._proposal is not None or now_s - self._ticked_s >= _TICK_S
        if not due or now_s < self._rests_until_s:
            return
        self._ticked_s = now_s
        if self._cluster is not None:
            heard_since_s = max(heard_since_s, self._cluster.heard_since_s)
        try:
            self._follow(now_s, heard_since_s)
        except TrisectError:
            raise
        except Exception as error:
            self._rest(now_s, error)

    def close(self) -> None:
        """End what plans; a plan that is being applied is completed by the next apply."""
        self._drop_search()
        self._drop_prepared()
        self._applying.close()

    def _follow(self, now_s: float, heard_since_s: float) -> None:
        plan = self._running.plan()
        if plan is None:
            return
        if self._followed is None or self._followed[0] is not plan:
            self._followed = plan, plan_hash(plan), followed_workloads(plan)
        wall_s, (_, running, workloads) = self._fleet.clock.wall(), self._followed
        seconds = self._arrivals.complete(now_s, heard_since_s)
        arrivals: list[PerWorkload | None] = [
            None if counts is None else tuple(float(counts.get(w.endpoint, 0)) for w in workloads)
            for counts in seconds
        ]
        proposal, self._proposal = self._proposal, None
        if proposal is not None:
            self._search = None
            if proposal.kind is Kind.FAILED:  # the next one may fail at once too
                self._rests_until_s = now_s + _PAUSE_S
        applied, failed = self._applying.outcome()
        obstacle = self._running.obstacle(plan)
        if obstacle is not None:
            self._drop_prepared()
        if self._errors and plan.spec is None:
            why = NO_SPEC.removeprefix("no: ")
            self._event("warning", "load", f"no plan with the learned times can be proposed: {why}")
            self._errors = ()
        seen = LoadSeen(wall_s, tuple(arrivals), workloads, proposal, applied, failed, running, self._errors)
        state = self._state
        if state is None:  # that of the controller before, else a new one
            known = _recalled(self._fleet.files, wall_s) if self._recalls else None
            state = known or begin(workloads, self._running.limits(), wall_s)
        state = self._with_room(replace(state, limits=self._running.limits()))
        self._state, effects = tick(state, seen, follow=obstacle is None)
        if self._state.under_way is None:
            self._drop_search()
        for effect in effects:
            self._carry_out(effect, self._state, only_propose=self._plan_only or obstacle is not None)
        if obstacle is None and self._ready is None and self._search is None:
            self._ready = self._begin_search(self._fleet.name)
        if not self._plan_only and now_s >= self._save_at_s:
            began_s = time.thread_time()
            _save(self._fleet.files, self._state, following=obstacle or "yes")
            self._save_at_s = now_s + max(_SAVE_S, (time.thread_time() - began_s) / _SAVE_PART)

    def _with_room(self, state: LoadState) -> LoadState:
        """Return the state once more devices are there, or may come: what no plan held may be held by now."""
        before, self._stock = self._stock, self._running.stock(grows=self._applying.may_grow)
        more = any(count > before.counts.get(kind, 0) for kind, count in self._stock.counts.items())
        if more or (self._stock.grows and not before.grows):
            return replace(state, unheld_rps=(0.0,) * len(state.workloads))
        return state

    def _carry_out(self, effect: Effect, state: LoadState, *, only_propose: bool) -> None:
        match effect:
            case Propose():
                # Two searches would write one proposal.
                self._drop_search()
                if self._ready is None or self._ready.ended():
                    self._drop_prepared()
                    self._ready = self._begin_search(self._fleet.name)
                self._search, self._ready = self._ready, None
                self._search.ask(effect, state, self._stock)
                self._asked_s = self._fleet.clock.monotonic()
                self._errors = () if effect.errors else self._errors
            case Apply(_, reason, _, breaks) if only_propose:
                self._applying.announce(reason, breaks=breaks)
            case Apply(_, reason, made_from, breaks):
                took_s = self._fleet.clock.monotonic() - self._asked_s
                self._applying.begin(f"{reason}; found in {took_s:.1f} s", made_from, breaks=breaks)
            case Report(level, subject, reason):
                self._event(level, subject, reason)

    def _rest(self, now_s: float, error: Exception) -> None:
        """Report an unexpected error, the same one once in a while, and pause."""
        self._drop_search()
        self._state, self._recalls, self._rests_until_s = None, False, now_s + _PAUSE_S
        reason = f"{type(error).__name__}: {error}"
        if self._reported.is_new(reason, reason, now_s):
            self._event(
                "error",
                "load",
                f"load control met an unexpected error, pauses for {_PAUSE_S:g} s and begins anew; the plan "
                f"stays and the guard goes on: {reason}",
            )

    def _drop_search(self) -> None:
        if self._search is not None:
            self._search.close()
            self._search = self._proposal = None

    def _drop_prepared(self) -> None:
        if self._ready is not None:
            self._ready.close()
            self._ready = None

    def _event(self, level: str, subject: str, reason: str) -> None:
        self._notice(Event(self._fleet.clock.wall(), level, "load", subject, reason))


def _save(files: FleetFiles, state: LoadState, *, following: str) -> None:
    """Write the state and the rates; where the disk refuses, the next controller begins anew."""
    found, bursty = forecast(state), is_bursty(state.seconds).tolist()
    rates = tuple(
        RateSeen(
            w.name,
            w.planned_rps,
            _finite(found.level[i]),
            _finite(found.lower[i]),
            _finite(found.upper[i]),
            float(state.seconds.dispersion[i]),
            bursty[i],
            float(found.bursts[i]),
        )
        for i, w in enumerate(state.workloads)
    )
    with contextlib.suppress(EngineError):
        write_load(files.load, state)
        write_rates(files.rates, RatesSeen(state.now_s, following, rates))


def _recalled(files: FleetFiles, wall_s: float) -> LoadState | None:
    """Return the state that the controller before left, with the time since as unseen; None without one."""
    with contextlib.suppress(InputError):  # of another version: the load is learned anew
        state = read_load(files.load)
        if state is not None:
            unseen = min(max(int(wall_s - state.now_s), 0), KEPT)
            seen = LoadSeen(wall_s, (None,) * unseen, state.workloads, plan_hash=state.plan_hash)
            return tick(resumed(state), seen, follow=False)[0]
    return None


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
