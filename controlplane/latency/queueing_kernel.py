"""The chain embedded at batch starts and a tagged request's way through it, compiled by numba.

The chain, solved exactly.
A server that frees takes min(waiting, b); an idle one takes an arrival alone. With Poisson arrivals of rate λ
and service times t(k), the number n of requests waiting at a batch start is a Markov chain:

    n' = max(1, n - k + A(t(k))),  k = min(n, b),  A(t) ~ Poisson(λt)

Above b it is a random walk with steps A(t(b)) - b, which falls by at most b. Its Wiener-Hopf factors

    1 - z^-b a(z) = (1 - Σ_{i=1..b} down(i) z^-i) (1 - Σ_{i>=0} up(i) z^i),  a(z) = exp(λ t(b) (z - 1))

are the laws of its ladder heights. `down` follows from the b roots of z^b = a(z) in the unit disc (those of
Crommelin's method for M/D/c), `up` from `down`. They censor the chain to 1..b, whose b equations are solved
without subtractions (Grassmann, Taksar, Heyman 1985), and then give every state above b. Only positive terms
are added, so nothing cancels at any load or batch size.

The tagged request.
A request that arrives u into a batch finds the requests left over when that batch started, plus those that
arrived within u, before it. With j before it, floor(j / b) full batches run first; it joins the next one
with r = j mod b before it in the batch, and whoever arrives during its wait w fills the batch behind it:

    size = min(b, r + 1 + Poisson(λ w)),  sojourn = w + t(size)

The law of (w, r) is tabulated on cells of t(b)/CELLS and turned into the distribution of the sojourn; there
is no fitted constant in it. An arrival that finds a server idle takes t(1).

A pool of c servers is the same chain with batch starts c times as dense, after the approximation of Tijms,
van Hoorn and Federgruen (1981) for M/G/c: while all are busy, the pool frees a server every t(k)/c. The time
between two periods of "all busy" is that of the Erlang loss system with c - 1 servers. With c = 1 both are
exact.

Compiled on first use and kept in numba's cache, which is why all of it stands in one file: the cache of a
function does not notice a change of another file it calls.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from controlplane.latency.protocol import BoolArray, FloatArray, IntArray

TAIL = 3e-5
"""Chain states are kept until this much probability is left: far below the 1 % a P99 looks at."""
LONGEST = 16384
"""More states than this are never kept: reached only above a utilisation of 0.999."""


@njit(cache=True, inline="always")
def _root(load: float, turn: complex) -> complex:
    """The root of z = turn * exp(load * (z - 1)) in the unit disc: `turn` is a b-th root of unity."""
    z = turn
    for _ in range(4):
        z = turn * np.exp(load * (z - 1.0))
    for _ in range(60):
        image = turn * np.exp(load * (z - 1.0))
        step = (z - image) / (1.0 - load * image)
        z -= step
        if abs(step) < 1e-14:
            break
    return z


@njit(cache=True, inline="always")
def poisson_into(mean: float, out: FloatArray, length: int) -> None:
    """P(Poisson(mean) = 0..length-1) into `out`; outwards from the mode, so no mean underflows it."""
    mode = min(int(mean), length - 1)
    at_mode = 1.0 if mean <= 0.0 else math.exp(mode * math.log(mean) - mean - math.lgamma(mode + 1.0))
    out[mode] = at_mode
    for i in range(mode + 1, length):
        out[i] = out[i - 1] * mean / i
    for i in range(mode - 1, -1, -1):
        out[i] = out[i + 1] * (i + 1) / mean


@njit(cache=True)
def _falls(load: float, b: int) -> FloatArray:
    """`down[i]`, i = 1..b: how far the walk first falls below where it stood; Π (1 - root/z) expanded."""
    product = np.zeros(b + 1)
    product[0] = 1.0
    product[1] = -1.0
    degree = 1
    for j in range(1, b // 2 + 1):
        angle = 2.0 * math.pi * j / b
        root = _root(load, complex(math.cos(angle), math.sin(angle)))
        if 2 * j == b:
            degree += 1
            for i in range(degree, 0, -1):
                product[i] -= root.real * product[i - 1]
            continue
        linear = -2.0 * root.real
        square = root.real * root.real + root.imag * root.imag
        degree += 2
        for i in range(degree, 1, -1):
            product[i] += linear * product[i - 1] + square * product[i - 2]
        product[1] += linear
    down = np.zeros(b + 1)
    for i in range(1, b + 1):
        down[i] = max(-product[i], 0.0)
    return down


@njit(cache=True)
def _stationary(matrix: FloatArray) -> FloatArray:
    """The stationary law, up to a factor, of a stochastic matrix, by GTH elimination; spoils the matrix."""
    n = matrix.shape[0]
    for last in range(n - 1, 0, -1):
        leave = 0.0
        for j in range(last):
            leave += matrix[last, j]
        for i in range(last):
            share = matrix[i, last] / leave
            matrix[i, last] = share
            if share > 0.0:
                for j in range(last):
                    matrix[i, j] += share * matrix[last, j]
    law = np.zeros(n)
    law[0] = 1.0
    for state in range(1, n):
        for i in range(state):
            law[state] += law[i] * matrix[i, state]
    return law


@njit(cache=True)
def solve_chain(mean: FloatArray, b: int, small: FloatArray, full: FloatArray) -> tuple[int, float]:
    """Stationary probabilities of the number waiting at a batch start.

    `mean[k]` = λ t(k), the arrivals expected during a batch of k, for k = 1..b; mean[b] < b.
    Fills `small[1..b-1]` with p(1..b-1) and `full[m]` with p(b+m); returns how many of `full` were kept
    and the probability that a batch leaves nobody behind and the server idles.
    """
    widest = 0.0
    for k in range(1, b + 1):
        widest = max(widest, mean[k])
    length = max(2 * b, int(widest + 8.0 * math.sqrt(widest) + 20.0)) + 1
    down = _falls(mean[b] / b, b)
    pmf = np.empty(length)
    matrix = np.empty((b, b))
    risen = np.zeros((b + 1, length))  # row k: started by a batch of k, then every record low above b
    for k in range(b, 0, -1):
        poisson_into(mean[k], pmf, length)
        row = risen[k]
        row[:] = pmf
        for n in range(length - 1, b, -1):
            if row[n] > 1e-18:
                for i in range(1, b + 1):
                    row[n - i] += row[n] * down[i]
        matrix[k - 1, :] = row[1 : b + 1]
        matrix[k - 1, 0] += row[0]
    law = _stationary(matrix)

    # The loop above ended with k = 1; the walk's own law is needed for `up`.
    poisson_into(mean[b], pmf, length)
    reach = length - b
    up = np.zeros(reach)
    for j in range(reach - 1, -1, -1):
        total = pmf[b + j]
        for i in range(1, min(b, reach - 1 - j) + 1):
            total += down[i] * up[j + i]
        up[j] = total
    fall = 0.0
    for i in range(1, b + 1):
        fall += i * down[i]
    never = (b - mean[b]) / fall  # 1 - Σ up, from the derivative of the factorisation at z = 1
    stay = 1.0 - up[0]
    started = np.zeros(reach)
    above = 0.0
    idle = 0.0
    norm = 0.0
    for k in range(1, b + 1):
        norm += law[k - 1]
        idle += law[k - 1] * math.exp(-mean[k])
        for m in range(1, reach):
            started[m] += law[k - 1] * risen[k, b + m]
    for m in range(1, reach):
        above += started[m]
    above /= never
    norm += above
    small[0] = 0.0
    for k in range(1, b):
        small[k] = law[k - 1] / norm
    full[0] = law[b - 1] / norm
    left = above / norm
    kept = 1
    while kept < full.size and left > TAIL:
        total = started[kept] / norm if kept < reach else 0.0
        for i in range(1, min(kept, reach)):
            total += up[i] * full[kept - i]
        full[kept] = total / stay
        left -= full[kept]
        kept += 1
    return kept, idle / norm


CELLS = 32
SETTLED = 1024
SCHEDULE = 2048
"""Requests of a constant stream run before and while looking."""


@njit(cache=True)
def _pause(rate: float, servers: int, alone: float) -> float:
    """Mean time from the end of a period with all servers busy to the start of the next."""
    blocked = 1.0
    offered = rate * alone
    for busy in range(1, servers):
        blocked = offered * blocked / (busy + offered * blocked)
    return 1.0 / (rate * blocked)


@njit(cache=True)
def _places(
    rate: float, gap: FloatArray, b: int, cycle: float, small: FloatArray, full: FloatArray
) -> FloatArray:
    """The law of (wait cell, requests before it in its batch) of an arrival that must wait."""
    cell = gap[b] / CELLS
    longest = 0.0
    for k in range(1, b + 1):
        longest = max(longest, gap[k])
    widest = int(rate * longest + 8.0 * math.sqrt(rate * longest) + 24.0)
    batches = (full.size + widest) // b + 1
    spread = math.ceil(longest / cell) + 1
    table = np.zeros((batches * CELLS + spread, b))
    pmf = np.empty(widest)
    for k in range(1, b):
        if small[k] <= 1e-12:
            continue
        for i in range(math.ceil(gap[k] / cell - 1e-9)):
            low, high = i * cell, min((i + 1) * cell, gap[k])
            passed = rate * (gap[k] - 0.5 * (low + high))
            support = min(widest, int(passed + 6.0 * math.sqrt(passed) + 6.0))
            poisson_into(passed, pmf, support)
            weight = small[k] * (high - low) / cycle
            for j in range(support):
                table[i + (j // b) * CELLS, j % b] += weight * pmf[j]
    # Batches that start with b or more: those left over are spread further, one cell of time after another.
    ahead = np.zeros(full.size + widest)
    shifted = np.zeros(full.size + widest)
    for m in range(full.size):
        ahead[m] = full[m]
    per_cell = rate * cell
    support = min(widest, int(per_cell + 7.0 * math.sqrt(per_cell) + 6.0))
    for i in range(CELLS - 1, -1, -1):
        poisson_into(0.5 * per_cell if i == CELLS - 1 else per_cell, pmf, support)
        shifted[:] = 0.0
        for a in range(support):
            weight = pmf[a]
            for j in range(ahead.size - a):
                shifted[j + a] += weight * ahead[j]
        ahead, shifted = shifted, ahead
        for j in range(ahead.size):
            table[i + (j // b) * CELLS, j % b] += ahead[j] * cell / cycle
    return table


@njit(cache=True, inline="always")
def _spread(histogram: FloatArray, start: float, mass: float) -> None:
    """Mass spread evenly over one cell's width, starting at `start` cells."""
    index = int(start)
    part = start - index
    histogram[index] += mass * (1.0 - part)
    histogram[index + 1] += mass * part


@njit(cache=True, inline="always")
def _quantile(histogram: FloatArray, cell: float, atom: float, at: float, total: float, q: float) -> float:
    """The q-quantile of a density in cells and one atom of mass `atom` at `at`; inf beyond the table."""
    below = 0.0
    wanted = q * total
    passed = False
    for i in range(histogram.size):
        high = (i + 1) * cell
        mass = histogram[i]
        if not passed and high > at:
            part = mass * (at - i * cell) / cell
            if below + part < wanted <= below + part + atom:
                return at
            if wanted <= below + part:
                return cell * float(i + (wanted - below) / mass)
            below += atom
            passed = True
        if below + mass >= wanted:
            return cell * float(i + (wanted - below) / mass)
        below += mass
    return math.inf


@njit(cache=True)
def poisson_point(
    rate: float, service: FloatArray, b: int, servers: int, quantile: float
) -> tuple[float, float, float]:
    """Mean, median and upper quantile of the sojourn; `rate` per ms, `service[k-1]` = t(k) in ms."""
    if not rate > 0.0:
        return service[0], service[0], service[0]
    gap = np.zeros(b + 1)
    mean = np.zeros(b + 1)
    longest = 0.0
    for k in range(1, b + 1):
        gap[k] = service[k - 1] / servers
        mean[k] = rate * gap[k]
        longest = max(longest, service[k - 1])
    if mean[b] >= 0.999 * b:
        return math.inf, math.inf, math.inf
    small = np.zeros(b)
    states = np.empty(LONGEST)
    kept, idle = solve_chain(mean, b, small, states)
    full = states[:kept]
    waiting = idle * _pause(rate, servers, service[0])
    cycle = waiting
    for k in range(1, b):
        cycle += small[k] * gap[k]
    for m in range(kept):
        cycle += full[m] * gap[b]
    table = _places(rate, gap, b, cycle, small, full)

    cell = gap[b] / CELLS
    histogram = np.zeros(table.shape[0] + math.ceil(longest / cell) + 2)
    sizes = np.zeros(b + 1)
    pmf = np.empty(b + 1)
    alone = waiting / cycle
    total, weighted = alone, alone * service[0]
    for i in range(table.shape[0]):
        here = 0.0
        for r in range(b):
            here += table[i, r]
        if here <= 1e-12:
            continue
        wait = (i + 0.5) * cell
        poisson_into(rate * wait, pmf, b)
        rest = here
        for k in range(1, b):
            chance = 0.0
            for r in range(k):
                chance += table[i, r] * pmf[k - 1 - r]
            sizes[k] = chance
            rest -= chance
        sizes[b] = max(rest, 0.0)
        for k in range(1, b + 1):
            if sizes[k] > 0.0:
                _spread(histogram, i + service[k - 1] / cell, sizes[k])
                weighted += sizes[k] * (wait + service[k - 1])
        total += here
    # What was cut off the chain's tail lies beyond everything tabulated.
    whole = max(total, 1.0)
    return (
        weighted / total,
        _quantile(histogram, cell, alone, service[0], whole, 0.5),
        _quantile(histogram, cell, alone, service[0], whole, quantile),
    )


@njit(cache=True)
def constant_point(
    rate: float, service: FloatArray, b: int, servers: int, quantile: float
) -> tuple[float, float, float]:
    """As `poisson_point`, for arrivals 1 / rate apart: nothing is random, so the schedule itself is run."""
    if not rate > 0.0:
        return service[0], service[0], service[0]
    if rate * service[b - 1] >= 0.999 * b * servers:
        return math.inf, math.inf, math.inf
    free = np.zeros(servers)
    sojourns = np.empty(SCHEDULE)
    interval = 1.0 / rate
    arrived = 0
    last = SETTLED + SCHEDULE
    total = 0.0
    while arrived < last:
        first = 0
        for s in range(1, servers):
            if free[s] < free[first]:
                first = s
        start = max(free[first], arrived * interval)
        size = min(b, int(start / interval + 1e-9) + 1 - arrived)
        end = start + service[size - 1]
        free[first] = end
        for i in range(max(arrived, SETTLED), min(arrived + size, last)):
            sojourns[i - SETTLED] = end - i * interval
            total += end - i * interval
        arrived += size
    middle = math.ceil(0.5 * SCHEDULE) - 1
    upper = math.ceil(quantile * SCHEDULE) - 1
    ordered = np.partition(sojourns, upper)
    return total / SCHEDULE, np.partition(ordered[: upper + 1], middle)[middle], ordered[upper]


@njit(cache=True)
def solve_all(
    rate: FloatArray,
    service: FloatArray,
    batch: IntArray,
    servers: IntArray,
    constant: BoolArray,
    quantile: float,
) -> FloatArray:
    """Mean, median and upper quantile for every row: shape (N, 3)."""
    answers = np.empty((rate.size, 3))
    for n in range(rate.size):
        if constant[n]:
            point = constant_point(rate[n], service[n], batch[n], servers[n], quantile)
        else:
            point = poisson_point(rate[n], service[n], batch[n], servers[n], quantile)
        answers[n, 0], answers[n, 1], answers[n, 2] = point
    return answers


@njit(cache=True)
def largest_rates(
    limit: FloatArray,
    service: FloatArray,
    batch: IntArray,
    servers: IntArray,
    constant: BoolArray,
    quantile: float,
) -> FloatArray:
    """The largest rate, per ms, whose quantile is at most `limit`, by bisection to a 4096th of capacity."""
    answers = np.empty(limit.size)
    for n in range(limit.size):
        if service[n, 0] > limit[n]:
            answers[n] = 0.0
            continue
        capacity = servers[n] * batch[n] / service[n, batch[n] - 1]
        low, high = 0.0, capacity
        for _ in range(12):
            middle = 0.5 * (low + high)
            if constant[n]:
                upper = constant_point(middle, service[n], batch[n], servers[n], quantile)[2]
            else:
                upper = poisson_point(middle, service[n], batch[n], servers[n], quantile)[2]
            if upper <= limit[n]:
                low = middle
            else:
                high = middle
        answers[n] = low
    return answers
