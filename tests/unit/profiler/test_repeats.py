from __future__ import annotations

from dataclasses import replace

from controlplane.domain.device import ShareKind
from controlplane.domain.profile import Environment, Measurement, Profile, Repeat, RequestSet
from controlplane.profiler.findings import MOST_REPEATS, with_repeats

FIRST = Profile(
    "m",
    "cpu",
    ShareKind.CPU_QUOTA,
    Environment(host="h", backend="b"),
    (
        Measurement(percent=20.0, batch=1, execution_ms=5.0),
        Measurement(percent=40.0, batch=1, execution_ms=3.0),
    ),
)
SECOND = replace(
    FIRST,
    points=(
        Measurement(percent=20.0, batch=1, execution_ms=6.0),
        Measurement(percent=60.0, batch=1, execution_ms=2.0),
    ),
)


def test_points_of_both_sessions_become_repeats() -> None:
    assert with_repeats(SECOND, FIRST).repeats == (Repeat(20.0, 1, 5.0, 6.0),)


def test_earlier_repeats_are_kept_up_to_a_number() -> None:
    profile = FIRST
    for session in range(MOST_REPEATS):
        again = tuple(replace(p, n=1 + session) for p in FIRST.points)
        profile = with_repeats(replace(FIRST, points=again), profile)
    assert len(profile.repeats) == MOST_REPEATS


def test_a_point_of_a_measurement_that_went_on_is_no_repeat() -> None:
    more = replace(FIRST, points=(*FIRST.points, Measurement(60.0, 1, 2.0)))
    assert with_repeats(more, FIRST).repeats == ()


def test_a_first_profile_and_one_of_another_host_or_of_other_requests_have_none() -> None:
    elsewhere = replace(FIRST, environment=Environment(host="other", backend="b"))
    otherwise = replace(FIRST, inputs=RequestSet(3, "0" * 64))
    for before in (None, elsewhere, otherwise):
        assert with_repeats(SECOND, before).repeats == ()
