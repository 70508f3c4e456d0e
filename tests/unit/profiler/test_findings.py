"""What the points of a profile say: threads that waste a quota, and how well a session repeats."""

from dataclasses import replace

import pytest

from controlplane.domain.device import ShareKind
from controlplane.domain.profile import Environment, Measurement, Profile, Repeat, RequestSet
from controlplane.profiler.findings import MOST_REPEATS, spinning, with_repeats

Row = tuple[float, int, float, float, float | None]
Rows = tuple[Row, ...]

ALEXNET_ONE: Rows = (
    (20, 1, 25.73, 37.6, 1.0),
    (20, 8, 59.81, 134.3, 1.0),
    (100, 1, 4.45, 220.8, 0.12),
    (100, 8, 12.33, 641.3, 0.17),
)
ORIENTATION_ONE: Rows = (
    (20, 1, 15.41, 62.9, 1.0),
    (20, 6, 53.26, 106.9, 1.0),
    (20, 16, 130.52, 116.4, 1.0),
    (100, 1, 1.55, 608.3, 0.02),
    (100, 6, 7.95, 707.2, 0.15),
    (100, 16, 22.36, 690.9, 0.18),
)
"""One thread that never spins. The second takes 1.5 ms, so the way through the server counts."""
ALEXNET: Rows = (
    (20, 1, 74.9, 11.2, 1.0),
    (20, 8, 151.16, 52.8, 1.0),
    (100, 1, 9.7, 113.8, 1.0),
    (100, 8, 18.25, 394.5, 0.99),
)
RESNET: Rows = (
    (20, 1, 71.5, 13.8, 1.0),
    (20, 8, 230.37, 30.8, 1.0),
    (100, 1, 5.25, 188.4, 1.0),
    (100, 8, 28.6, 285.0, 1.0),
)
TRANSFORMER: Rows = (
    (20, 1, 55.5, 14.8, 1.0),
    (20, 8, 181.45, 43.1, 1.0),
    (100, 1, 4.3, 220.5, 1.0),
    (100, 8, 20.39, 371.9, 1.0),
)
"""The sample models on onnxruntime's default threads."""


def profile(rows: Rows, kind: ShareKind = ShareKind.CPU_QUOTA) -> Profile:
    points = tuple(Measurement(p, b, ms, capacity_rps=rate, throttled=part) for p, b, ms, rate, part in rows)
    return Profile("m", "cpu", kind, Environment(), points)


@pytest.mark.parametrize("rows", [ALEXNET, RESNET, TRANSFORMER])
def test_threads_that_spin_are_found(rows: Rows) -> None:
    found = spinning(profile(rows))
    assert found is not None
    assert (found.percent, found.of_percent) == (20, 100)
    assert found.cost > 1.7
    assert found.slowdown > 7


@pytest.mark.parametrize("rows", [ALEXNET_ONE, ORIENTATION_ONE])
def test_one_thread_that_never_spins_is_not(rows: Rows) -> None:
    assert spinning(profile(rows)) is None


def test_where_throttling_is_unknown_the_cost_decides() -> None:
    unknown = tuple((*row[:4], None) for row in TRANSFORMER)
    assert spinning(profile(unknown)) is not None


def test_the_slowdown_is_the_worst_of_all_batches() -> None:
    found = spinning(profile(TRANSFORMER))
    assert found is not None
    assert found.slowdown == pytest.approx(55.5 / 4.3)
    assert found.cost == pytest.approx(2.27, abs=0.01)


def test_shares_that_cannot_be_compared_say_nothing() -> None:
    assert spinning(profile(ALEXNET, ShareKind.MPS_PERCENT)) is None
    assert spinning(profile(ALEXNET[:2])) is None
    assert spinning(profile((ALEXNET[0], ALEXNET[3]))) is None


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
