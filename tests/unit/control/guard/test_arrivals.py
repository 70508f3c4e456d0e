"""The dispersion of arrivals: of Poisson streams, of clumps, of rates that rise."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.control.guard import late_answers
from controlplane.control.guard.promise import Promise
from controlplane.domain.observation import Answer

RATE_RPS = 20.0
PROMISE = Promise("w", 500.0, RATE_RPS, utilisation=0.5)


def seen(due_s: list[float]) -> float:
    found = late_answers.scan_arrivals(late_answers.Arrivals(), due_s, late_answers.window_s(RATE_RPS, 0.5))
    return late_answers.dispersion(found)


def clumped(arrived: int, size: int, seed: int = 1) -> list[float]:
    """Clumps of one size at Poisson times: their dispersion is their size."""
    chance = random.Random(seed)
    at = accumulate(chance.expovariate(RATE_RPS / size) for _ in range(arrived // size))
    return [second for second in at for _ in range(size)]


def test_clumps_are_known_by_their_size() -> None:
    assert seen(clumped(20_000, 1)) < 1.15
    assert seen(clumped(20_000, 4)) == pytest.approx(4.0, rel=0.15)


def test_a_rate_that_rises_over_minutes_is_no_dispersion() -> None:
    chance, due, at = random.Random(1), [], 0.0
    while at < 1000.0:
        at += chance.expovariate(RATE_RPS * (1.0 + at / 500.0))
        due.append(at)
    assert seen(due) < 1.3


def test_a_pause_is_no_dispersion() -> None:
    due = clumped(2000, 1)
    assert seen([*due, *(due[-1] + 500.0 + at for at in due)]) < 1.4


def test_few_arrivals_say_little() -> None:
    assert seen([]) == 1.0
    assert seen(clumped(40, 4)) < 2.0


@settings(deadline=None)
@given(st.lists(st.floats(0.0, 100.0), max_size=300).map(sorted))
def test_dispersion_stays_in_its_range(due_s: list[float]) -> None:
    assert 1.0 <= seen(due_s) <= late_answers.LARGEST_DISPERSION


def test_clumps_of_late_answers_are_no_slow_server() -> None:
    """Sixty late answers in a row break no promise where arrivals come in fours, and do where they do not."""
    broken = {}
    for size in (1, 4):
        due = clumped(8000, size)
        usual = [Answer(at + 0.02, 20.0, False, "w", "s") for at in due]
        late = [Answer(due[-1] + 1.0 + 0.02 * i, 600.0, False, "w", "s") for i in range(60)]
        evidence = late_answers.count(late_answers.begin(PROMISE), PROMISE, usual)
        _, broken[size] = late_answers.weigh(evidence, PROMISE, late)
    assert broken == {1: True, 4: False}
