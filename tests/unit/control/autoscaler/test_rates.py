"""Estimates of rates from counts, and the profile of a day."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.control.autoscaler.rates import (
    KEPT,
    PARTS,
    Days,
    FloatArray,
    Rates,
    _cut,
    _learned,
    bursts,
    estimate,
    is_bursty,
)


def after(*counts: float, workloads: int = 1) -> Rates:
    rates = Rates.unknown(workloads, 1.0)
    for count in counts:
        rates = rates.after(np.full(workloads, count))
    return rates


def poisson(rate: float, seconds: int, seed: int = 1) -> FloatArray:
    return np.random.default_rng(seed).poisson(rate, seconds).astype(np.float64)


def test_nothing_is_known_before_the_first_second() -> None:
    found = estimate(after(), 20.0)
    assert not found.known[0]
    assert (found.lower(2.0)[0], found.upper(2.0)[0]) == (0.0, np.inf)


def test_bounds_hold_the_rate_as_often_as_they_say() -> None:
    held = 0
    for seed in range(100):
        found = estimate(after(*poisson(50.0, 40, seed)), 20.0)
        held += bool(found.lower(2.0)[0] <= 50.0 <= found.upper(2.0)[0])
    assert 0.91 <= held / 100 <= 1.0


def test_a_step_is_known_after_four_seconds() -> None:
    rates = after(*poisson(100.0, 100))
    assert rates.stretch[0] == 100
    for count in (200.0, 190.0, 215.0, 195.0):
        assert estimate(rates, 20.0).lower(2.0)[0] < 100.0
        rates = rates.after(np.array([count]))
    found = estimate(rates, 20.0)
    assert rates.stretch[0] == 4
    assert found.level[0] == pytest.approx(200.0)
    assert found.lower(2.0)[0] > 150.0


def test_a_steady_rate_is_cut_less_than_once_an_hour() -> None:
    rates, cuts = Rates.unknown(20, 1.0), 0
    draws = np.random.default_rng(3).poisson(80.0, (1200, 20)).astype(np.float64)
    for counts in draws:
        length = rates.stretch
        rates = rates.after(counts)
        cuts += int((rates.stretch < np.minimum(length + 1, KEPT)).sum())
    assert cuts <= 20 * 1200 / 3600, "in 6.7 hours of workloads"


def test_seconds_that_were_not_seen_are_no_zeros() -> None:
    rates = after(*poisson(100.0, 60), *[np.nan] * 10, *poisson(100.0, 20, 2))
    found = estimate(rates, 20.0)
    assert found.level[0] == pytest.approx(100.0, rel=0.05)


def test_a_silent_monitor_leaves_nothing_known() -> None:
    rates = after(*poisson(100.0, 60), *[np.nan] * 20)
    assert estimate(rates, 20.0).upper(2.0)[0] == np.inf


def test_a_ramp_is_followed_half_as_far_as_it_has_been_seen() -> None:
    rates = after(*(100.0 + 5.0 * t for t in range(12)))
    near, far = (estimate(rates, h) for h in (5.0, 1000.0))
    assert near.expected[0] == pytest.approx(155.0 + 5.0 * 5, rel=0.01)
    assert far.expected[0] == pytest.approx(155.0 + 5.0 * 6, rel=0.01)
    # A line's error: of its mean, 127.5 at an age of 5.5 s, and of its slope 10.5 s later.
    error = math.sqrt(127.5 * (1.0 / 12.0 + 10.5**2 / 143.0))
    assert near.upper(2.0)[0] == pytest.approx(near.expected[0] + 2.0 * error)


def test_a_step_is_rarely_taken_for_the_begin_of_a_ramp() -> None:
    taken = 0
    for seed in range(120):
        random = np.random.default_rng(seed)
        # From 25 to 50 within a second.
        rates = after(*random.poisson(25.0, int(random.integers(8, 30))), *random.poisson(38.0, 1))
        highest = 0.0
        for _ in range(8):
            rates = rates.after(random.poisson(50.0, 1).astype(np.float64))
            highest = max(highest, estimate(rates, 35.0).expected[0])
        taken += highest > 75.0
    assert taken <= 1


def test_noise_is_no_trend() -> None:
    trended = [
        estimate(after(*poisson(50.0, 30, seed)), 20.0).expected[0]
        != estimate(after(*poisson(50.0, 30, seed)), 20.0).level[0]
        for seed in range(50)
    ]
    assert np.mean(trended) < 0.05


def test_bursts_are_told_from_poisson_arrivals() -> None:
    random = np.random.default_rng(5)
    smooth, bursty = Rates.unknown(1, 1.0), Rates.unknown(1, 1.0)
    for _ in range(600):
        smooth = smooth.after(random.poisson(100.0, 1).astype(np.float64))
        bursty = bursty.after(4.0 * random.poisson(25.0, 1))
    assert (is_bursty(smooth)[0], is_bursty(bursty)[0]) == (False, True)
    assert bursty.dispersion[0] == pytest.approx(4.0, rel=0.35)


def test_bursts_are_covered_beyond_what_poisson_arrivals_show() -> None:
    random = np.random.default_rng(6)
    rates = Rates.unknown(2, 1.0)
    for _ in range(600):
        both = random.poisson(100.0), 4.0 * random.poisson(25.0)
        rates = rates.after(np.array(both, dtype=np.float64))
    smooth, bursty = bursts(rates, np.full(2, 100.0), np.ones(2), 2.0)
    # A second of the bursty one has a deviation of 20, one of Poisson arrivals 10, which the queue covers.
    assert (smooth, bursty) == (0.0, pytest.approx(2.0 * np.sqrt(400.0 - 100.0), rel=0.2))


def test_an_idle_workload_has_an_upper_bound() -> None:
    found = estimate(after(*[0.0] * 60), 20.0)
    assert found.level[0] == 0.0
    assert 0.0 < found.upper(2.0)[0] < 0.1


def test_workloads_without_requests_are_computed_in_fewer_steps_and_alike() -> None:
    """Beside one with requests, before their first second, after their last, and with seconds unseen."""
    random = np.random.default_rng(3)
    rates = Rates.unknown(4, 1.0)
    for second in range(3 * KEPT):
        counts = np.array([random.poisson(20.0), 0.0, random.poisson(9.0) if second < KEPT else 0.0, 0.0])
        if second < 3 or second == KEPT:
            counts[3] = np.nan
        grown = np.column_stack([rates.counts[:, 1:], counts])
        stretch = np.where(np.isnan(grown).all(axis=1), 0, np.minimum(rates.stretch + 1, KEPT))
        stretch = _cut(grown, stretch, rates.dispersion)
        dispersion = _learned(grown, stretch, rates.dispersion)
        rates = rates.after(counts)
        assert (rates.stretch == stretch).all()
        assert (rates.dispersion == dispersion).all()


DAY_S = 960.0
PART_S = DAY_S / PARTS


def after_days(*shapes: list[float]) -> Days:
    """Days in which each part has the rate of its shape."""
    days, now_s = Days.unknown(1, DAY_S, 0.0), 0.0
    for shape in shapes:
        for rate in shape:
            for _ in range(int(PART_S)):
                days = days.after(np.array([rate]), now_s)
                now_s += 1.0
    return days.after(np.array([0.0]), now_s)


def curve(high: float = 2.0) -> list[float]:
    return [100.0 * (1.0 + (high - 1.0) * (part >= 40)) for part in range(PARTS)]


def highest(days: Days, now_s: float, ahead_s: float, rate: float = 100.0) -> float:
    (found,) = days.highest(now_s, ahead_s, np.array([rate]))
    return float(found)


def test_a_rise_is_known_on_the_second_day() -> None:
    days = after_days(curve())
    assert highest(days, DAY_S + 30.0 * PART_S, 2.0 * PART_S) == pytest.approx(100.0)
    assert highest(days, DAY_S + 38.0 * PART_S, 4.0 * PART_S) == pytest.approx(200.0)
    assert highest(days, DAY_S + 60.0 * PART_S, 10.0 * PART_S) == pytest.approx(100.0)


def test_a_quieter_day_rises_by_the_factor_and_a_busier_one_by_the_difference() -> None:
    days = after_days(curve())
    assert highest(days, DAY_S + 38.0 * PART_S, 4.0 * PART_S, 10.0) == pytest.approx(20.0)
    assert highest(days, DAY_S + 38.0 * PART_S, 4.0 * PART_S, 500.0) == pytest.approx(600.0)


@pytest.mark.parametrize("rate", [0.0, 0.1, 1.0])
def test_a_workload_that_is_idle_at_night_is_planned_for_before_its_morning(rate: float) -> None:
    days = after_days([100.0 * (part >= 40) for part in range(PARTS)])
    assert highest(days, DAY_S + 30.0 * PART_S, 4.0 * PART_S, rate) == rate
    for part in (38.0, 39.0, 39.9):
        assert highest(days, DAY_S + part * PART_S, 4.0 * PART_S, rate) == pytest.approx(100.0 + rate)


def test_a_crowd_on_one_of_two_days_is_no_profile() -> None:
    crowd = curve()
    crowd[20] = 900.0
    for days in (after_days(crowd, curve()), after_days(curve(), crowd)):
        assert highest(days, 2 * DAY_S + 18 * PART_S, 4 * PART_S) == pytest.approx(100.0)


def test_without_a_day_nothing_rises() -> None:
    assert highest(Days.unknown(1, DAY_S, 5.0), 5.0, 100.0) == 100.0
    assert highest(Days.unknown(1, DAY_S, 5.0), 5.0, 100.0, math.inf) == math.inf


def test_a_part_of_which_half_was_not_seen_is_unknown() -> None:
    days = Days.unknown(1, DAY_S, 0.0)
    for second in range(int(DAY_S) + 1):
        seen = 50.0 if second % int(PART_S) < 4 else math.nan
        days = days.after(np.array([seen]), float(second))
    assert np.isnan(days.rates).all()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(0.0, 1e6), min_size=PARTS, max_size=PARTS),
    st.floats(0.0, 3.0 * DAY_S),
    st.floats(0.0, DAY_S),
    st.floats(0.0, 1e6),
)
def test_a_profile_never_lowers_a_forecast(
    shape: list[float], now_s: float, ahead_s: float, rate: float
) -> None:
    days = after_days(shape)
    assert rate <= highest(days, now_s, ahead_s, rate) <= rate + max(shape) * (1.0 + 1e-9)


def test_workloads_keep_their_days_where_others_come_and_go() -> None:
    days = after_days(curve()).of_workloads([None, 0])
    found = days.highest(DAY_S + 38.0 * PART_S, 4.0 * PART_S, np.array([100.0, 100.0]))
    assert found == pytest.approx([100.0, 200.0])
