"""Decide when the plan of a fleet changes with its load. Pure.

`tick(state, seen)` returns the next state and the effects. A proposal is asked for with `Propose`, and its
answer comes with a later observation. Five rules:

* more is planned for once the lower bound of a forecast is above what the plan is for; the new plan is for
  the upper bound, so that noise around a threshold moves a fleet at most once;
* an increase takes from no workload what the plan before was for;
* a cheaper plan is for the highest forecast of the whole dwell, which one moment of doubt starts anew;
* a plan is made anew for the same rates where the execution times that were learned differ from its own, and
  at once where the guard found such an error, also without `follow`: then it is only proposed;
* between two changes lies the settling time, unless more arrives already than is planned for, and before a
  decrease the dwell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from controlplane.control.autoscaler.rates import FloatArray, bursts, estimate
from controlplane.control.autoscaler.state import (
    PEAKS,
    Apply,
    Direction,
    Effect,
    Kind,
    LoadSeen,
    LoadState,
    PerWorkload,
    Propose,
    with_plan,
)
from controlplane.control.guard.effects import Report
from controlplane.domain.observation import Level

_MINUTE = 60
_SEEN_OF_MINUTE = 30
"""Seconds of a minute that must have been seen for it to count."""
_NAMED = 3
_TRIES = 4
"""Searches for a cheaper plan in a dwell, at most."""


def tick(state: LoadState, seen: LoadSeen, *, follow: bool = True) -> tuple[LoadState, tuple[Effect, ...]]:
    """The state after an observation, and what is to be done, in this order.

    Without `follow` nothing begins but a plan for errors that the guard found, and what else is under way
    ends, except an apply.
    """
    state = replace(state, now_s=seen.now_s)
    if (seen.plan_hash, seen.workloads) != (state.plan_hash, state.workloads):
        # Another plan, ours or a person's: what was under way was decided for the plan before.
        state = with_plan(state, seen)
    if not follow and not state.applying and not (state.under_way and state.under_way.errors):
        state = replace(state, under_way=None)
    state = _heard(state, seen.arrivals)
    found = forecast(state)
    state = _with_peak(state, found, seen.now_s)
    if seen.failed is not None and state.applying:
        return _given_up(state, seen.now_s, seen.failed)
    if seen.applied and state.applying:
        # The same plan once more; another one is seen by its hash.
        state = replace(state, under_way=None, applying=False, changed_s=seen.now_s)
    state, effects = _decided(state, seen, found, follow=follow)
    if seen.failed is not None:
        # Another plan runs by now: nothing is known against the rates of this one.
        effects = (Report(Level.WARNING, "load", f"the apply failed: {seen.failed}"), *effects)
    return state, effects


def _decided(
    state: LoadState, seen: LoadSeen, found: Forecast, *, follow: bool
) -> tuple[LoadState, tuple[Effect, ...]]:
    if state.under_way is not None:
        return _answered(state, seen) if seen.proposal is not None else (state, ())
    if seen.errors and state.workloads:
        return _correct(state, seen)
    if not follow or not state.workloads:
        return state, ()
    if seen.now_s < state.changed_s + state.limits.settle_s:
        # What surely arrives by now is late until more is planned for; a forecast can wait.
        return _increase(state, found, found.present) or (state, ())
    asked = _increase(state, found, found.sure) or _decrease(state, seen.now_s) or _review(state, seen.now_s)
    return asked or (state, ())


@dataclass(frozen=True, slots=True)
class Forecast:
    """Inferences per second, (workloads,): now, at the horizon, and its bounds; infinite where unknown."""

    level: FloatArray
    expected: FloatArray
    present: FloatArray
    """Surely exceeded now."""
    sure: FloatArray
    """Surely exceeded at the horizon: the lower bound that starts an increase."""
    lower: FloatArray
    upper: FloatArray
    bursts: FloatArray
    """The part of `upper` that holds bursts which the plan's queues do not."""


def forecast(state: LoadState) -> Forecast:
    """The rates at the horizon, by the last seconds; above that by the trend of the minutes and the days.

    Minutes and days look as far ahead as a plan is to last, seconds as far as it takes to change one. Bounds
    include bursts: they are for the rate of a second, `level` and `expected` for the mean.
    """
    limits = state.limits
    near, far = (estimate(state.seconds, limits.horizon_s), estimate(state.minutes, limits.dwell_s))
    upper, later = near.upper(limits.upper_z), far.upper(limits.upper_z)
    # Minutes that do not rise say nothing against the last seconds: they know of a fall two minutes later.
    upper = np.where(far.known & (far.expected > far.level), np.maximum(upper, later), upper)
    upper = np.maximum(upper, state.days.highest(state.now_s, limits.dwell_s, near.upper(limits.upper_z)))
    size = np.array([w.client_batch for w in state.workloads], dtype=np.float64)
    present = estimate(state.seconds, 0.0).lower(limits.trigger_z) * size
    level, expected = (np.where(near.known, rate, np.nan) * size for rate in (near.level, near.expected))
    planned = np.array([w.dispersion for w in state.workloads], dtype=np.float64)
    bounds = (near.lower(limits.trigger_z), near.lower(limits.upper_z), upper)
    margins = [bursts(state.seconds, rate, planned, limits.burst_z) * size for rate in bounds]
    sure, lower, upper = (rate * size + more for rate, more in zip(bounds, margins, strict=True))
    return Forecast(level, expected, present, sure, lower, upper, margins[-1])


def _heard(state: LoadState, arrivals: Sequence[PerWorkload | None]) -> LoadState:
    count = len(state.workloads)
    missing = (float("nan"),) * count
    seconds, minutes, minute, days = state.seconds, state.minutes, state.minute, state.days
    for ago, second in zip(range(len(arrivals) - 1, -1, -1), arrivals, strict=True):
        counts = np.array(missing if second is None else second, dtype=np.float64)
        seconds, days = seconds.after(counts), days.after(counts, state.now_s - ago)
        minute = (*minute, missing if second is None else second)
        if len(minute) == _MINUTE:
            every = np.array(minute).reshape(_MINUTE, count)
            seen = (~np.isnan(every)).sum(axis=0)
            # Completed for the seconds that were not seen; unknown where too many were not.
            total = np.nansum(every, axis=0) * _MINUTE / np.maximum(seen, 1)
            minutes, minute = minutes.after(np.where(seen >= _SEEN_OF_MINUTE, total, np.nan)), ()
    return replace(state, seconds=seconds, minutes=minutes, minute=minute, days=days)


def _with_peak(state: LoadState, found: Forecast, now_s: float) -> LoadState:
    """With the present forecast among the highest of the dwell.

    A part lasts until a look after its end: looks come late, and that ends no dwell. After seconds that were
    not observed the forecast itself is infinite.
    """
    upper, peaks = tuple(found.upper.tolist()), state.peaks_rps
    if not peaks or now_s >= state.part_s + state.limits.dwell_s / PEAKS:
        return replace(state, peaks_rps=(upper, *peaks)[:PEAKS], part_s=now_s)
    return replace(state, peaks_rps=(tuple(map(max, peaks[0], upper)), *peaks[1:]))


def _increase(
    state: LoadState, found: Forecast, sure: FloatArray
) -> tuple[LoadState, tuple[Effect, ...]] | None:
    """Ask for a plan that holds more, where some workload surely needs it."""
    planned = np.array(state.planned_rps)
    above = sure > np.maximum(planned, state.unheld_rps)
    if not above.any():
        return None
    wanted = np.where(np.isfinite(found.upper), np.maximum(planned, found.upper), planned)
    reasons = [
        f"{w.name}: {found.level[i]:.4g}/s arrive, {found.expected[i]:.4g}/s expected "
        f"({found.lower[i]:.4g} to {found.upper[i]:.4g}), {w.planned_rps:.4g}/s planned"
        for i, w in enumerate(state.workloads)
        if above[i]
    ]
    return _ask(state, Direction.UP, wanted, _few(reasons))


def _decrease(state: LoadState, now_s: float) -> tuple[LoadState, tuple[Effect, ...]] | None:
    """Ask for a cheaper plan, where less was forecast throughout the dwell than the plan is for."""
    limits = state.limits
    early = now_s < state.changed_s + limits.dwell_s or len(state.peaks_rps) < PEAKS
    # The first search may still see the end of a higher load.
    if early or now_s < state.tried_s + limits.dwell_s / _TRIES:
        return None
    planned, wanted = np.array(state.planned_rps), _least(state)
    if not (wanted < planned).any():
        return None
    reasons = [
        f"{w.name}: at most {wanted[i]:.4g}/s for {limits.dwell_s:g} s, {w.planned_rps:.4g}/s planned"
        for i, w in enumerate(state.workloads)
        if wanted[i] < planned[i]
    ]
    state = replace(state, tried_s=now_s)
    return _ask(state, Direction.DOWN, wanted, _few(reasons), _move_price(state))


def _review(state: LoadState, now_s: float) -> tuple[LoadState, tuple[Effect, ...]] | None:
    if now_s < state.reviewed_s + state.limits.review_s:
        return None
    state = replace(state, reviewed_s=now_s)
    return _ask(state, Direction.REVIEW, np.array(state.planned_rps), "review of the execution times")


def _correct(state: LoadState, seen: LoadSeen) -> tuple[LoadState, tuple[Effect, ...]]:
    """Ask for a plan with the errors of execution times that the guard found."""
    found = (f"{e.model} takes {e.factor:.2f} times as long as planned on {e.gpu_type}" for e in seen.errors)
    state = replace(state, reviewed_s=seen.now_s)
    state, (ask,) = _ask(state, Direction.REVIEW, np.array(state.planned_rps), "; ".join(found))
    ask = replace(ask, errors=seen.errors)
    return replace(state, under_way=ask), (ask,)


def _move_price(state: LoadState) -> float:
    """What a share that starts anew for a cheaper plan counts, in its cost.

    A plan is expected to last as long as the one before has lasted. A move puts requests at risk, so it
    counts as if its share ran twice for a dwell.
    """
    return state.limits.dwell_s / max(state.now_s - state.changed_s, state.limits.dwell_s)


def _least(state: LoadState) -> FloatArray:
    """The rates that a cheaper plan must be for: the highest forecast of the dwell, at most the plan's.

    An idle workload keeps the rate of one request in a dwell, since a plan serves every workload.
    """
    highest = np.array(state.peaks_rps).max(axis=0)
    sizes = np.array([w.client_batch for w in state.workloads], dtype=np.float64)
    return np.minimum(np.maximum(highest, sizes / state.limits.dwell_s), np.array(state.planned_rps))


def _ask(
    state: LoadState, direction: Direction, wanted: FloatArray, reason: str, move_price: float = 1.0
) -> tuple[LoadState, tuple[Propose]]:
    number = state.number + 1
    ask = Propose(number, direction, tuple(wanted.tolist()), reason, move_price)
    return replace(state, under_way=ask, number=number), (ask,)


def _answered(state: LoadState, seen: LoadSeen) -> tuple[LoadState, tuple[Effect, ...]]:
    asked, proposal = state.under_way, seen.proposal
    assert asked is not None
    assert proposal is not None
    if proposal.number != asked.number or state.applying:
        return state, ()
    reason = f"{asked.reason}: {proposal.summary}"
    told: tuple[Report, ...] = ()
    if proposal.kind is Kind.FAILED:
        return replace(state, under_way=None), (Report(Level.WARNING, "load", reason),)
    if asked.direction is Direction.REVIEW and not asked.errors:  # those are planned with, however small
        looked = proposal.kind is not Kind.NONE or proposal.error is not None
        if looked and (proposal.error is None or proposal.error < state.limits.off):
            return replace(state, under_way=None), ()
    if proposal.kind is Kind.NONE:
        return _given_up(state, seen.now_s, proposal.summary)
    if asked.direction is Direction.DOWN:
        holds = bool((np.array(proposal.rates_rps) >= _least(state)).all())
        saved = proposal.cost_before - proposal.cost_after
        if not holds or saved <= _move_price(state) * proposal.moved_cost:
            return replace(state, under_way=None), ()
    if asked.direction is Direction.UP:
        told = tuple(
            Report(Level.WARNING, u.workload, f"{u.reason}; planned for {u.planned_rps:.4g}/s instead")
            for u in proposal.unheld
        )
        lost = {u.workload for u in proposal.unheld}
        refused = tuple(
            max(known, rate) if w.name in lost else known
            for known, rate, w in zip(state.unheld_rps, asked.rates_rps, state.workloads, strict=True)
        )
        state = replace(state, unheld_rps=refused)
        more = zip(proposal.rates_rps, state.planned_rps, strict=True)
        if not any(rate > planned for rate, planned in more):
            return replace(state, under_way=None), told
    apply = Apply(asked.number, reason, proposal.made_from, proposal.breaks)
    return replace(state, applying=True), (*told, apply)


def _given_up(state: LoadState, now_s: float, reason: str) -> tuple[LoadState, tuple[Effect, ...]]:
    """What was under way is at its end: the same is asked for again only where more is seen."""
    asked = state.under_way
    assert asked is not None
    refused = state.unheld_rps
    if asked.direction is Direction.UP:
        refused = tuple(map(max, refused, asked.rates_rps))
    state = replace(state, under_way=None, applying=False, unheld_rps=refused, changed_s=now_s)
    return state, (Report(Level.WARNING, "load", f"{asked.reason}: {reason}"),)


def _few(reasons: Sequence[str]) -> str:
    more = f"; and {len(reasons) - _NAMED} more workloads" if len(reasons) > _NAMED else ""
    return "; ".join(reasons[:_NAMED]) + more
