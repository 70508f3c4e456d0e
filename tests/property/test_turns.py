"""The bound for models that take turns, against a simulation event by event."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.latency.queueing.batch_queue import solve
from controlplane.latency.queueing.turns import P99, bound_turns

REQUESTS = 8_000
PARTS = 8
"""Parts of a simulation whose quantiles are apart enough to tell the error of their mean."""

curves = st.builds(
    lambda first, steps: np.cumsum([first, *steps]),
    st.floats(1.0, 30.0),
    st.lists(st.floats(0.0, 8.0), max_size=7),
)


@st.composite
def partitions(draw):
    """Rates and times of two to four models that would fill 10 to 70 % of their partition unbatched."""
    service = draw(st.lists(curves, min_size=2, max_size=4))
    parts = np.array([draw(st.floats(0.1, 1.0)) for _ in service])
    load = draw(st.floats(0.1, 0.7)) * parts / parts.sum()
    charges = np.array([(t / np.arange(1, t.size + 1)).max() for t in service])
    return list(1000.0 * load / charges), service


def fewest_executions(executed, waiting):
    """Triton's order."""
    return min(waiting, key=lambda i: (executed[i], i))


def last(model):
    """Any other model first."""
    return lambda executed, waiting: min(waiting, key=lambda i: (i == model, i))


def simulated(rate, service, order, seed):
    """Sojourn times in ms of each model's requests, in order of arrival; one batch at a time."""
    random = np.random.default_rng(seed)
    until = REQUESTS / sum(rate) * 1000.0
    arrivals = [np.sort(random.uniform(0.0, until, random.poisson(r * until / 1000.0))) for r in rate]
    models = range(len(rate))
    head, executed, now = [0 for _ in models], [0 for _ in models], 0.0
    sojourn = [np.empty(a.size) for a in arrivals]
    while left := [i for i in models if head[i] < arrivals[i].size]:
        now = max(now, min(arrivals[i][head[i]] for i in left))
        own = order(executed, [i for i in left if arrivals[i][head[i]] <= now])
        begin = head[own]
        size = int(np.searchsorted(arrivals[own][begin : begin + service[own].size], now, side="right"))
        now += service[own][size - 1]
        sojourn[own][begin : begin + size] = now - arrivals[own][begin : begin + size]
        head[own], executed[own] = begin + size, executed[own] + 1
    return sojourn


def surely_above(sojourn):
    """A value that the true P99 exceeds all but surely: the mean of several less five standard errors."""
    parts = [np.quantile(part, P99) for part in np.array_split(sojourn, PARTS)]
    return float(np.mean(parts) - 5.0 * np.std(parts, ddof=1) / np.sqrt(PARTS))


@settings(max_examples=12, deadline=None)
@given(partitions(), st.integers(0, 2**32 - 1))
def test_no_order_exceeds_the_bound(partition, seed):
    rate, service = partition
    bound = bound_turns(rate, service)
    for n, (sojourn, p99, mean) in enumerate(
        zip(simulated(rate, service, fewest_executions, seed), bound.p99_ms, bound.mean_ms, strict=True)
    ):
        assert surely_above(sojourn) <= p99, f"model {n} in Triton's order"
        assert np.mean(sojourn) <= 1.1 * mean, f"model {n} in Triton's order"
    own = seed % len(rate)
    assert surely_above(simulated(rate, service, last(own), seed)[own]) <= bound.p99_ms[own]


@settings(max_examples=12, deadline=None)
@given(partitions(), curves, st.floats(0.1, 20.0))
def test_a_further_model_speeds_none_up(partition, times, rate_rps):
    rate, service = partition
    alone, together = bound_turns(rate, service), bound_turns([*rate, rate_rps], [*service, times])
    assert np.all(together.p99_ms[:-1] >= alone.p99_ms * 0.99)


@settings(max_examples=12, deadline=None)
@given(partitions(), st.floats(1.02, 1.3))
def test_higher_rates_wait_longer(partition, more):
    rate, service = partition
    assert np.all(
        bound_turns([more * r for r in rate], service).p99_ms >= bound_turns(rate, service).p99_ms * 0.99
    )


@settings(max_examples=12, deadline=None)
@given(curves, st.floats(0.02, 0.8))
def test_a_single_model_never_waits_less_than_its_exact_queue(times, load):
    charge = (times / np.arange(1, times.size + 1)).max()
    rate = 1000.0 * load / charge
    exact, bound = solve(rate, times, times.size), bound_turns([rate], [times])
    assert bound.p99_ms[0] >= exact.p99_ms[0] * 0.99
    if times.size == 1:
        assert bound.p99_ms[0] == pytest.approx(exact.p99_ms[0], rel=0.03)


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_the_bound_is_tight_where_batches_are_one_and_the_model_goes_last(load):
    rate, service = [400.0 * load / 4.0, 600.0 * load / 24.0], [np.array([4.0]), np.array([24.0])]
    found = np.concatenate([simulated(rate, service, last(1), seed)[1] for seed in range(6)])
    parts = [np.quantile(part, P99) for part in np.array_split(found, PARTS)]
    error = 5.0 * np.std(parts, ddof=1) / np.sqrt(PARTS)
    assert bound_turns(rate, service).p99_ms[1] <= 1.05 * (np.mean(parts) + error)


def test_models_that_may_not_settle_have_no_bound():
    bound = bound_turns([100.0, 10.0], [np.array([6.0]), np.array([45.0])])
    assert np.all(np.isinf(bound.p99_ms))
    assert np.all(np.isinf(bound.mean_ms))


def test_a_request_that_is_alone_takes_its_own_time():
    bound = bound_turns([0.001, 0.001], [np.array([5.0, 6.0]), np.array([20.0])])
    assert bound.p99_ms == pytest.approx([5.0, 20.0])
