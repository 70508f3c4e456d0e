import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.device import CPU_GRID, MPS_GRID, ShareGrid
from controlplane.domain.errors import InputError
from controlplane.domain.profile import ColocationPoint, Measurement, Neighbour
from controlplane.profiler.colocate import merged, middle_batches, tenant_groups
from controlplane.profiler.sweep import (
    FEWEST_BATCHES,
    LEAST_BATCHES,
    Pace,
    Point,
    Trust,
    chosen_points,
    default_batches,
    default_points,
    effort,
    fewer_points,
    fits,
    least_batches,
    needed_s,
    point_seconds,
)


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
    assert chosen_points("m", CPU_GRID, 8, [100, 50], [4, 1]) == (
        Point(50, 1),
        Point(50, 4),
        Point(100, 1),
        Point(100, 4),
    )
    assert {p.batch for p in chosen_points("m", CPU_GRID, 8, [50], None)} == set(default_batches(8))
    assert {p.percent for p in chosen_points("m", CPU_GRID, 8, None, [2])} == {20, 60, 100}


@pytest.mark.parametrize(
    ("percents", "batches", "field"),
    [([33], None, "percents"), (None, [0], "batches"), (None, [9], "batches")],
)
def test_what_cannot_be_measured_is_refused(
    percents: list[float] | None, batches: list[int] | None, field: str
) -> None:
    with pytest.raises(InputError) as caught:
        chosen_points("m", CPU_GRID, 8, percents, batches)
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
        assert needed_s([Point(100.0, 1)] * points, starts, seconds) <= budget_s * (1 + 1e-9)


@given(st.integers(0, 128), st.sampled_from([CPU_GRID, MPS_GRID]))
def test_a_slow_model_has_fewer_points_at_both_ends_of_the_shares(max_batch: int, grid: ShareGrid) -> None:
    choices = fewer_points(grid, max_batch)
    assert all(len({p.percent for p in points}) == 3 for points in choices)
    assert all({10.0 if grid is MPS_GRID else 20.0, 100.0} < {p.percent for p in c} for c in choices)
    assert {p.batch for p in choices[-1]} == {1} or max_batch < 2
    assert len(choices[0]) >= len(choices[-1])


@given(st.floats(0.001, 60.0), st.integers(1, 32), st.sampled_from([20.0, 50.0, 100.0]))
def test_a_point_waits_longer_than_it_should_take(single_s: float, batch: int, percent: float) -> None:
    pace, point = Pace(single_s), Point(percent, batch)
    own = effort(batch, pace.batch_s(point))
    assert pace.point_s(point, 0.3) <= own.late_s
    assert own.in_flight >= 2 * batch  # one batch waits while one runs
    assert FEWEST_BATCHES <= least_batches(pace.batch_s(point)) <= LEAST_BATCHES


def test_three_seconds_an_execution_take_two_minutes_and_not_ten() -> None:
    two_by_two = [Point(p, b) for p in (50.0, 100.0) for b in (1, 2)]
    assert needed_s(two_by_two, 3, 0.3, Pace(3.0)) < 150.0


def test_a_quick_model_is_measured_at_all_points_and_a_slow_one_at_fewer() -> None:
    points = default_points(CPU_GRID, 8)
    assert fits(points, 3, 1.3, Pace(0.002), 40.0)
    assert not fits(points, 3, 1.3, Pace(0.4), 40.0)
    assert not fits(fewer_points(CPU_GRID, 8)[0], 3, 1.3, Pace(0.4), 40.0)
    assert fits(fewer_points(CPU_GRID, 8)[-1], 3, 1.3, Pace(0.4), 40.0)


def test_what_is_measured_of_the_largest_point_alone_counts_to_the_budget() -> None:
    points, pace = default_points(CPU_GRID, 8), Pace(0.03, 0.2, 8)
    assert needed_s(points, 3, 0.3, pace) < 2 * 20.0
    assert not fits(points, 3, 0.3, pace, 20.0)


def test_the_pace_of_measured_points_lies_between_the_smallest_and_the_largest_batch() -> None:
    measured = [Measurement(100.0, 1, 400.0), Measurement(100.0, 4, 1000.0), Measurement(20.0, 1, 2000.0)]
    pace = Pace.of(measured)
    times_s = [pace.batch_s(Point(100.0, batch)) for batch in (1, 2, 4)]
    assert times_s == pytest.approx([0.4, 0.6, 1.0])
    assert pace.batch_s(Point(50.0, 1)) == pytest.approx(0.8)
    assert Pace.of(()) == Pace()


@pytest.mark.parametrize("grid", [CPU_GRID, MPS_GRID])
def test_pairs_come_before_triples_and_all_fit_the_device(grid: ShareGrid) -> None:
    every = list(tenant_groups({"b": 32, "a": 1, "c": 8}, grid))
    assert [len(h) for h in every] == [2] * (6 + 9) + [3] * 10
    assert len(set(every)) == len(every)
    for group in every:
        assert sum(t.percent for t in group) <= 100
        assert {t.percent for t in group} <= set(grid.percents())
        assert all(1 <= b <= {"a": 1, "b": 32, "c": 8}[t.model] for t in group for b in t.batches)
    assert {t.model for h in every[:6] for t in h} == {"a", "b", "c"}


def test_shares_that_are_too_small_are_left_out() -> None:
    coarse = ShareGrid(minimum_percent=40, step_percent=10)
    assert {len(h) for h in tenant_groups({"a": 8}, coarse)} == {2}


def test_the_batches_are_those_between_the_ends() -> None:
    assert middle_batches(32) == (3, 10)
    assert middle_batches(2) == (2,)
    assert middle_batches(1) == (1,)


def test_a_point_measured_again_replaces_the_old_one() -> None:
    other = (Neighbour("b", 50, 3),)
    old, new = ColocationPoint(50, 3, other, 9.0), ColocationPoint(50, 3, other, 8.0)
    kept = ColocationPoint(50, 10, other, 20.0)
    assert merged([old, kept], [new]) == (new, kept)
