"""Queue-correlated traffic that keeps its P99 raises no alarm; traffic of a slower server does."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.control.guard import late_answers
from controlplane.control.guard.promise import Promise
from controlplane.domain.observation import Answer

ROOT = Path(__file__).parents[4]


def served(requests: int, load: float, *, rate_rps: float, seed: int) -> list[tuple[float, float]]:
    """(end, sojourn) in seconds of a queue with Poisson arrivals and constant service (Lindley)."""
    draw = random.Random(seed)
    service_s = load / rate_rps
    arrived = free = 0.0
    ends = []
    for _ in range(requests):
        arrived += draw.expovariate(rate_rps)
        free = max(arrived, free) + service_s
        ends.append((free, free - arrived))
    return ends


def alarms(promise: Promise, ends: list[tuple[float, float]]) -> int:
    count = 0
    evidence = late_answers.begin(promise)
    for start in range(0, len(ends), 100):
        answers = [Answer(end, 1000.0 * took, False, "w", "s") for end, took in ends[start : start + 100]]
        evidence, broken = late_answers.weigh(evidence, promise, answers)
        if broken:
            count += 1
            evidence = late_answers.restart(evidence)
    return count


@pytest.mark.parametrize("load", [0.5, 0.7, 0.8])
def test_a_queue_at_its_slo_is_left_alone_and_a_slower_one_is_not(load: float) -> None:
    kept = served(100_000, load, rate_rps=1000.0, seed=1)
    p99_ms = 1000.0 * sorted(took for _, took in kept)[99_000]
    promise = Promise("w", p99_ms, 1000.0)
    assert alarms(promise, kept) == 0
    assert alarms(promise, served(20_000, load * 1.25, rate_rps=1000.0, seed=2)) > 0


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_false_alarms_are_rarer_than_one_in_three_workload_weeks() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "benchmarks.serving.guard", "--full"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=3500,
        check=False,
    )
    assert told.returncode == 0, told.stdout
