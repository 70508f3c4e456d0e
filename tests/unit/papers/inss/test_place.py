import inss_instances as instances
import numpy as np
from inss_instances import tables
from planning import StoppedClock

from controlplane.papers.inss.problem import REJECTED, Problem, fits, goodput, running
from controlplane.papers.inss.search import Placed, place

CLOCK = StoppedClock()
NAMES = ("alexnet", "resnet50", "vgg16", "mnasnet", "mobilenet_v3", "efficientnet")
RATES = np.array([200.0, 150.0, 80.0, 200.0, 250.0, 250.0])


def problem(rates: np.ndarray) -> Problem:
    return instances.paper(tables(), NAMES, rates, ["rtx2060s", "rtx2060s", "rtx2060", "rtx2060"])


def served(asked: Problem, placed: Placed) -> bool:
    outcome = goodput(asked, placed.gpu, placed.units)
    return bool((outcome.latency_ms <= asked.slos_ms).all())


def test_a_small_change_is_met_by_batches_alone() -> None:
    first = place(problem(RATES), CLOCK)
    asked = problem(RATES * 0.8)
    then = place(asked, CLOCK, before=running(first.gpu, first.units))
    assert np.array_equal(then.gpu, first.gpu)
    assert np.array_equal(then.units, first.units)
    assert not np.array_equal(then.batch, first.batch)
    assert served(asked, then)


def test_what_batches_cannot_meet_moves_as_little_as_needed() -> None:
    # Squeezed onto what little it needs: twice the rate of one model then wants a larger share.
    few = np.array([0, 1, 2, 3, 3, 0])
    units = np.array([3, 6, 8, 3, 3, 4])
    assert not goodput(problem(RATES), few, units).violated.any()
    asked = problem(RATES * np.array([1.0, 1.0, 2.0, 1.0, 1.0, 1.0]))
    assert fits(asked, few, units)
    assert goodput(asked, few, units).violated.any()
    then = place(asked, CLOCK, before=running(few, units))
    assert served(asked, then)
    assert 1 <= ((then.gpu != few) | (then.units != units)).sum() <= 3


def test_what_cannot_be_served_is_rejected_and_does_not_move_the_others_for_ever() -> None:
    asked = problem(np.where(np.array(NAMES) == "vgg16", 2000.0, RATES))
    first = place(asked, CLOCK)
    assert first.gpu[2] == REJECTED
    assert first.batch[2] == 0
    again = place(asked, CLOCK, seed=9, before=running(first.gpu, first.units))
    assert np.array_equal(again.gpu, first.gpu)
    assert np.array_equal(again.units[again.gpu != REJECTED], first.units[again.gpu != REJECTED])
