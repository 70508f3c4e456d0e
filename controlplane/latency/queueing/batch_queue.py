"""Sojourn times of requests in a partition: Triton's greedy batcher as a batch-service queue.

A server (a model instance) that becomes free takes the waiting requests, at most `batch`; an idle one takes
an arrival at once, as a batch of one. That is Triton with max_queue_delay 0. A batch of k takes t(k). One
server is solved exactly, by the chain embedded at batch starts.

Several servers are a pool behind HAProxy's `leastconn`: on arrival each request goes to the server with the
fewest in flight (of equals to the one that has had so few for the longest time), and waits there. It is
solved by a short simulation (see `batch_queue`), within some 2 % at P99, 4 % above load 0.85.

Bursty arrivals are a renewal process with gamma gaps. The index of dispersion of a renewal process, the
variance of a count over its mean, tends to the squared coefficient of variation of a gap (Cox and Lewis 1966,
ch. 4), so gaps of the shape 1 / dispersion have the dispersion that was seen. They are simulated as well.

    times = solve(rate_rps=[300, 600], service_ms=[4, 5, 6, 7], batch=4)
    times.p99_ms           # array of 2

Times run from the arrival to the end of the batch; the caller adds the time spent elsewhere (network, front
end). Inside, times and rates are per ms and a point is the mean and P99 of the sojourn time.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import ArrayLike

from controlplane.domain.errors import InputError
from controlplane.domain.units import MILLIS_PER_SECOND
from controlplane.latency.protocol import FloatArray
from controlplane.latency.queueing import kernel as kernels
from controlplane.latency.queueing.turns import P99, SojournTimes

Point = tuple[float, float]

OVERLOADED: Point = (math.inf, math.inf)
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
STREAM = 86
"""A seed whose short simulations are close to long ones: among the best of 1,500 on 60 pools."""
MARGIN = 1.2
"""How much burstier a simulated stream is than asked for: its length shows a P99 up to 15 % too low."""


def solve(
    rate_rps: ArrayLike,
    service_ms: ArrayLike,
    batch: ArrayLike,
    servers: ArrayLike = 1,
    dispersion: ArrayLike = 1.0,
) -> SojournTimes:
    """Return mean and P99 of the sojourn time of N queues; infinite where they are overloaded.

    rate_rps: (N,), inferences per second, for a pool into all its servers together.
    service_ms: (N, B) or (B,), t(k) for k = 1..B; columns beyond a row's batch are ignored.
    batch: (N,), the largest batch a server takes, 1..B.
    servers: (N,), the number of servers, each with its own queue.
    dispersion: (N,), of the arrivals: 0 for constant ones, 1 for Poisson ones, above for bursty ones.
    Scalars and arrays of one row are broadcast. Raises InputError naming the field.
    """
    service = np.atleast_2d(np.asarray(service_ms, dtype=np.float64))
    rates, batches, pools, dispersions, _ = np.broadcast_arrays(
        np.atleast_1d(np.asarray(rate_rps, dtype=np.float64)),
        np.atleast_1d(np.asarray(batch, dtype=np.int64)),
        np.atleast_1d(np.asarray(servers, dtype=np.int64)),
        np.atleast_1d(np.asarray(dispersion, dtype=np.float64)),
        service[:, 0],
    )
    if not np.all(np.isfinite(rates) & (rates >= 0)):
        raise InputError("must be finite and not negative", field="rate_rps")
    if np.any((batches < 1) | (batches > service.shape[1])):
        raise InputError(f"must be 1 to {service.shape[1]}, the batches service_ms covers", field="batch")
    if np.any(pools < 1):
        raise InputError("must be at least 1", field="servers")
    if not np.all((dispersions == 0.0) | (dispersions >= 1.0)):
        raise InputError("must be 0 (constant arrivals) or at least 1", field="dispersion")
    service = np.broadcast_to(service, (rates.size, service.shape[1]))
    used = np.arange(1, service.shape[1] + 1) <= batches[:, None]
    if not np.all(np.isfinite(service) & (service > 0) | ~used):
        raise InputError("must be finite and above 0 up to the batch", field="service_ms")
    service = np.array(service, order="C")  # kernels are compiled again for another order
    asked = ((rates / MILLIS_PER_SECOND).tolist(), service, batches.tolist(), pools.tolist())
    rows = zip(*asked, dispersions.tolist(), strict=True)
    points = np.array([_point(rate, own[:b], *more) for rate, own, b, *more in rows]).reshape(rates.size, 2)
    return SojournTimes(points[:, 0], points[:, 1])


def _point(rate: float, service: FloatArray, servers: int, dispersion: float) -> Point:
    """The sojourn times in one queue."""
    if not rate > 0.0:
        return (float(service[0]),) * 2
    if rate * float(service[-1]) >= SATURATED * service.size * servers:
        return OVERLOADED
    if dispersion == 1.0 and servers == 1:
        return _poisson_point(rate, service)
    return _simulated_point(rate, service, servers, dispersion)


@functools.lru_cache(maxsize=32)
def _stream(dispersion: float) -> FloatArray:
    """The gaps of a simulation: always the same ones, so that results repeat and can be compared."""
    if dispersion == 0.0:
        return np.ones(CONSTANT)
    random = np.random.default_rng(STREAM)
    if dispersion == 1.0:
        return random.exponential(1.0, POOL)
    gaps = random.standard_gamma(1.0 / (dispersion * MARGIN), BURSTY)
    return np.asarray(gaps / gaps.mean())


def _poisson_point(rate: float, service: FloatArray) -> Point:
    """Solve one server with Poisson arrivals exactly: the embedded chain, then a tagged request."""
    b, full_ms, longest_ms = service.size, float(service[-1]), float(service.max())
    small, full, idle = _solve_chain(np.concatenate(([0.0], rate * service)))
    cells = min(max(16, math.ceil(4.0 * full_ms / float(service.min()) - 1e-9)), 128)
    cell = full_ms / cells
    widest = int(rate * longest_ms + 8.0 * math.sqrt(rate * longest_ms) + 24.0)
    batches = (full.size + widest) // b + 1
    table = np.zeros((batches * cells + math.ceil(longest_ms / cell) + 1, b))
    ahead = np.zeros((2, batches * b))
    kernels.arrival_states(rate, service, cells, small, full, np.empty(widest), ahead, table)

    slope = np.zeros(kernels.FINE * (len(table) + math.ceil(longest_ms / cell) + 2))
    total, weighted = kernels.sojourns(rate, service, cell, table, slope)
    alone = idle / rate  # while the server is idle: arrivals then start a batch of one
    alone_ms = float(service[0])
    total, weighted = total + alone, weighted + alone * alone_ms
    # The cut tail of the chain would have waited longest, with full batches.
    whole = total + max(1.0 - float(small.sum()) - float(full.sum()), 0.0) * full_ms
    below = np.cumsum(np.cumsum(slope))
    bin_ms = cell / kernels.FINE
    return weighted / total, _quantile(below, bin_ms, alone, alone_ms, P99 * whole)


def _solve_chain(mean: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """Return the stationary probabilities of the number waiting at a batch start.

    `mean[k]` = λ t(k), the arrivals expected during a batch of k, for k = 1..b; mean[b] < b. Returns
    p(0..b-1), p(b..), and the probability that a batch leaves no request behind and the server idles.
    """
    b = mean.size - 1
    widest = float(mean.max())
    length = max(2 * b, int(widest + 8.0 * math.sqrt(widest) + 20.0)) + 1
    down = kernels.descending_ladder(float(mean[b]) / b, b)
    small, full = np.zeros(b), np.empty(LONGEST)
    pmf, risen = np.empty(length), np.zeros((b + 1, length))
    probability = kernels.stationary(kernels.censored(mean, b, down, pmf, risen))
    kept, idle = kernels.chain(mean, b, down, pmf, risen, probability, small, full)
    return small, full[:kept], idle


def _simulated_point(rate: float, service: FloatArray, servers: int, dispersion: float) -> Point:
    """Simulate a queue on a fixed stream; a pool's P99 is corrected above FAIR by an exact distribution."""
    # In units of a full batch, which the bins suppose.
    unit, b = float(service[-1]), service.size
    load, own, gaps = rate * unit, service / unit, _stream(dispersion)
    width = LINE
    while width < 8 * b:
        width *= 2
    sojourn = np.empty(gaps.size)
    seen = kernels.run_pool(gaps, load, own, servers, width, sojourn)
    if seen < 0:
        return OVERLOADED
    ran = _summary(sojourn[:seen])
    if dispersion == 1.0:
        part = min((load / (b * servers) - FAIR) / (UNFAIR - FAIR), 1.0)
        if part > 0.0:
            quick = own / servers
            seen = kernels.run_one(np.cumsum(gaps) * (1.0 / load), quick, sojourn)
            ran = ran + part * (np.array(_poisson_point(load, quick)) - _summary(sojourn[:seen]))
        ran = np.maximum(ran, own.min())
    mean, upper = (ran * unit).tolist()
    return mean, upper


def _summary(sojourn: FloatArray) -> FloatArray:
    """Mean and P99 of what was run: this is the mean of the bin where it lies."""
    bins = np.clip((sojourn.view(np.int64) >> STEP) - LOWEST, 0, BINS - 1)
    counts, sums = np.bincount(bins), np.bincount(bins, weights=sojourn)
    found = np.searchsorted(np.cumsum(counts), math.ceil(P99 * sojourn.size))
    return np.array([sums.sum() / sojourn.size, sums[found] / counts[found]])


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
