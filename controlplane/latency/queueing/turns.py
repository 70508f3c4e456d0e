"""Several classes of requests at one executor, of which one executes at a time: bounds of their times.

`bound_turns` holds for every order.

A Triton with k models and the rate limiter's one resource executes one model at a time, without preemption.
What waits for a model gathers, and the oldest min(waiting, batch) of a model execute together in t(n). Which
model goes next depends on how often each ran since the server started (docs/design/queueing.md), so on past
rates. The bound therefore holds for every order that does not idle while a request waits, one that changes
included. It is exact for the class that goes last where all batches are one.

**Work.** Charge every request of class i with c_i = max_n t_i(n) / n, at least its time alone. The work in
the system, the charges of what waits and what is left of the running batch, falls by 1 a ms and, at the start
of a batch, by n c_i - t_i(n) >= 0 more. Without that fall it is the workload V of an M/G/1 queue of the same
arrivals with service times c_i, so it never exceeds V. A Poisson arrival sees V as it is in the long run:
a geometric number of ladder heights, each uniform on (0, c_i] with probability rho_i / rho
(Pollaczek-Khinchine).

**Wait.** Until the batch of a tagged request of class i starts, its server executes what was there on arrival
and what arrives of other classes, at worst all of it. That ends, at the latest, after the time D in which V
and the charges of the others' arrivals are worked off. From v units of work, D is n units with probability
(v / n) P(n - v units arrive in n), the hitting time of a walk that falls one unit at a time (Kemperman 1961);
what arrives is compound Poisson (Panjer 1981).

**Own batch.** With m requests before the tagged one in its batch and j behind it, the batch starts by
D - m c_i and takes t_i(1 + m + j). So the sojourn is at most D + u_i(j), where
u_i(j) = max_m t_i(1 + m + j) - m c_i, and j is at most Poisson(lambda_i D), independent of D.

`bound_order` holds for the order of the classes' ranks, in which none is interrupted: the queue of a
partition whose requests wait at a gate of the gateway (docs/design/order.md). One request executes at a time,
the next is the oldest of the lowest rank. With Poisson arrivals this is exact but for the rounding of times.

**What goes before** a request of rank r on its arrival is the work U of ranks up to r and what is left of a
request of a higher rank that executes. U falls by 1 a ms, jumps by a service time where a request of rank
up to r arrives, and, at 0 only, by that of a higher rank whose request begins. In the long run as many of
those begin as arrive, so level crossing gives U's law P0 d0 + f, where f = L + K * (P0 d0 + f): K(x) is the
rate of services longer than x of ranks up to r, L(x) that of higher ranks, P0 = 1 - rho the probability that
nothing executes. With V, the work in an M/G/1 queue of ranks up to r alone, which obeys the same equation
without L, U = V + Z: Z is 0 with probability (1 - rho) / (1 - rho_r), and has the density L / (1 - rho_r).
What arrives with a rank below r until the request begins goes before it too: `_delays`.

All times are rounded up to cells of time, so the bounds stay bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.domain.units import MILLIS_PER_SECOND
from controlplane.latency.protocol import FloatArray, IntArray

P99 = 0.99
CELLS = 512
"""Cells of time; the first span that holds the P99 is taken, of spans that double."""
SPANS = 8
"""The number of spans that are tried."""


@dataclass(frozen=True, slots=True)
class SojournTimes:
    """Time from arrival to answer in ms, (n,); infinite where a queue does not settle."""

    mean_ms: FloatArray
    p99_ms: FloatArray


def bound_turns(rate_rps: Sequence[float], service_ms: Sequence[FloatArray]) -> SojournTimes:
    """Bound the mean and P99 of the sojourn times of k classes with Poisson arrivals.

    Infinite where it is not shown to settle. rate_rps: requests per second of each class. service_ms: for
    each class t(1), t(2), ... t(its batch), which do not fall.
    """
    rate = np.array(rate_rps) / MILLIS_PER_SECOND
    found = np.array([_bound(rate, service_ms, own) for own in range(rate.size)])
    return SojournTimes(mean_ms=found[:, 0], p99_ms=found[:, 1])


def _bound(rate: FloatArray, service: Sequence[FloatArray], own: int) -> tuple[float, float]:
    charge = np.array([(t / np.arange(1, t.size + 1)).max() for t in service])
    others = np.arange(rate.size) != own

    def delay(per_unit: FloatArray, units: IntArray) -> FloatArray:
        return _delays(_workload(per_unit, units), per_unit[others], units[others])

    return _sojourn(rate, charge, own, _last_batch(service[own], float(charge[own])), delay)


def bound_order(rate_rps: Sequence[float], service_ms: Sequence[float], ranks: Sequence[int]) -> SojournTimes:
    """Bound the mean and P99 of the sojourn times of k classes with Poisson arrivals.

    rate_rps: requests per second of each class. service_ms: the time of one request. ranks: the lowest goes
    first; classes of one rank are served first come, first served.
    """
    rate, service = np.array(rate_rps) / MILLIS_PER_SECOND, np.array(service_ms)
    rank = np.array(ranks)
    found = np.array([_bound_in_order(rate, service, rank, own) for own in range(rate.size)])
    return SojournTimes(mean_ms=found[:, 0], p99_ms=found[:, 1])


def _bound_in_order(rate: FloatArray, service: FloatArray, rank: IntArray, own: int) -> tuple[float, float]:
    up_to, before = rank <= rank[own], rank < rank[own]

    def delay(per_unit: FloatArray, units: IntArray) -> FloatArray:
        work = _workload(per_unit[up_to], units[up_to])
        idle = 1.0 - float(per_unit @ units)
        left = np.array([idle, *_heights(per_unit[~up_to], units[~up_to])]) / work[0]
        ahead = np.convolve(work, left)[: CELLS + 1]
        return _delays(ahead, per_unit[before], units[before])

    return _sojourn(rate, service, own, service[own : own + 1], delay)


def _sojourn(
    rate: FloatArray,
    charge: FloatArray,
    own: int,
    last: FloatArray,
    delay: Callable[[FloatArray, IntArray], FloatArray],
) -> tuple[float, float]:
    """Mean and P99 in ms of D + u(j) for class `own`; infinite where it is not shown to settle.

    rate: requests per ms of each class, (k,); charge: what each may take at most, (k,). last: u(0), u(1), ...
    delay: P(D = 0, 1, ... CELLS units) of rates per unit and charges in units.
    """
    span = 2.0 * float(charge.sum() + last[-1])
    for _ in range(SPANS):
        # The shortest charge takes whole cells, unless it is shorter than one.
        cell = max(span / CELLS, float(charge.min()))
        cell /= max(math.floor(cell / (span / CELLS)), 1)
        units = np.ceil(charge / cell - 1e-9).astype(np.int64)
        if float(rate @ units) * cell >= 1.0:
            break
        found = _quantile(delay(rate * cell, units), cell, float(rate[own]), last)
        if found is not None:
            return found
        span *= 2.0
    return math.inf, math.inf


def _heights(rate: FloatArray, units: IntArray) -> FloatArray:
    """Rate per unit of charges of at least 1, 2, ... units, up to the largest."""
    most = int(units.max(initial=0))
    return np.array([float(rate[units >= n].sum()) for n in range(1, most + 1)])


def _workload(rate: FloatArray, units: IntArray) -> FloatArray:
    """P(V = 0, 1, ... CELLS units), every ladder height rounded up to a whole unit; `rate` is per unit."""
    ladder = _heights(rate, units)
    work = np.zeros(CELLS + 1)
    work[0] = 1.0 - float(rate @ units)
    for n in range(1, CELLS + 1):
        reach = min(n, ladder.size)
        work[n] = ladder[:reach] @ work[n - reach : n][::-1]
    return work


def _delays(work: FloatArray, rate: FloatArray, units: IntArray) -> FloatArray:
    """P(D = 0, 1, ... CELLS units): `work` and what arrives until it is done, at `rate` per unit."""
    time = np.arange(CELLS + 1)
    arrives = np.zeros((CELLS, CELLS + 1))  # P(m units arrive in n), by m and n
    arrives[0] = np.exp(-rate.sum() * time)
    delay = np.zeros(CELLS + 1)
    delay[0] = work[0]
    for m in range(CELLS):
        for each, size in zip(rate.tolist(), units.tolist(), strict=True):
            if size <= m:
                arrives[m] += each * size / m * time * arrives[m - size]
        rest = time[1 : CELLS + 1 - m]
        delay[m + 1 :] += work[rest] * rest / time[m + 1 :] * arrives[m, m + 1 :]
    return delay


def _last_batch(service: FloatArray, charge: float) -> FloatArray:
    """u(j) for j = 0 to the batch less one: what the tagged request's batch takes beyond D; does not fall."""
    most = service.size
    longest = [(service[j:] - charge * np.arange(most - j)).max() for j in range(most)]
    return np.maximum.accumulate(np.array(longest))


def _quantile(delay: FloatArray, cell: float, rate: float, last: FloatArray) -> tuple[float, float] | None:
    """Mean and P99 of D + u(j); None where the cells do not reach the P99."""
    from scipy.special import pdtr  # slow to import, and rarely needed

    time = cell * np.arange(delay.size)
    # P(at most j behind), with all that do not fit into the batch counted as its last place.
    behind = pdtr(np.arange(last.size)[:, None], rate * time)
    behind[-1] = 1.0
    each = np.diff(behind, axis=0, prepend=0.0) * delay
    ends = (time + last[:, None]).ravel()
    order = np.argsort(ends)
    below = np.cumsum(each.ravel()[order])
    if below[-1] < P99:
        return None
    beyond = 1.0 - float(delay.sum())
    mean = float(each.ravel() @ ends.ravel()) + beyond * (2.0 * float(time[-1]) + float(last[-1]))
    return mean, float(ends[order][np.searchsorted(below, P99)])
