"""The bound for requests that leave the gateway in the order of their ranks, against a simulation."""

import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.latency.queueing.batch_queue import solve
from controlplane.latency.queueing.turns import P99, bound_order, bound_turns

REQUESTS = 8_000
PARTS = 8
"""Parts of a simulation whose quantiles are apart enough to tell the error of their mean."""


@st.composite
def partitions(draw):
    """Rates, times and ranks of two to four models that fill 10 to 85 % of their partition."""
    service = draw(st.lists(st.floats(1.0, 60.0), min_size=2, max_size=4))
    parts = np.array([draw(st.floats(0.1, 1.0)) for _ in service])
    load = draw(st.floats(0.1, 0.85)) * parts / parts.sum()
    return list(1000.0 * load / service), service, [draw(st.integers(0, 2)) for _ in service]


def simulated(rate, service, ranks, seed, requests=REQUESTS):
    """Sojourn times in ms of each model's requests, in order of their ends; one at a time."""
    random = np.random.default_rng(seed)
    until = requests / sum(rate) * 1000.0
    counts = [random.poisson(r * until / 1000.0) for r in rate]
    arrivals = sorted((t, own) for own, n in enumerate(counts) for t in random.uniform(0.0, until, n))
    waiting, sojourn, now, came = [], [[] for _ in rate], 0.0, 0
    while came < len(arrivals) or waiting:
        now = now if waiting else max(now, arrivals[came][0])
        while came < len(arrivals) and arrivals[came][0] <= now:
            at, own = arrivals[came]
            heapq.heappush(waiting, (ranks[own], at, own))
            came += 1
        _, at, own = heapq.heappop(waiting)
        now += service[own]
        sojourn[own].append(now - at)
    return [np.array(each) for each in sojourn]


def p99_between(sojourn):
    """The P99 of a simulation, less and more five standard errors."""
    parts = [np.quantile(part, P99) for part in np.array_split(sojourn, PARTS)]
    error = 5.0 * np.std(parts, ddof=1) / np.sqrt(PARTS)
    return np.mean(parts) - error, np.mean(parts) + error


@settings(max_examples=20, deadline=None)
@given(partitions(), st.integers(0, 2**32 - 1))
def test_no_model_exceeds_its_bound(partition, seed):
    rate, service, ranks = partition
    bound = bound_order(rate, service, ranks)
    for own, found in enumerate(simulated(rate, service, ranks, seed)):
        if found.size >= 100 * PARTS:
            assert p99_between(found)[0] <= bound.p99_ms[own]
            assert np.mean(found) <= 1.2 * bound.mean_ms[own]


@settings(max_examples=20, deadline=None)
@given(partitions())
def test_an_order_waits_no_longer_than_every_order(partition):
    rate, service, ranks = partition
    ordered = bound_order(rate, service, ranks)
    every = bound_turns(rate, [np.array([ms]) for ms in service])
    assert np.all(ordered.p99_ms <= every.p99_ms * 1.02)


@settings(max_examples=20, deadline=None)
@given(partitions())
def test_going_first_is_never_slower(partition):
    rate, service, ranks = partition
    behind = bound_order(rate, service, ranks)
    first = bound_order(rate, service, [-1, *ranks[1:]])
    assert first.p99_ms[0] <= behind.p99_ms[0] * 1.01


@pytest.mark.parametrize("ranks", [[0, 1], [1, 0], [0, 0]])
def test_the_bound_is_tight(ranks):
    rate, service = [130.0, 18.0], [2.0, 30.0]
    bound = bound_order(rate, service, ranks)
    for own, found in enumerate(simulated(rate, service, ranks, 7, requests=200_000)):
        assert p99_between(found)[0] <= bound.p99_ms[own] <= 1.05 * p99_between(found)[1]


@pytest.mark.parametrize("load", [0.3, 0.8])
def test_one_model_alone_waits_as_in_its_exact_queue(load):
    exact = solve(100.0 * load, np.array([10.0]), 1)
    assert bound_order([100.0 * load], [10.0], [0]).p99_ms[0] == pytest.approx(exact.p99_ms[0], rel=0.03)


def test_models_that_arrive_faster_than_they_are_served_have_no_bound():
    bound = bound_order([100.0, 10.0], [6.0, 45.0], [0, 1])
    assert np.all(np.isinf(bound.p99_ms))
    assert np.all(np.isinf(bound.mean_ms))
