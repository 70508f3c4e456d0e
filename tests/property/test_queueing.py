import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from controlplane.latency.queueing.batch_queue import solve

service = st.builds(
    lambda first, steps: np.cumsum([first, *steps]),
    st.floats(0.1, 50.0),
    st.lists(st.floats(0.0, 10.0), max_size=11),
)
loads = st.floats(0.02, 0.97)


def rate(times, load):
    return 1000.0 * load * len(times) / times[-1]


@settings(max_examples=150)
@given(service, loads)
def test_the_order_of_what_requests_see(times, load):
    seen = solve(rate(times, load), times, len(times))
    assert times[0] * 0.999 <= min(seen.mean_ms[0], seen.p99_ms[0])
    assert np.isfinite(seen.p99_ms[0])


@settings(max_examples=150)
@given(service, loads, st.floats(1.02, 2.0))
def test_more_requests_wait_longer(times, load, more):
    assume(load * more < 0.98)
    # Where batching is free, more requests only ride along: the mean may fall by a little, never by much.
    first, second = solve(rate(times, np.array([load, load * more])), times, len(times)).p99_ms
    assert second >= first * 0.97


@settings(max_examples=100)
@example(np.array([0.7, 1.4, 2.1, 2.8, 3.5]), 0.7, 0.1).via("20 cells were 21 by the last digit")
@given(service, loads, st.floats(0.01, 100.0))
def test_the_unit_of_time_does_not_matter(times, load, unit):
    first = solve(rate(times, load), times, len(times))
    scaled = solve(rate(times * unit, load), times * unit, len(times))
    assert scaled.p99_ms[0] == pytest.approx(first.p99_ms[0] * unit, rel=1e-6)
    assert scaled.mean_ms[0] == pytest.approx(first.mean_ms[0] * unit, rel=1e-6)


@settings(max_examples=60)
@given(service, st.floats(0.05, 0.9), st.integers(2, 8))
def test_a_pool_lies_between_one_fast_server_and_servers_that_know_nothing_of_each_other(
    times, load, servers
):
    batch, whole = len(times), rate(times, load) * servers
    # Where batches cost more than their requests apart, the fast server's larger ones are its loss.
    assume(np.all(np.diff(times / np.arange(1, batch + 1)) <= 0))
    pool = solve(whole, times, batch, servers)
    fast, apart = solve([whole, whole / servers], [times / servers, times], batch).p99_ms
    assert fast * 0.98 <= pool.p99_ms[0] <= apart * 1.03
    assert times[0] * 0.999 <= min(pool.mean_ms[0], pool.p99_ms[0])


@settings(max_examples=40)
@given(service, st.floats(0.05, 0.9), st.integers(2, 7))
def test_a_larger_pool_waits_no_longer_at_the_same_load(times, load, servers):
    one = rate(times, load)
    fewer, more = solve(
        [one * servers, one * (servers + 1)], times, len(times), [servers, servers + 1]
    ).p99_ms
    assert more <= fewer * 1.03


@settings(max_examples=12, deadline=None)
@given(st.sampled_from((2.0, 4.0, 8.0, 16.0)), st.floats(0.2, 0.9), st.integers(0, 2**32 - 1))
def test_bursty_arrivals_wait_no_longer_than_is_said(dispersion, load, seed):
    # Lindley's recursion as a running minimum, on a stream of its own.
    gaps = np.random.default_rng(seed).gamma(1.0 / dispersion, dispersion / load, 1_000_000)
    walk = np.concatenate(([0.0], np.cumsum(1.0 - gaps[1:])))
    sojourn = 1.0 + walk - np.minimum.accumulate(walk)
    said = solve(1000.0 * load, [1.0], 1, dispersion=dispersion).p99_ms[0]
    assert np.quantile(sojourn, 0.99) <= said * 1.02
    assert said <= np.quantile(sojourn, 0.99) * 1.5
