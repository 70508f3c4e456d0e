from __future__ import annotations

import numpy as np
import pytest

from controlplane.domain.observation import BatchStatistics, ModelStatistics
from controlplane.profiler.load import Answers, poisson_times
from controlplane.profiler.point import deviation_ms, executed, rate_rps
from controlplane.profiler.requests import Traffic


def test_the_rate_counts_whole_batches() -> None:
    ends_s = np.repeat([1.0, 1.5, 2.0, 2.5], 4)  # every half second a batch of four
    answers = Answers(ends_s[:-2], np.zeros(14))  # the last one is half answered when the clock stops
    assert rate_rps(answers, 4) == pytest.approx(8.0)


def counters(executions: int, total_ms: float) -> ModelStatistics:
    batch = BatchStatistics(executions, 0, round(total_ms * 1e6), 0)
    return ModelStatistics("m", executions, executions, executions, 0, 0, round(total_ms * 1e6), {1: batch})


def test_the_deviation_of_an_execution_is_recovered_from_sums() -> None:
    random = np.random.default_rng(1)
    times_ms = random.normal(10.0, 2.0, 4000)
    cumulated = np.concatenate([[0.0], np.cumsum(times_ms)])
    ends = np.sort(random.choice(np.arange(1, 4000), 400, replace=False))
    counted = [counters(int(i), float(cumulated[i])) for i in ends]
    assert deviation_ms(counted, 1) == pytest.approx(2.0, rel=0.1)


def test_one_window_tells_no_deviation() -> None:
    assert deviation_ms([counters(0, 0), counters(5, 50)], 1) is None
    assert deviation_ms([counters(0, 0), counters(5, 50), counters(5, 50)], 1) is None


def test_poisson_times_are_seeded_ascending_and_at_the_rate() -> None:
    times = poisson_times(200.0, 50.0, np.random.default_rng(3))
    assert times == poisson_times(200.0, 50.0, np.random.default_rng(3))
    assert times == sorted(times)
    assert len(times) == pytest.approx(10_000, rel=0.05)
    assert np.std(np.diff(times)) == pytest.approx(1 / 200, rel=0.1)


def test_a_batch_of_an_ensemble_takes_the_time_between_the_ends_of_two() -> None:
    ends_s = np.repeat([1.0, 1.4, 2.0, 2.5], 4)
    answers = Answers(ends_s, np.zeros(16))
    done = executed(Traffic((), steps=("a", "b")), [counters(0, 0), counters(16, 90)], answers, 4)
    assert (done.mean_ms, done.std_ms, done.count, done.formed) == (pytest.approx(500.0), None, 3, 1.0)


def test_the_deviations_of_an_ensembles_steps_add_up_as_squares() -> None:
    random = np.random.default_rng(1)
    ends = np.arange(0, 4001, 10)
    steps = [np.append(0.0, np.cumsum(random.normal(10.0, std, 4000))) for std in (3.0, 4.0)]
    stepped = [tuple(counters(int(i), float(step[i])) for step in steps) for i in ends]
    answers = Answers(np.arange(1.0, 5.0), np.zeros(4))
    done = executed(Traffic((), steps=("a", "b")), (), answers, 1, stepped)
    assert done.std_ms == pytest.approx(5.0, rel=0.1)
