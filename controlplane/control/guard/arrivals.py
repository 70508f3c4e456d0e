"""The dispersion of a queue's arrivals: the variance of their number in a window over its mean. Pure.

Arrivals in clumps make the clusters of late answers larger by their dispersion, on a server as fast as ever.
Thousands of arrivals show it before dozens of clusters do. Each window is compared with the one before it, so
that a rate that rises over minutes is no dispersion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

LEAST_IN_WINDOW = 10.0
"""Arrivals, in the mean, in a window of at least two SLOs, in which a queue builds up and empties."""
PRIOR_WINDOWS = 20.0
MEMORY_WINDOWS = 500.0
LARGEST = 8.0


class Arrivals(NamedTuple):
    """The arrivals in the window that ends at `until_s`, and in the windows before it.

    `before` are those of the last one, -1 for none. `mean` is the moving mean of the arrivals in a window,
    `half_square` that of half the squared difference between two.
    """

    until_s: float = 0.0
    arrived: float = 0.0
    before: float = -1.0
    windows: float = 0.0
    mean: float = 0.0
    half_square: float = 0.0


def window_s(rate_rps: float, slo_s: float) -> float:
    """Return the length of a window."""
    return max(2.0 * slo_s, LEAST_IN_WINDOW / rate_rps)


def dispersion(seen: Arrivals) -> float:
    """Return the dispersion seen, 1 for Poisson arrivals and for none."""
    if seen.mean <= 0.0:
        return 1.0
    known = seen.windows / (seen.windows + PRIOR_WINDOWS)
    return min(LARGEST, max(1.0, 1.0 + known * (seen.half_square / seen.mean - 1.0)))


def scan(seen: Arrivals, arrived_s: Sequence[float], length_s: float) -> Arrivals:
    """Count arrivals, in the order of their answers. Plain arithmetic, so that the bench compiles it."""
    until_s, count, before, windows, mean, half_square = seen
    for i in range(len(arrived_s)):
        if arrived_s[i] >= until_s:
            if arrived_s[i] >= until_s + length_s:
                before = -1.0  # the first one, or one after a pause
                until_s = arrived_s[i] + length_s
            else:
                if before >= 0.0:
                    weight = max(1.0 / (windows + 1.0), 1.0 / MEMORY_WINDOWS)
                    mean += weight * (count - mean)
                    half_square += weight * (0.5 * (count - before) ** 2 - half_square)
                    windows += 1.0
                before = count
                until_s += length_s
            count = 0.0
        count += 1.0
    return Arrivals(until_s, count, before, windows, mean, half_square)
