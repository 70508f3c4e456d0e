"""Several classes of requests at one executor, in the order of their ranks, of which none is interrupted.

The queue of a partition whose requests wait at a gate of the gateway (docs/design/order.md): one request
executes at a time, the next is the oldest of the lowest rank. With Poisson arrivals this is exact but for the
rounding of times to cells, which makes it a bound.

**What goes before** a request of rank r on its arrival is the work U of ranks up to r and what is left of a
request of a higher rank that executes. U falls by 1 a ms, jumps by a service time where a request of rank
up to r arrives, and, at 0 only, by that of a higher rank whose request begins. In the long run as many of
those begin as arrive, so level crossing gives U's law P0 d0 + f, where f = L + K * (P0 d0 + f): K(x) is the
rate of services longer than x of ranks up to r, L(x) that of higher ranks, P0 = 1 - rho the probability that
nothing executes. With V, the work in an M/G/1 queue of ranks up to r alone, which obeys the same equation
without L, U = V + Z: Z is 0 with probability (1 - rho) / (1 - rho_r), and has the density L / (1 - rho_r).

**Wait.** What arrives with a rank below r until the request begins goes before it too: `turns.delays`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from controlplane.domain.units import MILLIS_PER_SECOND
from controlplane.latency.protocol import FloatArray, IntArray
from controlplane.latency.queueing.turns import CELLS, ClassTimes, delays, heights, sojourn, workload


def bound_order(rate_rps: Sequence[float], service_ms: Sequence[float], ranks: Sequence[int]) -> ClassTimes:
    """Bound the mean and P99 of the sojourn times of k classes with Poisson arrivals.

    rate_rps: requests per second of each class. service_ms: the time of one request. ranks: the lowest goes
    first; classes of one rank are served first come, first served.
    """
    rate, service = np.array(rate_rps) / MILLIS_PER_SECOND, np.array(service_ms)
    rank = np.array(ranks)
    found = np.array([_bound(rate, service, rank, own) for own in range(rate.size)])
    return ClassTimes(mean_ms=found[:, 0], p99_ms=found[:, 1])


def _bound(rate: FloatArray, service: FloatArray, rank: IntArray, own: int) -> tuple[float, float]:
    up_to, before = rank <= rank[own], rank < rank[own]

    def delay(per_unit: FloatArray, units: IntArray) -> FloatArray:
        work = workload(per_unit[up_to], units[up_to])
        idle = 1.0 - float(per_unit @ units)
        left = np.array([idle, *heights(per_unit[~up_to], units[~up_to])]) / work[0]
        ahead = np.convolve(work, left)[: CELLS + 1]
        return delays(ahead, per_unit[before], units[before])

    return sojourn(rate, service, own, service[own : own + 1], delay)
