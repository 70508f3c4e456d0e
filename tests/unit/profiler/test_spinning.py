"""Which models waste their quota; points (percent, batch, ms, rate) as measured on a two-core host."""

from __future__ import annotations

import pytest

from controlplane.domain.device import ShareKind
from controlplane.domain.profile import Environment, Measurement, Profile
from controlplane.profiler.spinning import spinning

pytestmark = pytest.mark.unit

Rows = tuple[tuple[float, int, float, float], ...]

ONE_THREAD: Rows = (
    (20, 1, 25.73, 37.6),
    (20, 8, 59.81, 134.3),
    (100, 1, 4.45, 220.8),
    (100, 8, 12.33, 641.3),
)
"""alexnet_tiny as it is."""
ALEXNET: Rows = ((20, 1, 74.9, 11.2), (20, 8, 151.16, 52.8), (100, 1, 9.7, 113.8), (100, 8, 18.25, 394.5))
RESNET: Rows = ((20, 1, 71.5, 13.8), (20, 8, 230.37, 30.8), (100, 1, 5.25, 188.4), (100, 8, 28.6, 285.0))
TRANSFORMER: Rows = ((20, 1, 55.5, 14.8), (20, 8, 181.45, 43.1), (100, 1, 4.3, 220.5), (100, 8, 20.39, 371.9))
"""The sample models on onnxruntime's default threads."""


def profile(rows: Rows, kind: ShareKind = ShareKind.CPU_QUOTA) -> Profile:
    points = tuple(Measurement(p, b, ms, capacity_rps=rate) for p, b, ms, rate in rows)
    return Profile("m", "cpu", kind, Environment(), points)


@pytest.mark.parametrize("rows", [ALEXNET, RESNET, TRANSFORMER])
def test_threads_that_spin_are_found(rows: Rows) -> None:
    found = spinning(profile(rows))
    assert found is not None
    assert (found.percent, found.of_percent) == (20, 100)
    assert found.cost > 1.7
    assert found.slowdown > 7


def test_one_thread_that_never_spins_is_not() -> None:
    assert spinning(profile(ONE_THREAD)) is None


def test_the_slowdown_is_the_worst_of_all_batches() -> None:
    found = spinning(profile(TRANSFORMER))
    assert found is not None
    assert found.slowdown == pytest.approx(55.5 / 4.3)
    assert found.cost == pytest.approx(2.27, abs=0.01)


def test_shares_that_cannot_be_compared_say_nothing() -> None:
    assert spinning(profile(ALEXNET, ShareKind.MPS_PERCENT)) is None
    assert spinning(profile(ALEXNET[:2])) is None
    assert spinning(profile((ALEXNET[0], ALEXNET[3]))) is None
