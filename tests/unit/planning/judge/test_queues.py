import numpy as np
import pytest

from controlplane.latency.protocol import FloatArray
from controlplane.planning.judge.queues import sojourn_times, with_jitter

REQUESTS = 150_000


def run_p99_ms(arrivals_ms: FloatArray, times_ms: FloatArray, jitter: float, seed: int) -> float:
    """One server whose batches take t(k), each times its own factor from a gamma distribution."""
    factors = np.random.default_rng(seed).gamma(1.0 / jitter**2, jitter**2, arrivals_ms.size).tolist()
    arrivals, times = arrivals_ms.tolist(), times_ms.tolist()
    seen, free_ms, first = [], 0.0, 0
    for factor in factors:
        if first == len(arrivals):
            break
        free_ms = max(free_ms, arrivals[first])
        end = first + 1
        while end < len(arrivals) and end - first < len(times) and arrivals[end] <= free_ms:
            end += 1
        free_ms += times[end - first - 1] * factor
        seen += [free_ms - at_ms for at_ms in arrivals[first:end]]
        first = end
    return float(np.percentile(seen[1000:], 99))


@pytest.mark.parametrize("jitter", [0.2, 0.4])
@pytest.mark.parametrize("use", [0.3, 0.7, 0.85])
@pytest.mark.parametrize("batch", [1, 8])
def test_the_p99_of_batches_that_deviate_is_what_a_run_sees(batch: int, use: float, jitter: float) -> None:
    times_ms = 6.0 + 3.0 * np.arange(1.0, batch + 1.0)
    rate = use * batch / times_ms[-1]
    arrivals_ms = np.cumsum(np.random.default_rng(2).exponential(1.0 / rate, REQUESTS))
    one, nothing = np.ones(1), np.zeros(1)
    found = sojourn_times(
        1000.0 * rate * one, times_ms[None], np.array([batch]), np.array([1]), one, nothing, jitter * one
    )
    seen_ms = run_p99_ms(arrivals_ms, times_ms, jitter, 3)
    # The sum of both 99th percentiles is 1.7 times, and for the fullest queue 0.7 times what is seen.
    assert 0.88 <= found.p99_ms[0] / seen_ms <= 1.2


def test_it_rises_with_the_jitter_the_load_and_the_p99_and_is_exact_without() -> None:
    p99, load, jitter = np.array([4.0, 9.0, 30.0]), np.array([0.5, 2.0, 7.0]), np.array([0.0, 0.1, 0.5])
    grid = with_jitter(p99[:, None, None], np.array(3.0), 8.0, load[:, None], np.maximum(jitter, 1e-12))
    assert grid.shape == (3, 3, 3)
    for axis in range(3):
        assert np.all(np.diff(grid, axis=axis) > -1e-9)
    assert np.all(np.diff(grid, axis=2) > 0.0)
    assert np.array_equal(with_jitter(p99, np.array(3.0), 8.0, load, 0.0), p99)
    assert with_jitter(np.array([np.inf]), np.array(3.0), 8.0, load[:1], 0.2)[0] == np.inf
