"""Solution of one batch queue: the arrays for the kernels, and their results.

Every point is the mean, median and upper quantile of the sojourn time. `rate` is per ms and `service[k - 1]`
is t(k) in ms for k = 1..b.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from controlplane.latency.protocol import FloatArray, IntArray
from controlplane.latency.queueing import kernel as kernels

Point = tuple[float, float, float]

OVERLOADED: Point = (math.inf, math.inf, math.inf)
SATURATED = 0.999
"""From this utilisation on a queue counts as overloaded."""
LONGEST = 16384
"""The largest number of chain states; only a utilisation above 0.999 needs more."""
POOL = kernels.SETTLED + 32768
"""Simulated arrivals of a pool."""
CONSTANT = kernels.SETTLED + 2560
"""Arrivals of a constant stream."""
BURSTY = kernels.SETTLED + 262144
"""Simulated arrivals of a bursty stream: its clusters are fewer than its requests."""
FAIR, UNFAIR = 0.75, 0.85
"""Up to the first load a simulation is not corrected, from the second on fully."""
STEP = 43
"""Bits of a time that its bin drops: 512 bins an octave, each 0.2 % wide at most."""
LOWEST = int(np.array([2.0**-12]).view(np.int64)[0]) >> STEP
"""Bins reach from 2^-12 to 2^16 full batches."""
BINS = 28 << (52 - STEP)
LINE = 1024
"""The least capacity of a server's queue; a queue that grows beyond is overloaded."""


@dataclass(frozen=True, slots=True)
class Queues:
    """N queues: `service` (N, B), the others (N,).

    `dispersion`: 0 for constant arrivals, 1 for Poisson ones, above for bursty ones. `gaps`: by dispersion,
    the arrival gaps with mean 1 of what is simulated; none for a single server with Poisson arrivals.
    """

    service: FloatArray
    batch: IntArray
    servers: IntArray
    dispersion: FloatArray
    quantile: float
    gaps: Mapping[float, FloatArray]

    def point(self, n: int, rate: float) -> Point:
        """Return the sojourn times in queue `n` at this rate."""
        b, servers = int(self.batch[n]), int(self.servers[n])
        service, dispersion = self.service[n, :b], float(self.dispersion[n])
        if dispersion != 1.0:
            return stream_point(rate, service, servers, self.quantile, self.gaps[dispersion])
        if servers == 1:
            return poisson_point(rate, service, self.quantile)
        return pool_point(rate, service, servers, self.quantile, self.gaps[dispersion])


def solve_all(rate: FloatArray, queues: Queues) -> FloatArray:
    """Return the sojourn times in every queue, shape (N, 3)."""
    answers = np.empty((rate.size, 3))
    for n in range(rate.size):
        answers[n] = queues.point(n, float(rate[n]))
    return answers


def largest_rates(limit: FloatArray, queues: Queues) -> FloatArray:
    """Return the largest rate, per ms, with a quantile of at most `limit`, to a 4096th of the capacity."""
    answers = np.zeros(limit.size)
    for n in range(limit.size):
        if queues.service[n, 0] > limit[n]:
            continue
        b = int(queues.batch[n])
        low, high = 0.0, float(queues.servers[n] * b / queues.service[n, b - 1])
        for _ in range(12):
            middle = 0.5 * (low + high)
            if queues.point(n, middle)[2] <= limit[n]:
                low = middle
            else:
                high = middle
        answers[n] = low
    return answers


def poisson_point(rate: float, service: FloatArray, quantile: float) -> Point:
    """Solve one server with Poisson arrivals exactly: the embedded chain, then a tagged request."""
    b = service.size
    if not rate > 0.0:
        return _idle(service)
    full_ms, longest_ms = float(service[-1]), float(service.max())
    if rate * full_ms >= SATURATED * b:
        return OVERLOADED
    small, full, idle = solve_chain(np.concatenate(([0.0], rate * service)))
    cells = min(max(16, math.ceil(4.0 * full_ms / float(service.min()) - 1e-9)), 128)
    cell = full_ms / cells
    widest = int(rate * longest_ms + 8.0 * math.sqrt(rate * longest_ms) + 24.0)
    batches = (full.size + widest) // b + 1
    table = np.zeros((batches * cells + math.ceil(longest_ms / cell) + 1, b))
    ahead = np.zeros((2, batches * b))
    kernels.places(rate, service, b, cells, small, full, np.empty(widest), ahead, table)

    slope = np.zeros(kernels.FINE * (len(table) + math.ceil(longest_ms / cell) + 2))
    scratch = np.empty((2, b + 1))
    total, weighted = kernels.sojourns(rate, service, b, cell, table, scratch[0], scratch[1], slope)
    alone = idle / rate  # while the server is idle: arrivals then start a batch of one
    alone_ms = float(service[0])
    total, weighted = total + alone, weighted + alone * alone_ms
    # The cut tail of the chain would have waited longest, with full batches.
    whole = total + max(1.0 - float(small.sum()) - float(full.sum()), 0.0) * full_ms
    below = np.cumsum(np.cumsum(slope))
    bin_ms = cell / kernels.FINE
    median, upper = (_quantile(below, bin_ms, alone, alone_ms, part * whole) for part in (0.5, quantile))
    return weighted / total, median, upper


def solve_chain(mean: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """Return the stationary probabilities of the number waiting at a batch start.

    `mean[k]` = λ t(k), the arrivals expected during a batch of k, for k = 1..b; mean[b] < b. Returns
    p(0..b-1), p(b..), and the probability that a batch leaves no request behind and the server idles.
    """
    b = mean.size - 1
    widest = float(mean.max())
    length = max(2 * b, int(widest + 8.0 * math.sqrt(widest) + 20.0)) + 1
    down = np.zeros(b + 1)
    kernels.falls(float(mean[b]) / b, b, np.zeros(b + 2), down)
    small, full = np.zeros(b), np.empty(LONGEST)
    risen, matrix = np.zeros((b + 3, length)), np.empty((b, b))
    kept, idle = kernels.chain(mean, b, down, np.empty(length), risen, matrix, small, full)
    return small, full[:kept], idle


def pool_point(rate: float, service: FloatArray, servers: int, quantile: float, gaps: FloatArray) -> Point:
    """Solve a pool: a simulation on a fixed stream, above FAIR corrected by an exact distribution."""
    b = service.size
    if not rate > 0.0:
        return _idle(service)
    # In units of a full batch, which the bins suppose.
    unit = float(service[-1])
    load = rate * unit
    if load >= SATURATED * b * servers:
        return OVERLOADED
    own = service / unit
    ran = _run(gaps, load, own, servers, quantile)
    if ran is None:
        return OVERLOADED
    part = min((load / (b * servers) - FAIR) / (UNFAIR - FAIR), 1.0)
    if part > 0.0:
        quick = own / servers
        sojourn = np.empty(gaps.size)
        seen = kernels.run_one(np.cumsum(gaps) * (1.0 / load), quick, b, sojourn)
        ran = ran + part * (
            np.array(poisson_point(load, quick, quantile)) - _summary(sojourn[:seen], quantile)
        )
    return _point(np.maximum(ran, own.min()) * unit)


def stream_point(rate: float, service: FloatArray, servers: int, quantile: float, gaps: FloatArray) -> Point:
    """As `pool_point`, for arrivals that are not Poisson: the stream itself is run."""
    if not rate > 0.0:
        return _idle(service)
    unit = float(service[-1])
    if rate * unit >= SATURATED * service.size * servers:
        return OVERLOADED
    ran = _run(gaps, rate * unit, service / unit, servers, quantile)
    return OVERLOADED if ran is None else _point(ran * unit)


def _run(
    gaps: FloatArray, load: float, service: FloatArray, servers: int, quantile: float
) -> FloatArray | None:
    """Run a pool; None where a line grew too long."""
    width = LINE
    while width < 8 * service.size:
        width *= 2
    line, state = np.empty((servers, width)), np.empty((2, servers))
    place, sojourn = np.zeros((3, servers), dtype=np.int64), np.empty(gaps.size)
    seen = kernels.run_pool(gaps, load, service, service.size, line, state, place, sojourn)
    return None if seen < 0 else _summary(sojourn[:seen], quantile)


def _summary(sojourn: FloatArray, quantile: float) -> FloatArray:
    """Mean, median and upper quantile of what was run: the mean of the bin where each lies."""
    bins = np.clip((sojourn.view(np.int64) >> STEP) - LOWEST, 0, BINS - 1)
    counts, sums = np.bincount(bins), np.bincount(bins, weights=sojourn)
    wanted = [math.ceil(part * sojourn.size) for part in (0.5, quantile)]
    found = np.searchsorted(np.cumsum(counts), wanted)
    return np.concatenate(([sums.sum() / sojourn.size], sums[found] / counts[found]))


def _quantile(below: FloatArray, bin_ms: float, atom: float, atom_ms: float, wanted: float) -> float:
    """Where the mass below, up to the end of each bin, and one atom reach `wanted`; inf beyond the table."""
    at = int(atom_ms / bin_ms)
    before = float(below[at - 1]) if at else 0.0
    until_atom = before + (float(below[at]) - before) * (atom_ms / bin_ms - at)
    if until_atom < wanted <= until_atom + atom:
        return atom_ms
    if wanted > until_atom:
        wanted -= atom
    i = int(np.searchsorted(below, wanted))
    if i == below.size:
        return math.inf
    start = float(below[i - 1]) if i else 0.0
    return bin_ms * (i + (wanted - start) / (float(below[i]) - start))


def _idle(service: FloatArray) -> Point:
    return (float(service[0]),) * 3


def _point(times: FloatArray) -> Point:
    mean, median, upper = times.tolist()
    return mean, median, upper
