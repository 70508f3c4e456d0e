"""Points measured in two sessions: what measuring a model again says of its repeatability. Pure."""

from __future__ import annotations

from dataclasses import replace

from controlplane.domain.profile import Profile, Repeat

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
