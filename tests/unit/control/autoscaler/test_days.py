"""The profile of a day."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.control.autoscaler.days import PARTS, Days

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
