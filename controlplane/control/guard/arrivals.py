"""The dispersion of a queue's arrivals: the variance of their number in a window over its mean. Pure.

Arrivals in clumps make the clusters of late answers larger by their dispersion, on a server as fast as ever.
Thousands of arrivals show it before dozens of clusters do. Each window is compared with the one before it, so
that a rate that rises over minutes is no dispersion.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence

LEAST_IN_WINDOW = 10.0
"""Arrivals, in the mean, in a window of at least two SLOs, in which a queue builds up and empties."""
PRIOR_WINDOWS = 20.0
MEMORY_WINDOWS = 500.0
LARGEST = 8.0

_UNTIL, _COUNT, _BEFORE, _WINDOWS, _MEAN, _SQUARE = range(6)

FRESH = (0.0, 0.0, -1.0, 0.0, 0.0, 0.0)
"""The end of the window; its arrivals; those of the one before, -1 for none; windows seen; moving means of
the arrivals in a window and of half the squared difference between two."""


def window_s(rate_rps: float, slo_s: float) -> float:
    """Return the length of a window."""
    return max(2.0 * slo_s, LEAST_IN_WINDOW / rate_rps)


def dispersion(counts: Sequence[float]) -> float:
    """Return the dispersion seen, 1 for Poisson arrivals and for none."""
    windows, mean = counts[_WINDOWS], counts[_MEAN]
    if mean <= 0.0:
        return 1.0
    known = windows / (windows + PRIOR_WINDOWS)
    return min(LARGEST, max(1.0, 1.0 + known * (counts[_SQUARE] / mean - 1.0)))


def scan(counts: MutableSequence[float], arrived_s: Sequence[float], length_s: float) -> None:
    """Count arrivals, in the order of their answers. Plain arithmetic, so that the bench compiles it."""
    for i in range(len(arrived_s)):
        if arrived_s[i] >= counts[_UNTIL]:
            if arrived_s[i] >= counts[_UNTIL] + length_s:
                counts[_BEFORE] = -1.0  # the first one, or one after a pause
                counts[_UNTIL] = arrived_s[i] + length_s
            else:
                if counts[_BEFORE] >= 0.0:
                    weight = max(1.0 / (counts[_WINDOWS] + 1.0), 1.0 / MEMORY_WINDOWS)
                    half = 0.5 * (counts[_COUNT] - counts[_BEFORE]) ** 2
                    counts[_MEAN] += weight * (counts[_COUNT] - counts[_MEAN])
                    counts[_SQUARE] += weight * (half - counts[_SQUARE])
                    counts[_WINDOWS] += 1.0
                counts[_BEFORE] = counts[_COUNT]
                counts[_UNTIL] += length_s
            counts[_COUNT] = 0.0
        counts[_COUNT] += 1.0
