import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.simulate.result import BINS, RELATIVE_ERROR, edges_ms, quantile_ms


@given(st.lists(st.floats(1e-3, 1e7), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_no_quantile_is_further_off_than_stated(times, q):
    counts, _ = np.histogram(times, edges_ms())
    exact = np.sort(times)[max(0, math.ceil(q * len(times)) - 1)]
    assert quantile_ms(counts, q) == pytest.approx(exact, rel=RELATIVE_ERROR * 1.001)


def test_nothing_counted_has_no_quantile():
    assert math.isnan(quantile_ms(np.zeros(BINS, np.int64), 0.5))
