"""Streaming quantiles: counts in bins of equal relative width, so memory does not grow with the requests.

A bin's index is the exponent and the first 8 bits of the mantissa of a time's float64: 256 bins an octave,
none wider than 0.4 % of its value. A quantile is interpolated within its bin, so it is off by at most 0.4 %
of itself, and by half of that where the bin is evenly filled (DDSketch, VLDB 2019, gives such a guarantee
for any binning of equal relative width).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from controlplane.latency.protocol import FloatArray

RELATIVE_ERROR = 1 / 256
"""No quantile is off by more than this share of its value, between 1 µs and four hours."""
SHIFT = 44
"""A float64's bits shifted right by this leave sign, exponent and 8 bits of the mantissa."""
FIRST = (1023 - 10) << 8
"""The bin of 2^-10 ms, which counts shorter times too."""
BINS = 34 << 8
"""Up to 2^24 ms, four and a half hours; the last bin counts longer times too."""


def edges_ms() -> FloatArray:
    """Return the lower edge of each bin and the upper edge of the last, shape (BINS + 1,)."""
    return ((np.arange(BINS + 1, dtype=np.int64) + FIRST) << SHIFT).view(np.float64)


def quantile_ms(counts: NDArray[np.int64], q: float) -> float:
    """Return the q-quantile of the counts, NaN where all are 0. `counts` has shape (BINS,)."""
    below = np.cumsum(counts)
    if below[-1] == 0:
        return math.nan
    wanted = q * below[-1]
    index = int(np.searchsorted(below, wanted, side="left"))
    edges = edges_ms()
    before = below[index] - counts[index]
    part = (wanted - before) / counts[index]
    return float(edges[index] + part * (edges[index + 1] - edges[index]))
