"""Late binding: Paella's figures in simulated time, and its order at the gateway with a real Triton.

.venv/bin/python tests/bench/late_binding.py paella      a minute: Figs 2, 12 and 13 in simulated time

Exits 1 where an aim is missed.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from gpu_kernels import Job, Order, ShortestRemaining, Streams, late, naive, run

# Fig 2: a GTX 1660 SUPER, its hardware queues, and jobs of equal kernels of one slot.
FIG2_JOBS, FIG2_KERNELS, FIG2_KERNEL_US = 10_000, 8, 300.0
FIG2_QUEUES, FIG2_SLOTS = 32, 176
FIG2_P99_US, FIG2_STEP_RPS, FIG2_STEPS = 4_800.0, 250, 320
FIG2_DISPATCH_US = (0.0, 4.25)
FIG2_PAPER = {0.0: None, 4.25: 2.2}
FIG2_AIMS = {0.0: (5.0, 6.0), 4.25: (2.1, 2.4)}

# Figs 12 and 13: ResNet-18 against InceptionV3 on a T4; kernels need between a fifth and all of its slots.
SLOTS, JOBS = 40, 3_000
SHORT, LONG = 0, 1
KERNELS = {SHORT: (25, 1_580.0), LONG: (125, 31_200.0)}
"""A job's kernels, and microseconds in all."""
LONG_PART = 0.048
DEMANDS = (8, 16, 24, 32, 40)
OUTSTANDING = (119, 6)
SIGMA = 1.5
SEEDS = range(1, 6)
RATES = (50, 100, 200)
STREAMS_TO_SRPT = (1.2, 3.9)
"""The paper's Fig 12 shows up to 3."""
THRESHOLDS = (0.0, 1.0, 10.0, 30.0, 100.0, 1_000.0, 1e6)
FIG13_RPS, FIG13_NOISE = 200, 1.005


def p99(latencies: Sequence[float]) -> float:
    return float(np.quantile(latencies, 0.99))


def highest_rate(latencies: Callable[[Sequence[float]], list[float]]) -> int:
    """The highest rate of even arrivals at which P99 is within Fig 2's bound."""
    held, missed = 0, FIG2_STEPS
    while missed - held > 1:
        steps = (held + missed) // 2
        gap_us = 1e6 / (steps * FIG2_STEP_RPS)
        fits = p99(latencies([number * gap_us for number in range(FIG2_JOBS)])) <= FIG2_P99_US
        held, missed = (steps, missed) if fits else (held, steps)
    return held * FIG2_STEP_RPS


def fig2() -> bool:
    size = {"kernels": FIG2_KERNELS, "kernel_us": FIG2_KERNEL_US}
    at_once = highest_rate(lambda at: naive(at, queues=FIG2_QUEUES, **size))
    table = Table(title="Fig 2: highest rate with P99 up to 4.8 ms, jobs/s", title_justify="left")
    for name in ("dispatch, us a kernel", "all kernels at once", "late", "ratio", "paper", ""):
        table.add_column(name, justify="right")
    good = True
    for us in FIG2_DISPATCH_US:
        bound = highest_rate(lambda at, us=us: late(at, slots=FIG2_SLOTS, dispatch_us=us, **size))
        low, high = FIG2_AIMS[us]
        held = low <= bound / at_once <= high
        paper = FIG2_PAPER[us]
        table.add_row(
            f"{us:g}",
            str(at_once),
            str(bound),
            f"{bound / at_once:.2f}",
            "-" if paper is None else f"{paper:g}",
            "" if held else "MISSED",
        )
        good &= held
    Console(width=120).print(table)
    return good


def jobs(rate: float, seed: int) -> list[Job]:
    """Short and long jobs with lognormal gaps."""
    random = np.random.default_rng(seed)
    gaps = random.lognormal(-(SIGMA**2) / 2, SIGMA, JOBS) * 1e6 / rate
    found = []
    for number, at in enumerate(np.cumsum(gaps)):
        kind = LONG if random.random() < LONG_PART else SHORT
        kernels, us = KERNELS[kind]
        demands = tuple(int(d) for d in random.choice(DEMANDS, kernels))
        found.append(Job(number, kind, float(at), us / kernels, demands))
    return found


def ran(rate: float, seed: int, order: Order) -> tuple[list[float], list[float]]:
    """Latencies in ms of the short and of the long jobs."""
    given = jobs(rate, seed)
    latencies = run(given, order, slots=SLOTS, outstanding=OUTSTANDING)
    short, long = ([latencies[j.number] / 1e3 for j in given if j.kind == k] for k in (SHORT, LONG))
    return short, long


def fig12() -> bool:
    ways: dict[str, Callable[[], Order]] = {
        "one stream": lambda: Streams(1),
        "32 streams": lambda: Streams(32),
        "SRPT": lambda: ShortestRemaining(2),
    }
    table = Table(
        title=f"Fig 12: P99 of short jobs in ms, sigma {SIGMA:g}, medians of {len(SEEDS)} seeds",
        title_justify="left",
    )
    for name in ("jobs/s", *ways, "streams / SRPT", ""):
        table.add_column(name, justify="right")
    good = True
    for rate in RATES:
        one, streams, srpt = (
            float(np.median([p99(ran(rate, seed, way())[0]) for seed in SEEDS])) for way in ways.values()
        )
        low, high = STREAMS_TO_SRPT
        held = srpt < streams < one and low <= streams / srpt <= high
        row = (str(rate), *(f"{ms:.1f}" for ms in (one, streams, srpt)), f"{streams / srpt:.2f}")
        table.add_row(*row, "" if held else "MISSED")
        good &= held
    Console(width=120).print(table)
    return good


def fig13() -> bool:
    """Mean latencies over the threshold: short ones never rise, long ones never fall, but for noise."""
    table = Table(title=f"Fig 13: mean latencies in ms at {FIG13_RPS} jobs/s", title_justify="left")
    for name in ("threshold", "short", "long"):
        table.add_column(name, justify="right")
    means = []
    for threshold in (*THRESHOLDS, math.inf):
        runs = [ran(FIG13_RPS, seed, ShortestRemaining(2, threshold=threshold)) for seed in SEEDS]
        means.append(tuple(float(np.mean([np.mean(one[kind]) for one in runs])) for kind in (SHORT, LONG)))
        name = "none (SRPT)" if math.isinf(threshold) else f"{threshold:g}"
        table.add_row(name, *(f"{ms:.2f}" for ms in means[-1]))
    Console(width=120).print(table)
    ordered = all(FIG13_NOISE * a[0] >= b[0] and a[1] <= FIG13_NOISE * b[1] for a, b in pairwise(means))
    good = ordered and means[-1] == means[-2]
    if not good:
        print("MISSED: the shape of Fig 13")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["paella"])
    parser.parse_args()
    return 0 if all([fig2(), fig12(), fig13()]) else 1


if __name__ == "__main__":
    sys.exit(main())
