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

The law of (w, r) is tabulated on cells of time and turned into the distribution of the sojourn; there is no
fitted constant in it. An arrival that finds the server idle takes t(1).

A pool of c has no small chain. It is run, request by request, on one fixed stream of POOL arrivals, chosen
so that runs on it are near to long ones. At high load that is not enough: beside it, on the same stream,
runs one server c times as fast, whose law is known exactly, and the difference of the two is added to the
exact law (a control variate).

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


SATURATED = 0.999
"""From this utilisation on a queue counts as overloaded."""
FINE = 4
"""Bins of the sojourn's histogram a cell of waiting time."""
SETTLED = 512
"""Arrivals until a run is looked at."""
POOL = SETTLED + 32768
"""Arrivals a pool is run on."""
SCHEDULE = 2560
"""Arrivals a constant stream is looked at for."""
FAIR, UNFAIR = 0.75, 0.85
"""Up to the first load a run stands as it is, from the second on it is corrected in full."""


@njit(cache=True)
def _places(
    rate: float, service: FloatArray, b: int, cells: int, small: FloatArray, full: FloatArray
) -> FloatArray:
    """The time a request spends at (wait cell, requests before it in its batch) on arrival, per batch."""
    cell = service[b - 1] / cells
    longest = service[:b].max()
    widest = int(rate * longest + 8.0 * math.sqrt(rate * longest) + 24.0)
    batches = (full.size + widest) // b + 1
    table = np.zeros((batches * cells + math.ceil(longest / cell) + 1, b))
    pmf = np.empty(widest)
    for k in range(1, b):
        if small[k] <= 1e-10:
            continue
        for i in range(math.ceil(service[k - 1] / cell - 1e-9)):
            low, high = i * cell, min((i + 1) * cell, service[k - 1])
            passed = rate * (service[k - 1] - 0.5 * (low + high))
            support = min(widest, int(passed + 5.0 * math.sqrt(passed) + 5.0))
            poisson_into(passed, pmf, support)
            weight = small[k] * (high - low)
            row, before = i, 0
            for j in range(support):
                if j - before == b:
                    row += cells
                    before += b
                table[row, j - before] += weight * pmf[j]
    # Batches that start with b or more: those left over are spread further, one cell of time after another.
    ahead = np.zeros(batches * b)
    shifted = np.zeros(batches * b)
    ahead[: full.size] = full
    filled = full.size
    for i in range(cells - 1, -1, -1):
        step = rate * cell * (0.5 if i == cells - 1 else 1.0)
        support = min(widest, int(step + 6.0 * math.sqrt(step) + 4.0))
        if i >= cells - 2:
            poisson_into(step, pmf, support)
        filled = min(filled + support, ahead.size)
        shifted[:filled] = 0.0
        for a in range(support):
            weight = pmf[a]
            if weight > 1e-9:
                for j in range(filled - a):
                    shifted[j + a] += weight * ahead[j]
        ahead, shifted = shifted, ahead
        for q in range(batches):
            for r in range(b):
                table[i + q * cells, r] += ahead[q * b + r] * cell
    return table


@njit(cache=True, inline="always")
def _spread(slope: FloatArray, start: float, mass: float) -> None:
    """Mass spread evenly over one cell from `start` bins on, as changes of the density from bin to bin."""
    index = int(start)
    early = mass / FINE * (1.0 - (start - index))
    late = mass / FINE - early
    slope[index] += early
    slope[index + 1] += late
    slope[index + FINE] -= early
    slope[index + FINE + 1] -= late


@njit(cache=True, inline="always")
def _quantile(density: FloatArray, bin_ms: float, atom: float, atom_ms: float, wanted: float) -> float:
    """Where the mass below reaches `wanted`: a density in bins and one atom; inf beyond the table."""
    below = 0.0
    passed = False
    for i in range(density.size):
        mass = density[i]
        if not passed and (i + 1) * bin_ms > atom_ms:
            part = mass * (atom_ms / bin_ms - i)
            if below + part < wanted <= below + part + atom:
                return atom_ms
            if wanted <= below + part:
                return bin_ms * float(i + (wanted - below) / mass)
            below += atom
            passed = True
        if below + mass >= wanted:
            return bin_ms * float(i + (wanted - below) / mass)
        below += mass
    return math.inf


@njit(cache=True)
def poisson_point(
    rate: float, service: FloatArray, b: int, quantile: float, states: FloatArray
) -> tuple[float, float, float]:
    """Mean, median and upper quantile of the sojourn at one server, Poisson arrivals.

    `rate` per ms, `service[k - 1]` = t(k) in ms for k = 1..b; `states`, (LONGEST,), is overwritten.
    """
    if not rate > 0.0:
        return service[0], service[0], service[0]
    mean = np.zeros(b + 1)
    for k in range(1, b + 1):
        mean[k] = rate * service[k - 1]
    if mean[b] >= SATURATED * b:
        return math.inf, math.inf, math.inf
    small = np.zeros(b)
    kept, idle = solve_chain(mean, b, small, states)
    full = states[:kept]
    cells = min(max(16, math.ceil(4.0 * service[b - 1] / service[:b].min() - 1e-9)), 128)
    cell = service[b - 1] / cells
    table = _places(rate, service, b, cells, small, full)

    slope = np.zeros(FINE * (table.shape[0] + math.ceil(service[:b].max() / cell) + 2))
    sizes = np.zeros(b + 1)
    pmf = np.empty(b + 1)
    alone = idle / rate  # as long as the server idles: arrivals then find it free
    total, weighted = alone, alone * service[0]
    for i in range(table.shape[0]):
        here = table[i].sum()
        if here <= 1e-9 * service[0]:
            continue
        wait = (i + 0.5) * cell
        rest = here
        poisson_into(rate * wait, pmf, b)
        sizes[:] = 0.0
        for r in range(b - 1):
            for k in range(r + 1, b):
                sizes[k] += table[i, r] * pmf[k - 1 - r]
        for k in range(1, b):
            rest -= sizes[k]
        sizes[b] = max(rest, 0.0)
        for k in range(1, b + 1):
            if sizes[k] > 0.0:
                _spread(slope, FINE * (i + service[k - 1] / cell), sizes[k])
                weighted += sizes[k] * (wait + service[k - 1])
        total += here
    density = np.cumsum(slope)
    # What was cut off the chain's tail would have waited longest, with full batches.
    whole = total + max(1.0 - small.sum() - full.sum(), 0.0) * service[b - 1]
    bin_ms = cell / FINE
    return (
        weighted / total,
        _quantile(density, bin_ms, alone, service[0], 0.5 * whole),
        _quantile(density, bin_ms, alone, service[0], quantile * whole),
    )


STEP = 43
"""Bits of a time that its bin forgets: 512 bins an octave, each 0.2 % wide at most."""
LOWEST = int(np.array([2.0**-12]).view(np.int64)[0]) >> STEP
"""Bins reach from 2^-12 to 2^16 full batches."""
BINS = 28 << (52 - STEP)
LINE = 1024
"""Requests that may wait at one server, at least; a queue that grows beyond is overloaded."""


@njit(cache=True)
def _run(
    gaps: FloatArray,
    load: float,
    service: FloatArray,
    b: int,
    servers: int,
    counts: IntArray,
    sums: FloatArray,
) -> bool:
    """Request by request: each goes where fewest are in flight, to whoever has had so few for longest.

    `load` arrivals a unit of time, `gaps` of mean 1; every server takes from its own line. Fills, by bins of
    the sojourn, how many there were and what they add up to; False where a line grew too long.
    """
    width = LINE
    while width < 8 * b:
        width *= 2
    wrap = width - 1
    line = np.empty((servers, width))
    head = np.zeros(servers, dtype=np.int64)
    held = np.zeros(servers, dtype=np.int64)
    size = np.zeros(servers, dtype=np.int64)
    end = np.full(servers, np.inf)
    since = np.zeros(servers)
    scratch = np.zeros(1)
    bits = scratch.view(np.int64)
    counts[:] = 0
    sums[:] = 0.0
    # Who arrives just as a batch ends is in time for the next one.
    mean = 1.0 / load
    tie = 1e-9 * mean
    now, soonest, alone = 0.0, np.inf, 0
    for i in range(gaps.size):
        now += gaps[i] * mean
        if soonest < now - tie:
            soonest = np.inf
            for s in range(servers):
                ends = end[s]
                while ends < now - tie:
                    left = held[s] - size[s]
                    held[s], since[s] = left, ends
                    if left == 0:
                        size[s], ends = 0, np.inf
                        break
                    k = min(left, b)
                    ends += service[k - 1]
                    if i >= SETTLED:
                        for j in range(head[s], head[s] + k):
                            scratch[0] = ends - line[s, j & wrap]
                            place = min(max((bits[0] >> STEP) - LOWEST, 0), BINS - 1)
                            counts[place] += 1
                            sums[place] += scratch[0]
                    head[s] += k
                    size[s] = k
                end[s] = ends
                soonest = min(soonest, ends)
        best, fewest, longest = 0, held[0], since[0]
        for s in range(1, servers):
            here = held[s]
            if here < fewest or (here == fewest and since[s] < longest):
                best, fewest, longest = s, here, since[s]
        held[best], since[best] = fewest + 1, now
        if fewest == 0:
            size[best] = 1
            end[best] = now + service[0]
            soonest = min(soonest, end[best])
            alone += i >= SETTLED
        else:
            waiting = fewest - size[best]
            if waiting >= width:
                return False
            line[best, (head[best] + waiting) & wrap] = now
    scratch[0] = service[0]
    place = min(max((bits[0] >> STEP) - LOWEST, 0), BINS - 1)
    counts[place] += alone
    sums[place] += alone * service[0]
    return True


@njit(cache=True)
def _run_one(
    gaps: FloatArray, load: float, service: FloatArray, b: int, counts: IntArray, sums: FloatArray
) -> None:
    """As `_run` for one server, batch by batch, which takes a third of the time."""
    arrival = np.cumsum(gaps) * (1.0 / load)
    scratch = np.zeros(1)
    bits = scratch.view(np.int64)
    counts[:] = 0
    sums[:] = 0.0
    free, i = 0.0, 0
    while i < arrival.size:
        start = max(free, arrival[i])
        last = min(i + b, arrival.size)
        behind = i + 1
        while behind < last and arrival[behind] <= start:
            behind += 1
        free = start + service[behind - i - 1]
        if i >= SETTLED:
            for j in range(i, behind):
                scratch[0] = free - arrival[j]
                place = min(max((bits[0] >> STEP) - LOWEST, 0), BINS - 1)
                counts[place] += 1
                sums[place] += scratch[0]
        i = behind


@njit(cache=True)
def _summary(counts: IntArray, sums: FloatArray, quantile: float) -> FloatArray:
    """Mean, median and upper quantile of what was run: the mean of the bin where each lies."""
    whole, below, place = counts.sum(), 0, -1
    answer = np.empty(3)
    answer[0] = sums.sum() / whole
    for n, part in ((1, 0.5), (2, quantile)):
        wanted = math.ceil(part * whole)
        while below < wanted:
            place += 1
            below += counts[place]
        answer[n] = sums[place] / counts[place]
    return answer


@njit(cache=True)
def pool_point(
    rate: float,
    service: FloatArray,
    b: int,
    servers: int,
    quantile: float,
    gaps: FloatArray,
    states: FloatArray,
) -> tuple[float, float, float]:
    """As `poisson_point` for `servers` that share what arrives; `gaps` are exponential with mean 1."""
    if not rate > 0.0:
        return service[0], service[0], service[0]
    # In units of a full batch, which the bins suppose.
    unit = service[b - 1]
    load = rate * unit
    if load >= SATURATED * b * servers:
        return math.inf, math.inf, math.inf
    own = service[:b] / unit
    counts = np.empty(BINS, dtype=np.int64)
    sums = np.empty(BINS)
    if not _run(gaps, load, own, b, servers, counts, sums):
        return math.inf, math.inf, math.inf
    answer = _summary(counts, sums, quantile)
    part = min((load / (b * servers) - FAIR) / (UNFAIR - FAIR), 1.0)
    if part > 0.0:
        quick = own / servers
        _run_one(gaps, load, quick, b, counts, sums)
        exact = np.array(poisson_point(load, quick, b, quantile, states))
        answer += part * (exact - _summary(counts, sums, quantile))
    answer = np.maximum(answer, own.min()) * unit
    return answer[0], answer[1], answer[2]


@njit(cache=True)
def constant_point(
    rate: float, service: FloatArray, b: int, servers: int, quantile: float
) -> tuple[float, float, float]:
    """As `pool_point`, for arrivals 1 / rate apart: nothing is random, so the schedule itself is run."""
    if not rate > 0.0:
        return service[0], service[0], service[0]
    unit = service[b - 1]
    if rate * unit >= SATURATED * b * servers:
        return math.inf, math.inf, math.inf
    counts = np.empty(BINS, dtype=np.int64)
    sums = np.empty(BINS)
    if not _run(np.ones(SETTLED + SCHEDULE), rate * unit, service[:b] / unit, b, servers, counts, sums):
        return math.inf, math.inf, math.inf
    answer = _summary(counts, sums, quantile) * unit
    return answer[0], answer[1], answer[2]


@njit(cache=True)
def _point(
    rate: float,
    service: FloatArray,
    b: int,
    servers: int,
    constant: bool,
    quantile: float,
    gaps: FloatArray,
    states: FloatArray,
) -> tuple[float, float, float]:
    if constant:
        return constant_point(rate, service, b, servers, quantile)
    if servers == 1:
        return poisson_point(rate, service, b, quantile, states)
    return pool_point(rate, service, b, servers, quantile, gaps, states)


@njit(cache=True)
def solve_all(
    rate: FloatArray,
    service: FloatArray,
    batch: IntArray,
    servers: IntArray,
    constant: BoolArray,
    quantile: float,
    gaps: FloatArray,
) -> FloatArray:
    """Mean, median and upper quantile for every row: shape (N, 3)."""
    answers = np.empty((rate.size, 3))
    states = np.empty(LONGEST)
    for n in range(rate.size):
        point = _point(rate[n], service[n], batch[n], servers[n], constant[n], quantile, gaps, states)
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
    gaps: FloatArray,
) -> FloatArray:
    """The largest rate, per ms, whose quantile is at most `limit`, by bisection to a 4096th of capacity."""
    answers = np.empty(limit.size)
    states = np.empty(LONGEST)
    for n in range(limit.size):
        if service[n, 0] > limit[n]:
            answers[n] = 0.0
            continue
        low, high = 0.0, servers[n] * batch[n] / service[n, batch[n] - 1]
        for _ in range(12):
            middle = 0.5 * (low + high)
            point = _point(middle, service[n], batch[n], servers[n], constant[n], quantile, gaps, states)
            if point[2] <= limit[n]:
                low = middle
            else:
                high = middle
        answers[n] = low
    return answers
