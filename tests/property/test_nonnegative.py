"""Non-negative least squares against SciPy's, and the conditions of an optimum (Karush, Kuhn and Tucker)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from controlplane.latency.fitting.points import non_negative_fit


@st.composite
def systems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Columns and a target: random ones, with equal, opposite and empty columns among them."""
    rows, count = draw(st.integers(1, 12)), draw(st.integers(1, 7))
    entry = st.one_of(st.integers(-3, 3).map(float), st.floats(-10.0, 10.0, width=32))
    columns = np.array(
        draw(st.lists(st.lists(entry, min_size=rows, max_size=rows), min_size=count, max_size=count))
    ).T
    if count > 1 and draw(st.booleans()):
        columns[:, -1] = columns[:, 0] * draw(st.sampled_from([-1.0, 0.0, 1.0]))
    return columns, np.array(draw(st.lists(entry, min_size=rows, max_size=rows)))


@settings(max_examples=200, deadline=None)
@given(systems())
def test_fit_is_non_negative_and_no_column_improves_it(system: tuple[np.ndarray, np.ndarray]) -> None:
    columns, target = system
    found = non_negative_fit(columns, target)
    gradient = columns.T @ (target - columns @ found)
    small = 1e-9 * (1.0 + np.abs(columns).max() * np.abs(target).max()) * len(target)
    assert (found >= 0.0).all()
    assert (gradient <= small).all()
    assert np.abs(gradient[found > 0.0]).max(initial=0.0) <= small


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 7), st.integers(0, 30))
def test_fit_equals_scipys_where_the_solution_is_unique(seed: int, count: int, more: int) -> None:
    random = np.random.default_rng(seed)
    columns = random.normal(size=(count + more, count)) + random.uniform(0.0, 2.0)
    target = random.normal(size=count + more)
    assert non_negative_fit(columns, target) == pytest.approx(nnls(columns, target)[0], rel=1e-6, abs=1e-9)
