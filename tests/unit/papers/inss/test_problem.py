import math

import inss_instances as instances
import numpy as np
import pytest
from inss_brute_force import capacities
from inss_instances import devices, tables

from controlplane.latency.protocol import FloatArray, Slots
from controlplane.papers.inss.problem import REJECTED, Bda, Problem, fits, goodput, taken, value


def tasks_ms(t: float, batch: int, rate_rps: float, queued: int) -> float:
    """The longest a request waits, by hand: batches of exactly `batch`, one just begun, even arrivals.

    `queued` requests wait; the next arrives now, the others follow.
    """
    gap, free, worst = 1000.0 / rate_rps, t, 0.0
    arrivals = [0.0] * queued + [i * gap for i in range(4 * batch)]
    for first in range(0, len(arrivals) - batch + 1, batch):
        group = arrivals[first : first + batch]
        begin = max(free, group[-1])
        free = begin + t
        worst = max(worst, max((free - a for a in group if first + batch > queued), default=0.0))
    return worst


def drawn(count: int, seed: int, backlog_s: float) -> Problem:
    rng = np.random.default_rng(seed)
    return Problem.stack([instances.sample(rng, tables(), 6, 4, backlog_s) for _ in range(count)])


def assigned(problem: Problem, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    gpu = rng.integers(-1, 4, size=problem.model.shape)
    units = rng.integers(1, problem.units[np.arange(len(gpu))[:, None], np.maximum(gpu, 0)] + 1)
    return gpu, units


def times_ms(problem: Problem, row: int, gpu: np.ndarray, units: np.ndarray, i: int) -> FloatArray:
    """Batches 1..32 of one model beside its neighbours, by the latency model itself."""
    k = gpu[i]
    kind = list(instances.GPUS)[problem.type_of[row, k]]
    latency = devices()[kind].latency
    others = [j for j in range(len(gpu)) if gpu[j] == k and j != i]
    who = [latency.models.index(list(instances.MODELS)[problem.model[row, j]]) for j in (i, *others)]
    share = [tables().percent[problem.type_of[row, k], units[j] - 1] for j in (i, *others)]
    batch = np.ones((32, len(who)))
    batch[:, 0] = np.arange(1, 33)
    # Shares add up to more than a GPU here and there: the latency model does not mind.
    return latency.estimate(Slots.of([who] * 32, batch, [share] * 32)).execution_ms[:, 0]


def test_batches_are_those_of_brute_force_with_the_latency_models_own_times() -> None:
    problem = drawn(60, seed=1, backlog_s=0.05)
    gpu, units = assigned(problem, seed=2)
    found = goodput(problem, gpu, units)
    settled = 0
    for row in range(len(gpu)):
        for i in np.flatnonzero(gpu[row] >= 0):
            rate, slo = problem.rates_rps[row, i], problem.slos_ms[row, i]
            held = {}
            for b, t in enumerate(times_ms(problem, row, gpu[row], units[row], i), start=1):
                queued = int(problem.backlog[row, i])
                steady, behind = tasks_ms(t, b, rate, 0), tasks_ms(t, b, rate, queued)
                capacity = 1000.0 * b / t
                # By hand the queue of even arrivals is exact; Eq 2 stays above it by less than one gap.
                if capacity >= rate and max(steady, behind) + 1000.0 / rate <= slo:
                    held[b] = capacity
            if held and not found.violated[row, i]:
                settled += 1
                assert found.capacity_rps[row, i] >= max(held.values()) * (1 - 1e-9)
            assert not (held and found.violated[row, i])
            if not found.violated[row, i]:
                t = times_ms(problem, row, gpu[row], units[row], i)[found.batch[row, i] - 1]
                assert tasks_ms(t, found.batch[row, i], rate, 0) <= slo * (1 + 1e-9)
                assert found.capacity_rps[row, i] == pytest.approx(1000.0 * found.batch[row, i] / t)
    assert settled > 50


def test_enumeration_is_brute_force_on_ten_thousand_cases_and_the_papers_search_never_beats_it() -> None:
    problem = drawn(2500, seed=3, backlog_s=0.1)
    gpu, units = assigned(problem, seed=4)
    placed = gpu >= 0
    assert placed.sum() > 10_000
    best = capacities(problem, gpu, units)[0].max(axis=2)
    exact, paper = goodput(problem, gpu, units), goodput(problem, gpu, units, Bda.PAPER)
    assert np.array_equal(exact.violated[placed], best[placed] == 0.0)
    held = placed & ~exact.violated
    assert np.allclose(exact.capacity_rps[held], best[held], rtol=1e-12)
    assert not (exact.violated & ~paper.violated)[placed].any()
    also = held & ~paper.violated
    assert (paper.capacity_rps[also] <= best[also] * (1 + 1e-12)).all()
    right = paper.violated[placed] == exact.violated[placed]
    assert right.mean() < 1.0


def test_a_rejected_model_serves_nothing_and_slows_nobody() -> None:
    problem = instances.paper(tables(), ["alexnet", "resnet50"], [200.0, 200.0], ["rtx2060s"])
    both = goodput(problem, np.array([0, 0]), np.array([8, 8]))
    alone = goodput(problem, np.array([0, REJECTED]), np.array([8, 8]))
    assert alone.batch[1] == 0
    assert math.isinf(alone.latency_ms[1])
    assert alone.violated.tolist() == [False, True]
    assert alone.goodput_rps.tolist() == [200.0, 0.0]
    assert alone.capacity_rps[0] > both.capacity_rps[0]


def test_a_queue_that_never_settles_is_no_goodput() -> None:
    problem = instances.paper(tables(), ["vgg16"], [500.0], ["rtx2060s"])
    found = goodput(problem, np.array([0]), np.array([17]))
    assert found.capacity_rps[0] < 500.0
    assert found.violated[0]
    assert found.goodput_rps[0] == 0.0
    assert value(problem, found) == 0.0


def test_constraints_are_in_percent_and_count_the_shadows_copy() -> None:
    names, rates = ["alexnet", "resnet50", "vgg16"], [100.0, 100.0, 50.0]
    problem = instances.paper(tables(), names, rates, ["rtx2060s", "rtx2060"])
    units = np.array([8, 8, 1])
    # 17 units of 6 % are 102 %.
    assert fits(problem, np.array([0, 0, 1]), units)
    assert not fits(problem, np.array([0, 0, 0]), units)
    assert fits(problem, np.array([0, 1, REJECTED]), np.array([17, 14, 1]))
    assert not fits(problem, np.array([0, 1, 1]), np.array([17, 13, 1]))
    share, memory = taken(problem, np.array([0, 1, REJECTED]), units)
    assert share.tolist() == [48.0, 56.0]
    assert memory.tolist() == [2000.0, 3800.0]


def test_without_interference_neighbours_cost_nothing() -> None:
    names, rates = ["alexnet", "vgg16"], [200.0, 50.0]
    free = instances.paper(tables().without_interference(), names, rates, ["rtx2060s"])
    both = goodput(free, np.array([0, 0]), np.array([6, 10]))
    alone = goodput(free, np.array([0, REJECTED]), np.array([6, 10]))
    assert both.capacity_rps[0] == alone.capacity_rps[0]
