"""The law of a model's solo time, fitted on the eleven points of a profile."""

import numpy as np
import pytest

from controlplane.domain.device import MPS_GRID
from controlplane.latency.fitting.points import Points
from controlplane.latency.fitting.surface import Surface, left_out_scores
from controlplane.latency.fitting.trend import Trend
from controlplane.latency.protocol import FloatArray
from controlplane.profiler.sweep import default_points

PERCENT, BATCH = (g.ravel() for g in np.meshgrid(np.arange(10.0, 101.0, 5.0), [1.0, 2.0, 4.0, 8.0]))


def overlapping(percent: FloatArray, batch: FloatArray) -> FloatArray:
    """The host launches ahead: 20 ms, unless the GPU takes longer."""
    return np.maximum(20.0, (120.0 * batch + 60.0) / percent)


def one_after_the_other(percent: FloatArray, batch: FloatArray) -> FloatArray:
    return 20.0 + (120.0 * batch + 60.0) / percent


def profiled(law: FloatArray) -> Points:
    """The points of a profile with these times at PERCENT and BATCH."""
    at = {(p, b): t for p, b, t in zip(PERCENT.tolist(), BATCH.tolist(), law.tolist(), strict=True)}
    chosen = [(p.percent, float(p.batch)) for p in default_points(MPS_GRID, 8)]
    return Points.of(*zip(*chosen, strict=True), [at[one] for one in chosen])


@pytest.mark.parametrize("law", [overlapping, one_after_the_other])
def test_the_floor_of_the_host_is_found_however_it_overlaps(law: object) -> None:
    assert callable(law)
    truth = law(PERCENT, BATCH)
    error = np.abs(Trend.fit(profiled(truth)).at(PERCENT, BATCH) / truth - 1.0)
    assert error.mean() < 0.02
    assert error.max() < 0.1


def test_a_batch_with_kernels_of_its_own_is_followed_at_every_share() -> None:
    work = np.where(BATCH == 2.0, 1.3, 1.0) * (100.0 * BATCH + 100.0)
    truth = work / PERCENT
    surface = Surface.fit(profiled(truth), 8)
    of_two = BATCH == 2.0
    found = surface.time_ms[1, np.searchsorted(surface.percent, PERCENT[of_two])]
    assert found == pytest.approx(truth[of_two], rel=0.1)


def test_the_noise_of_points_shows_in_their_scores() -> None:
    calm = profiled(overlapping(PERCENT, BATCH))
    noise = np.exp(np.random.default_rng(5).normal(0.0, 0.1, calm.time_ms.size))
    noisy = Points(calm.percent, calm.batch, calm.time_ms * noise)
    quiet, loud = (np.sqrt(np.mean(left_out_scores(p)[0] ** 2)) for p in (calm, noisy))
    assert quiet < 2.0 < loud
