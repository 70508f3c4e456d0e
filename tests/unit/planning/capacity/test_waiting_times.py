from __future__ import annotations

import make_waiting_times
import numpy as np
import pytest

from controlplane.latency import queueing
from controlplane.planning.capacity import waiting_times

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("servers", "batch", "shape"), [(1, 1, 0.0), (1, 6, 0.5), (1, 16, 1.0), (2, 4, 0.2), (8, 4, 0.2)]
)
def test_the_table_is_what_the_queue_says(servers: int, batch: int, shape: float) -> None:
    pool, at = waiting_times.POOL_SIZES.index(servers), waiting_times.SHAPES.index(shape)
    row = waiting_times.table()[pool, waiting_times.BATCHES.index(batch), at]
    np.testing.assert_allclose(row, make_waiting_times.row(servers, batch, shape), rtol=2e-3)


@pytest.mark.parametrize("batch", [1, 4, 8])
def test_a_tolerated_slowdown_just_holds(batch: int) -> None:
    full, first = np.array([12.0, 9.0]), np.array([5.0 if batch > 1 else 12.0, 4.0 if batch > 1 else 9.0])
    rate = 0.7 * 1000.0 * batch / 12.0
    one, index = np.array([1]), np.array([waiting_times.BATCHES.index(batch)])
    found = waiting_times.tolerated_slowdown(
        np.array([rate]), np.array([40.0]), full[None], first[None], one, index, np.zeros(1)
    )
    for at in range(2):
        curve = np.linspace(first[at], full[at], batch) * found[0, at]
        assert queueing.solve(rate, curve, batch).p99_ms[0] == pytest.approx(40.0, rel=0.03)
