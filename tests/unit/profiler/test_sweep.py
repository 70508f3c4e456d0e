from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.device import CPU_GRID, MPS_GRID
from controlplane.domain.errors import InputError
from controlplane.profiler.sweep import (
    Point,
    Trust,
    chosen_points,
    default_batches,
    default_points,
    needed_s,
    point_seconds,
)

pytestmark = pytest.mark.unit


def test_the_eleven_points_of_a_model_with_batches_to_32() -> None:
    assert default_points(CPU_GRID, 32) == (
        *(Point(20, b) for b in (1, 3, 10, 32)),
        *(Point(60, b) for b in (1, 3, 10, 32)),
        *(Point(100, b) for b in (1, 10, 32)),
    )
    assert {p.percent for p in default_points(MPS_GRID, 32)} == {10, 55, 100}


@given(st.integers(0, 128), st.sampled_from([CPU_GRID, MPS_GRID]))
def test_any_model_gets_enough_points_on_the_grid_with_both_ends(max_batch: int, grid: object) -> None:
    points = default_points(grid, max_batch)  # type: ignore[arg-type]
    assert 6 <= len(points) <= 11
    assert len(set(points)) == len(points)
    assert {p.percent for p in points} <= set(grid.percents())  # type: ignore[attr-defined]
    largest = max(1, max_batch)
    assert {(100, 1), (100, largest)} <= {(p.percent, p.batch) for p in points}
    assert all(1 <= p.batch <= largest for p in points)
    assert list(default_batches(max_batch)) == sorted(set(default_batches(max_batch)))


def test_what_a_user_names_is_measured_in_every_combination() -> None:
    assert chosen_points(CPU_GRID, 8, [100, 50], [4, 1]) == (
        Point(50, 1),
        Point(50, 4),
        Point(100, 1),
        Point(100, 4),
    )
    assert {p.batch for p in chosen_points(CPU_GRID, 8, [50], None)} == set(default_batches(8))
    assert {p.percent for p in chosen_points(CPU_GRID, 8, None, [2])} == {20, 60, 100}


@pytest.mark.parametrize(
    ("percents", "batches", "field"),
    [([33], None, "--percents"), (None, [0], "--batches"), (None, [9], "--batches")],
)
def test_what_cannot_be_measured_is_refused(
    percents: list[float] | None, batches: list[int] | None, field: str
) -> None:
    with pytest.raises(InputError) as caught:
        chosen_points(CPU_GRID, 8, percents, batches)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("trust", "again"),
    [
        (Trust(1.0, 1.0), False),
        (Trust(None, 1.0), False),
        (Trust(0.8, 1.0), True),
        (Trust(1.0, 0.5), True),
    ],
)
def test_a_point_is_measured_again_where_it_was_starved_or_its_batch_did_not_form(
    trust: Trust, again: bool
) -> None:
    assert trust.disturbed is again


def test_of_several_attempts_the_best_fed_one_counts() -> None:
    attempts = [Trust(0.7, 1.0), Trust(0.85, 1.0), Trust(0.9, 0.5)]
    assert max(attempts, key=lambda t: t.order) == Trust(0.85, 1.0)


@given(st.floats(1, 1000), st.integers(1, 40), st.integers(1, 10))
def test_watching_the_points_keeps_to_the_budget(budget_s: float, points: int, starts: int) -> None:
    seconds = point_seconds(budget_s, points, starts)
    assert 0.3 <= seconds <= 3.0
    if seconds > 0.3:
        assert needed_s(points, starts, seconds) <= budget_s * (1 + 1e-9)
