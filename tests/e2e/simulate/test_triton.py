"""A few seconds of what `benchmarks/times/simulate.py --triton` prints in full."""

from collections.abc import Iterator

import pytest
from bare_triton import BareTriton
from sleeping_triton import Overhead, Served, compare, overhead, sleeping

RUNS = 6
"""The host's hiccups only ever slow the real one down: of so many runs one has to be calm."""

GREEDY, DELAYED, TWO = Served(4, 1, 0), Served(4, 1, 5000), Served(8, 2, 0)


@pytest.fixture(scope="module")
def triton():
    with sleeping([GREEDY, DELAYED, TWO]) as running:
        yield running, overhead(running, GREEDY)


def runs(triton: tuple[BareTriton, Overhead]) -> Iterator[tuple[BareTriton, Overhead, int]]:
    """Each with what Triton adds, measured anew after one that was not calm, and a seed."""
    running, added = triton
    for seed in range(RUNS):
        yield running, added, seed
        added = overhead(running, GREEDY)


@pytest.mark.parametrize(
    ("model", "load"),
    [
        (GREEDY, 0.75),
        pytest.param(DELAYED, 0.5, marks=pytest.mark.soak),
        pytest.param(TWO, 0.6, marks=pytest.mark.soak),
    ],
)
def test_the_simulator_is_the_real_triton(triton, model, load):
    seen = []
    for running, added, seed in runs(triton):
        seen.append(compare(running, model, added, load, 6.0, seed))
        (p50, p99), (host50, host99) = seen[-1].errors_percent, seen[-1].host_percent
        if abs(p50) <= 8.0 + host50 and abs(p99) <= 15.0 + host99:
            return
    raise AssertionError(seen)


def test_a_delay_costs_the_real_triton_what_it_costs_the_simulator(triton):
    seen = []
    for running, added, seed in runs(triton):
        greedy, delayed = (compare(running, model, added, 0.7, 6.0, seed) for model in (GREEDY, DELAYED))
        real_ms, ours_ms = (
            getattr(delayed, which)[0] - getattr(greedy, which)[0] for which in ("measured", "simulated")
        )
        assert ours_ms > 3.0, "batches of four fill seldom in 5 ms"
        seen.append((real_ms, ours_ms))
        if abs(real_ms - ours_ms) <= 0.5 * ours_ms + greedy.host_ms[0] + delayed.host_ms[0]:
            return
    raise AssertionError(seen)
