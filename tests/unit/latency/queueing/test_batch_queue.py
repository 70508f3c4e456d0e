import heapq
import math
from collections import deque

import numpy as np
import pytest

from controlplane.domain.errors import InputError
from controlplane.latency.queueing.batch_queue import solve

AFFINE = 2.0 + 0.5 * np.arange(1, 33)


def brute_force(gaps_ms, service_ms, batch, servers):
    """Event by event, in plain Python: nothing shared with the code under test."""
    arrived = np.cumsum(gaps_ms).tolist()
    sojourn = np.empty(len(arrived))
    waiting = [deque() for _ in range(servers)]
    running = [[] for _ in range(servers)]
    changed = [0.0] * servers
    ends = []

    def start(server, now):
        running[server] = [waiting[server].popleft() for _ in range(min(batch, len(waiting[server])))]
        if running[server]:
            heapq.heappush(ends, (now + service_ms[len(running[server]) - 1], server))

    for i, now in enumerate([*arrived, math.inf]):
        while ends and ends[0][0] <= now:
            end, server = heapq.heappop(ends)
            for j in running[server]:
                sojourn[j] = end - arrived[j]
            changed[server] = end
            start(server, end)
        if i == len(arrived):
            return sojourn
        chosen = min(range(servers), key=lambda s: (len(waiting[s]) + len(running[s]), changed[s]))
        waiting[chosen].append(i)
        changed[chosen] = now
        if not running[chosen]:
            start(chosen, now)
    return sojourn


def test_single_server_without_batching_is_the_md1_queue():
    load = np.array([0.2, 0.5, 0.8, 0.95])
    result = solve(1000 * load / 5.0, [5.0], 1)
    assert result.mean_ms == pytest.approx(5.0 * (1 + load / (2 * (1 - load))), rel=2e-3)


def test_md1_p99_is_the_one_of_the_known_law():
    # Erlang's series for M/D/1: P(W <= t) = (1 - ρ) Σ_k (λ(kD - t))^k exp(-λ(kD - t)) / k!, k <= t / D.
    load, waits = 0.5, np.linspace(2.0, 5.0, 301)
    factorial = np.cumprod([1.0, 1, 2, 3, 4, 5])
    law = [
        (1 - load)
        * sum((load * (k - t)) ** k * np.exp(-load * (k - t)) / factorial[k] for k in range(int(t) + 1))
        for t in waits
    ]
    exact = 1.0 + waits[np.searchsorted(law, 0.99)]
    assert solve(1000 * load, [1.0], 1).p99_ms[0] == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize("batch", [2, 8, 32])
@pytest.mark.parametrize("load", [0.3, 0.8])
def test_batches_agree_with_brute_force(batch, load):
    rate = load * batch / AFFINE[batch - 1]
    gaps = np.random.default_rng(3).exponential(1 / rate, 120_000)
    seen = brute_force(gaps, AFFINE, batch, 1)[2000:]
    result = solve(1000 * rate, AFFINE, batch)
    assert result.mean_ms[0] == pytest.approx(seen.mean(), rel=0.02)
    assert result.p99_ms[0] == pytest.approx(np.quantile(seen, 0.99), rel=0.05)


@pytest.mark.parametrize(("servers", "batch", "load"), [(2, 1, 0.5), (3, 8, 0.8), (4, 4, 0.7), (8, 4, 0.3)])
def test_pools_agree_with_brute_force(servers, batch, load):
    rate = load * servers * batch / AFFINE[batch - 1]
    gaps = np.random.default_rng(5).exponential(1 / rate, 120_000)
    seen = brute_force(gaps, AFFINE, batch, servers)[2000:]
    result = solve(1000 * rate, AFFINE, batch, servers)
    assert result.mean_ms[0] == pytest.approx(seen.mean(), rel=0.01)
    assert result.p99_ms[0] == pytest.approx(np.quantile(seen, 0.99), rel=0.03)


@pytest.mark.parametrize(
    ("servers", "load", "p99"), [(2, 0.7, 4.136), (2, 0.85, 7.997), (4, 0.8, 3.455), (4, 0.9, 6.341)]
)
def test_pools_of_batch_one_are_the_mdc_queue(servers, load, p99):
    # Of 1.2e7 requests each, held to M/D/1's exact law.
    assert solve(1000 * load * servers, [1.0], 1, servers).p99_ms[0] == pytest.approx(p99, rel=0.015)


def test_requests_bound_on_arrival_wait_longer_than_in_one_queue():
    # P99 of four servers of batch 8 at load 0.8, t(k) from 0.5625 to 1: 1.65 from one queue, 1.87 as bound.
    service = np.linspace(0.5625, 1.0, 8)
    assert solve(1000 * 0.8 * 4 * 8, service, 8, 4).p99_ms[0] == pytest.approx(1.87, rel=0.02)


def test_a_pool_does_not_depend_on_the_unit_of_time():
    first, second = (solve(2000 / unit, AFFINE * unit, 8, 3).p99_ms[0] / unit for unit in (1.0, 7.3))
    assert second == pytest.approx(first, rel=1e-9)


def test_wide_batches_leave_nobody_behind():
    # All that waits fits the next batch of 128, so nobody is there for more than two.
    assert 1.9 < solve(1000 * 154, np.ones(128), 128, 2).p99_ms[0] <= 2.0


def test_a_line_longer_than_is_kept_counts_as_overloaded():
    # A lone request takes as long as thousands of full batches: far from any server, but no reason to lie.
    assert np.isinf(solve(1000, [9000.0, 1.0], 2, 2).p99_ms[0])


@pytest.mark.parametrize("servers", [1, 3])
def test_constant_arrivals_follow_the_schedule(servers):
    rate = 0.7123 * servers * 4 / AFFINE[3]  # so that no batch ends just as a request arrives
    seen = brute_force(np.full(20_000, 1 / rate), AFFINE, 4, servers)[2000:]
    result = solve(1000 * rate, AFFINE, 4, servers, dispersion=0.0)
    assert result.mean_ms[0] == pytest.approx(seen.mean(), rel=0.01)
    assert result.p99_ms[0] == pytest.approx(np.quantile(seen, 0.99), rel=0.01)


def test_an_overloaded_queue_takes_for_ever():
    assert np.all(np.isinf(solve([900, 1100], [4.0], 1, dispersion=[1.0, 0.0]).p99_ms))


def test_no_load_is_a_request_alone():
    result = solve(0.0, [3.0, 4.0], 2)
    assert (result.mean_ms[0], result.p99_ms[0]) == (3.0, 3.0)


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("rate_rps", ([-1.0], [1.0], 1)),
        ("rate_rps", ([np.nan], [1.0], 1)),
        ("batch", ([1.0], [1.0], 2)),
        ("servers", ([1.0], [1.0], 1, 0)),
        ("service_ms", ([1.0], [0.0], 1)),
    ],
)
def test_a_value_out_of_range_is_named(field, arguments):
    with pytest.raises(InputError, match=field):
        solve(*arguments)


def test_columns_beyond_the_batch_are_ignored():
    assert solve(10, [3.0, np.nan], 1).p99_ms == pytest.approx(solve(10, [3.0], 1).p99_ms)
