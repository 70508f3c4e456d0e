"""A few cells of what `benchmarks/times/prediction_error.py` prints in full."""

from itertools import pairwise

import numpy as np
import pytest
from planning import v100

from benchmarks.times.prediction_error import Case, broken_windows, planned, simulated
from controlplane.runtime.jobs.simulate import conditions_of
from controlplane.simulate.closed_loop.faults import Fault, Kind, Outcome, WorkloadSeen
from controlplane.simulate.closed_loop.run import run as serve
from controlplane.simulate.engine import Settings

pytestmark = pytest.mark.slow


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


SECONDS, TOLD_S = 200, 120


def over(case: Case, *, guard: bool) -> Outcome:
    plan, device = planned(case.model, case.rate_rps), v100("ours")
    fault = Fault(Kind.SLOWER, case.model, case.fault_s, case.factor)
    conditions = conditions_of({"v100": device.profiles})
    return serve(plan, {"v100": device.latency}, Settings(SECONDS, seed=1), conditions, [fault], guard=guard)


def silent(outcome: Outcome) -> list[int]:
    """When two minutes of a broken P99 began of which no event told, within them or before."""
    (seen,) = outcome.workloads
    found = []
    for began in range(SECONDS - TOLD_S):
        whole = slice(began, began + TOLD_S)
        told = [h for h in outcome.happened if h.at_s <= began + TOLD_S]
        ended = bool(told) and told[-1].at_s < began and "within the SLO again" in told[-1].text
        if seen.late[whole].sum() > 0.01 * seen.sent[whole].sum() and (not told or ended):
            found.append(began)
    return found


def needless(outcome: Outcome) -> list[float]:
    """The redirects before which nothing was late since the one before."""
    moved = [h.at_s for h in outcome.happened if h.redirect]
    (seen,) = outcome.workloads
    return [at for before, at in pairwise(moved) if not seen.late[int(before) : int(at) + 1].any()]


@pytest.mark.parametrize(
    "case",
    [Case("alexnet", 100.0, 2.0, True), Case("vgg19", 100.0, 1.05, False), Case("vgg19", 100.0, 3.0, True)],
)
def test_no_broken_slo_is_silent_and_a_cure_is_followed_by_no_needless_move(case: Case) -> None:
    guarded, alone = over(case, guard=True), over(case, guard=False)
    assert (silent(guarded), needless(guarded)) == ([], [])
    assert silent(alone)
