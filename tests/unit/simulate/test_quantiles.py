from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.simulate.quantiles import BINS, RELATIVE_ERROR, bin_of, edges_ms, quantile_ms

pytestmark = pytest.mark.unit


@given(st.lists(st.floats(1e-3, 1e7), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_no_quantile_is_further_off_than_stated(times, q):
    counts = np.bincount(bin_of(np.array(times)), minlength=BINS)
    exact = np.sort(times)[max(0, math.ceil(q * len(times)) - 1)]
    assert quantile_ms(counts, q) == pytest.approx(exact, rel=RELATIVE_ERROR * 1.001)


def test_bins_lie_between_their_edges():
    times = np.clip(np.random.default_rng(1).lognormal(2, 3, 10_000), 1e-3, 1e7)
    index, edges = bin_of(times), edges_ms()
    assert np.all((edges[index] <= times) & (times < edges[index + 1]))


def test_what_is_out_of_range_is_counted_at_the_ends():
    assert bin_of(np.array([0.0, 1e-9, 1e12])).tolist() == [0, 0, BINS - 1]


def test_nothing_counted_has_no_quantile():
    assert math.isnan(quantile_ms(np.zeros(BINS, np.int64), 0.5))
