"""The look-ahead's queue against the exact one."""

import math
import random

import pytest

from controlplane.control.guard import baseline
from controlplane.control.guard.baseline import (
    EMPTY,
    P99_STEP,
    SHARES,
    copied,
    exceeds,
    learn_block,
    p99_s,
    rounded_p99_s,
)
from controlplane.latency.queueing.batch_queue import solve


@pytest.mark.parametrize("load", [0.4, 0.6, 0.75, 0.85])
@pytest.mark.parametrize("batch", [1, 4, 8])
def test_a_p99_is_within_eight_per_cent_of_the_exact_one(batch: int, load: float) -> None:
    times_s = [load / 100.0 * (0.5 * batch + 0.5 * size) for size in range(1, batch + 1)]
    exact_ms = float(solve([100.0], [[1000.0 * s for s in times_s]], [batch]).p99_ms[0])
    assert 1000.0 * p99_s(100.0, times_s) == pytest.approx(exact_ms, rel=0.08)


def test_a_queue_without_spare_capacity_has_no_p99() -> None:
    assert p99_s(100.0, [0.010]) == math.inf
    assert p99_s(100.0, [0.010, 0.011]) < math.inf


def test_a_queue_without_traffic_takes_the_time_of_one() -> None:
    assert p99_s(0.0, [0.010, 0.015]) == 0.010


def test_batches_that_vary_make_the_p99_longer_at_the_same_mean() -> None:
    times_s = (0.004, 0.006, 0.008, 0.01)
    even, varied = p99_s(120.0, times_s), p99_s(120.0, times_s, (1.5, 3.0))
    assert even < varied < 2.0 * even


@pytest.mark.parametrize("rate_rps", [0.3, 97.0])
@pytest.mark.parametrize("slowdown", [0.9, 1.0, 1.47])
def test_a_rounded_p99_is_that_of_a_rate_and_times_nearby(rate_rps: float, slowdown: float) -> None:
    usual_s = (0.004, 0.006, 0.008, 0.01)
    found = rounded_p99_s(rate_rps, [slowdown * usual for usual in usual_s], (1.2, 1.5))
    off = math.sqrt(P99_STEP)
    low, high = (
        p99_s(rate_rps * by, [by * slowdown * usual for usual in usual_s], (1.2, 1.5))
        for by in (1.0 / off, off)
    )
    assert 0.98 * low <= found <= 1.02 * high


def test_a_queue_far_below_its_limit_is_computed_a_few_times_whatever_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chance, computed = random.Random(4), list[float]()
    monkeypatch.setattr(baseline, "p99_s", lambda *of: computed.append(of[0]) or p99_s(*of))
    baseline._kept_p99_s.cache_clear()
    for _ in range(200):
        rate_rps, slower = 43.0 * chance.uniform(0.95, 1.05), chance.uniform(0.95, 1.05)
        times_s = [slower * time_s for time_s in (0.0051, 0.0072)]
        assert not exceeds(1.0, rate_rps, times_s, (1.2, 1.5))
    assert len(computed) <= 8
    for slo_s in (0.001, 0.7 * rounded_p99_s(43.0, (0.0051, 0.0072), (1.2, 1.5))):
        assert exceeds(slo_s, 43.0, (0.0051, 0.0072), (1.2, 1.5))


def test_a_tenth_and_a_hundredth_of_the_blocks_exceed_the_thresholds() -> None:
    chance, known = random.Random(1), copied(EMPTY)
    ratios = [chance.lognormvariate(0.0, 0.2) for _ in range(5000)]
    for ratio in ratios:
        known = known._replace(tail=learn_block(known, ratio, estimated=False, settled=True))
    for threshold, share in zip((known.tail.tenth, known.tail.hundredth), SHARES, strict=True):
        assert sum(ratio > threshold for ratio in ratios) / len(ratios) == pytest.approx(share, rel=0.5)
