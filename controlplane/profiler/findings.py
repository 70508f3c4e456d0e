"""What the points of a profile say: threads that waste a CPU quota, and how well a session repeats. Pure.

Under a CPU quota a saturated server gets its share of processor time, so an inference costs
percent / 100 / capacity of it, which is about the same at each share. If threads spin while they wait, or if
there are more threads than cores, the cost grows as the share shrinks, because the quota runs out while they
wait for each other. They also exhaust a whole core's quota, which a single working thread hardly does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import fmean

from controlplane.domain.device import ShareKind
from controlplane.domain.profile import Measurement, Profile, Repeat

_COST = 1.59
_THROTTLED = 0.54
"""Geometric means between measured groups (docs/results/real-models.md). Models on one thread that never
spins
cost 1.06 to 1.45 and were throttled in 12 to 30 % of a whole core's periods; models on onnxruntime's default
threads cost 1.74 to 2.27, throttled in 99 % and more. Short requests raise the cost alone."""


@dataclass(frozen=True, slots=True)
class Spinning:
    """An inference's processor time at the smallest share, divided by that at the largest share.

    `cost` is the geometric mean over the batches measured at both. `slowdown` is the largest ratio of a
    batch's execution times; without waste it is `of_percent` / `percent`.
    """

    percent: float
    of_percent: float
    cost: float
    slowdown: float


def spinning(profile: Profile) -> Spinning | None:
    """Return the waste of a model's threads; None without waste, or without two shares to compare."""
    percents = sorted({p.percent for p in profile.points})
    if profile.share_kind is not ShareKind.CPU_QUOTA or len(percents) < 2:
        return None
    low, high = percents[0], percents[-1]
    at = {(p.percent, p.batch): p for p in profile.points if p.capacity_rps}
    pairs = [(at[low, b], at[high, b]) for percent, b in at if percent == low and (high, b) in at]
    if not pairs:
        return None
    cost = math.exp(fmean(math.log(_cost_s(few) / _cost_s(many)) for few, many in pairs))
    throttled = [many.throttled for _, many in pairs if many.throttled is not None]
    if cost < _COST or (throttled and fmean(throttled) < _THROTTLED):
        return None
    return Spinning(low, high, cost, max(few.execution_ms / many.execution_ms for few, many in pairs))


def _cost_s(point: Measurement) -> float:
    """Return the processor time of one inference in a saturated partition."""
    assert point.capacity_rps is not None
    return point.percent / 100.0 / point.capacity_rps


MOST_REPEATS = 110
"""Kept of a model, the newest: ten sessions of eleven points."""


def with_repeats(now: Profile, before: Profile | None) -> Profile:
    """The new profile with its points beside those of the former one, and the repeats that it had.

    Sessions are comparable with the same requests and server options on the same host, GPU, driver and
    backend: where one changed, none is kept. A point that is the former one, of a measurement that went on,
    is no repeat.
    """
    if before is None or _setting(before) != _setting(now):
        return now
    first = {(p.percent, p.batch, p.concurrency): p.execution_ms for p in before.points}
    repeats = [
        Repeat(p.percent, p.batch, first[key], p.execution_ms)
        for p in now.points
        if (key := (p.percent, p.batch, p.concurrency)) in first and p not in before.points
    ]
    return replace(now, repeats=(*before.repeats, *repeats)[-MOST_REPEATS:])


def _setting(profile: Profile) -> tuple[object, ...]:
    told = profile.environment
    place = told.host, told.gpu, told.driver, told.backend
    return *place, profile.max_batch, profile.inputs, profile.options
