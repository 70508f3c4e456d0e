from itertools import product

import inss_instances as instances
import numpy as np
import pytest
from inss_instances import tables
from planning import StoppedClock

from controlplane.papers.inss.problem import REJECTED, Previous, Problem, fits, goodput, value
from controlplane.papers.inss.search import construct, search

CLOCK = StoppedClock()


class Ticking:
    """A second passes at every look."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now

    def wall(self) -> float:
        return self.now


def drawn(n: int, gpus: int, seed: int) -> Problem:
    return instances.sample(np.random.default_rng(seed), tables(), n, gpus)


def exhaustive(problem: Problem) -> float:
    """The best value of three models on two GPUs, by trying everything."""
    choices = [(REJECTED, 1)] + [(k, u) for k in range(2) for u in range(1, problem.units[k] + 1)]
    tried = np.array(list(product(choices, repeat=3)))
    gpu, units = tried[:, :, 0], tried[:, :, 1]
    good = fits(problem, gpu, units)
    return float(value(problem, goodput(problem, gpu[good], units[good])).max())


@pytest.mark.parametrize("seed", range(5))
def test_three_models_on_two_gpus_are_placed_as_well_as_can_be(seed: int) -> None:
    problem = drawn(3, 2, seed)
    found = search(problem, CLOCK, rounds=4)
    assert found.value == pytest.approx(exhaustive(problem), abs=1e-9)


def test_what_is_found_fits_is_worth_what_it_says_and_comes_again() -> None:
    problem = drawn(12, 5, 7)
    found, again = search(problem, CLOCK, seed=3), search(problem, CLOCK, seed=3)
    assert fits(problem, found.gpu, found.units)
    assert found.value == pytest.approx(float(value(problem, goodput(problem, found.gpu, found.units))))
    assert np.array_equal(found.gpu, again.gpu)
    assert np.array_equal(found.units, again.units)
    gpu, units = construct(problem)
    assert fits(problem, gpu, units)
    assert value(problem, goodput(problem, gpu, units)) <= found.value
    assert found.stopped_by == "converged"


def test_a_ceiling_in_seconds_ends_it() -> None:
    found = search(drawn(6, 4, 1), Ticking(), budget_s=3.0)
    assert found.stopped_by == "budget"
    assert found.value > 0.0


def test_moves_that_cost_more_than_they_bring_stay_undone() -> None:
    problem = drawn(6, 4, 2)
    before = search(problem, CLOCK, rounds=1)
    stays = search(
        problem, CLOCK, start=(before.gpu, before.units), previous=Previous(before.gpu, before.units, 1.0)
    )
    assert np.array_equal(stays.gpu, before.gpu)
    assert np.array_equal(stays.units, before.units)
    free = search(problem, CLOCK, rounds=8, seed=5, previous=Previous(before.gpu, before.units, 0.0))
    assert free.value >= before.value


def test_no_rounds_are_the_start_and_its_value() -> None:
    problem = drawn(6, 4, 1)
    gpu, units = construct(problem)
    found = search(problem, CLOCK, rounds=0)
    assert np.array_equal(found.gpu, gpu)
    assert found.value == pytest.approx(float(value(problem, goodput(problem, gpu, units))))
