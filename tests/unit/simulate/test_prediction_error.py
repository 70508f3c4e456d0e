"""A few cells of what `benchmarks/prediction_error.py` prints in full."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.prediction_error import Case, broken_windows, simulated
from controlplane.simulate.closed_loop.faults import Outcome, WorkloadSeen

pytestmark = [pytest.mark.unit, pytest.mark.slow]


@pytest.mark.parametrize("factor", [1.2, 2.0])
def test_a_model_that_becomes_slower_is_moved_to_a_share_that_keeps_its_promise(factor: float) -> None:
    found = simulated(Case("alexnet", 100.0, factor, sudden=True))
    assert (found.breaks, found.cured, found.missed) == (True, True, ())
    assert found.late < 0.1 * found.alone


def test_a_model_that_becomes_faster_is_left_alone() -> None:
    found = simulated(Case("alexnet", 100.0, 0.9, sudden=True))
    assert (found.breaks, found.redirects, found.missed) == (False, 0, ())


def test_a_product_that_does_nothing_misses_the_aims() -> None:
    assert simulated(Case("alexnet", 100.0, 2.0, sudden=True), guard=False).missed == ("verdict", "kept")
    uncured = simulated(Case("resnet50", 400.0, 3.0, sudden=True), guard=False)
    assert (uncured.cured, uncured.missed) == (False, ("verdict", "said"))


def test_a_window_is_broken_where_more_is_late_than_on_the_shadows_share() -> None:
    def outcome(late_at_30_s: float) -> Outcome:
        late = np.zeros(60)
        late[30] = late_at_30_s
        return Outcome((WorkloadSeen("w", 50.0, ("w",), np.full(60, 100.0), late),), (), ())

    assert broken_windows(outcome(11.0), outcome(0.0), verdict_s=5.0) == 10
    assert broken_windows(outcome(10.0), outcome(0.0), verdict_s=5.0) == 0, "a hundredth may be late"
    assert broken_windows(outcome(11.0), outcome(11.0), verdict_s=5.0) == 0, "no share does better"
    assert broken_windows(outcome(11.0), outcome(0.0), verdict_s=29.0) == 0, "before the redirect holds"
