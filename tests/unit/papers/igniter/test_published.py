"""What a faithful iGniter must give, by the paper and the authors' prototype."""

import planning
import pytest
from planning import TABLE_1, layout, planned, published, workload


def test_table_1_fits_one_gpu() -> None:
    plan = planned("igniter", [workload(*row) for row in TABLE_1])
    assert layout(plan) == [{"V": (37.5, 6), "R": (30.0, 8), "A": (10.0, 4)}]
    assert plan.verified


def test_table_3_takes_six_gpus() -> None:
    plan = planned("igniter", published(12))
    assert layout(plan) == [
        {"W12": (92.5, 8)},
        {"W8": (75.0, 6), "W6": (15.0, 4)},
        {"W7": (60.0, 3), "W4": (32.5, 4)},
        {"W10": (60.0, 2), "W9": (37.5, 4)},
        {"W5": (45.0, 9), "W1": (20.0, 6), "W11": (15.0, 1)},
        {"W3": (12.5, 8), "W2": (7.5, 3)},
    ]
    assert plan.totals is not None
    assert plan.totals.percent == 472.5
    assert plan.totals.cost_per_hour == pytest.approx(18.36)
    assert plan.verified
    assert not plan.violations


def test_first_fit_on_lower_bounds_saves_a_gpu_and_breaks_nine_promises() -> None:
    plan = planned("ffd+", published(12))
    assert len(plan.gpus) == 5
    assert not plan.verified
    assert {v.subject for v in plan.violations} == {"W2", "W4", "W5", "W7", "W8", "W9", "W10", "W11", "W12"}
    assert len(plan.violations) == 9
    overloaded = {w.name for _, _, w in plan.placements() if (w.predicted.utilisation or 0) > 1}
    assert overloaded == {"W2", "W4", "W7", "W8", "W9", "W12"}


def test_first_fit_with_algorithm_2_takes_480_percent() -> None:
    plan = planned("ffd++", published(12))
    assert plan.totals is not None
    assert (plan.totals.gpus, plan.totals.percent) == (6, 480.0)
    assert plan.verified


def test_all_twelve_miss_their_p99_under_poisson() -> None:
    plan = planned("igniter", published(12), rule=planning.Rule.P99)
    assert {v.subject for v in plan.violations} == {f"W{i}" for i in range(1, 13)}


@pytest.mark.parametrize(("count", "gpus"), [(50, 18), (200, 72), (1000, 368)])
def test_the_longer_lists_take_no_more_than_the_prototype(count: int, gpus: int) -> None:
    plan = planned("igniter", published(count))
    assert len(plan.gpus) <= gpus
    assert plan.verified
