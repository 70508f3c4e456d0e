"""Loops of the batch queue: the chain embedded at batch starts, a tagged request, simulations of a pool.

The chain, solved exactly. A server that becomes free takes min(waiting, b) requests; an idle one takes an
arrival at once. With Poisson arrivals of rate λ and service times t(k), the number n of requests waiting at a
batch start is a Markov chain:

    n' = max(1, n - k + A(t(k))),  k = min(n, b),  A(t) ~ Poisson(λt)

Above b it is a random walk with steps A(t(b)) - b, which falls by at most b. Its Wiener-Hopf factors

    1 - z^-b a(z) = (1 - Σ_{i=1..b} down(i) z^-i) (1 - Σ_{i>=0} up(i) z^i),  a(z) = exp(λ t(b) (z - 1))

are the distributions of its ladder heights. `down` follows from the b roots of z^b = a(z) in the unit disc
(those of Crommelin's method for M/D/c), `up` from `down`. They censor the chain to 1..b, whose b equations
are solved without subtractions (Grassmann, Taksar, Heyman 1985), and then give every state above b. Only
positive terms are added, so nothing cancels at any load or batch size.

The tagged request.
A request that arrives u into a batch finds the requests left over when that batch started, plus those that
arrived within u, before it. With j before it, floor(j / b) full batches run first; it joins the next one
with r = j mod b before it in the batch, and requests that arrive during its wait w fill the batch behind it:

    size = min(b, r + 1 + Poisson(λ w)),  sojourn = w + t(size)

The distribution of (w, r) is tabulated on cells of time and gives that of the sojourn; no constant is fitted.
An arrival at an idle server takes t(1).

A pool of c has no small chain. It is simulated, request by request, on one fixed stream of POOL arrivals,
whose results are close to those of long streams. At high load that is not enough: one server c times as fast,
whose distribution is known exactly, is simulated on the same stream, and the difference of the two results is
added to the exact distribution (a control variate).

`batch_queue` makes the arrays and calls these kernels one after another, so that each is compiled once.
"""

from __future__ import annotations

import math

import numpy as np

from controlplane.kernels import kernel
from controlplane.latency.protocol import FloatArray

TAIL = 3e-5
"""The probability of the chain states that are cut off: far below the 1 % above a P99."""
FINE = 4
"""Bins of the sojourn's histogram a cell of waiting time."""
SETTLED = 512
"""The first arrivals of a simulation, which are not evaluated."""


@kernel
def log_factorial(n: int) -> float:
    """Return ln n! by Stirling's series to the last bits; `math.lgamma` differs between numba and Python."""
    x, product = n + 1.0, 1.0
    while x < 20.0:
        product *= x
        x += 1.0
    square = 1.0 / (x * x)
    series = (1.0 / 12.0 - square * (1.0 / 360.0 - square * (1.0 / 1260.0 - square / 1680.0))) / x
    return (x - 0.5) * math.log(x) - x + 0.5 * math.log(2.0 * math.pi) + series - math.log(product)


@kernel
def poisson_into(mean: float, out: FloatArray, length: int) -> None:
    """P(Poisson(mean) = 0..length-1) into `out`; outwards from the mode, so no mean underflows it."""
    mode = int(mean)
    if mode > length - 1:
        mode = length - 1
    at_mode = 1.0
    if mean > 0.0:
        at_mode = math.exp(mode * math.log(mean) - mean - log_factorial(mode))
    out[mode] = at_mode
    for i in range(mode + 1, length):
        out[i] = out[i - 1] * mean / i
    for i in range(mode - 1, -1, -1):
        out[i] = out[i + 1] * (i + 1) / mean


@kernel
def descending_ladder(load: float, b: int) -> FloatArray:
    """Return `down[i]`, i = 1..b: the distribution of the walk's first fall; Π (1 - root/z) expanded.

    A root solves z = turn * exp(load * (z - 1)) in the unit disc, with `turn` a b-th root of unity.
    """
    product, down = np.zeros(b + 2), np.zeros(b + 1)
    product[0] = 1.0
    product[1] = -1.0
    degree = 1
    for j in range(1, b // 2 + 1):
        angle = 2.0 * math.pi * j / b
        turn_x, turn_y = math.cos(angle), math.sin(angle)
        x, y = turn_x, turn_y
        for n in range(64):
            size = math.exp(load * (x - 1.0))
            cosine, sine = size * math.cos(load * y), size * math.sin(load * y)
            image_x = turn_x * cosine - turn_y * sine
            image_y = turn_x * sine + turn_y * cosine
            if n < 4:  # towards the root, before Newton's steps
                x, y = image_x, image_y
                continue
            slope_x, slope_y = 1.0 - load * image_x, -load * image_y
            square = slope_x * slope_x + slope_y * slope_y
            step_x = ((x - image_x) * slope_x + (y - image_y) * slope_y) / square
            step_y = ((y - image_y) * slope_x - (x - image_x) * slope_y) / square
            x -= step_x
            y -= step_y
            if step_x * step_x + step_y * step_y < 1e-28:
                break
        if 2 * j == b:
            degree += 1
            for i in range(degree, 0, -1):
                product[i] -= x * product[i - 1]
            continue
        linear = -2.0 * x
        square = x * x + y * y
        degree += 2
        for i in range(degree, 1, -1):
            product[i] += linear * product[i - 1] + square * product[i - 2]
        product[1] += linear
    for i in range(1, b + 1):
        if product[i] < 0.0:
            down[i] = -product[i]
    return down


@kernel
def censored(mean: FloatArray, b: int, down: FloatArray, pmf: FloatArray, risen: FloatArray) -> FloatArray:
    """Return the chain of the number waiting at a batch start, seen in 1..b only: (b, b).

    `mean[k]` = λ t(k), the arrivals expected during a batch of k, for k = 1..b; mean[b] < b. `down` is from
    `descending_ladder`. Scratch, L above what a batch may add: `pmf` (L,). Fills row k of `risen`, (b + 1, L)
    and 0 before: started by a batch of k, then every record low above b.
    """
    length, matrix = pmf.size, np.empty((b, b))
    for k in range(1, b + 1):
        poisson_into(mean[k], pmf, length)
        for n in range(length):
            risen[k, n] = pmf[n]
        for n in range(length - 1, b, -1):
            if risen[k, n] > 1e-18:
                for i in range(1, b + 1):
                    risen[k, n - i] += risen[k, n] * down[i]
        for n in range(b):
            matrix[k - 1, n] = risen[k, n + 1]
        matrix[k - 1, 0] += risen[k, 0]
    return matrix


@kernel
def chain(
    mean: FloatArray,
    b: int,
    down: FloatArray,
    pmf: FloatArray,
    risen: FloatArray,
    probability: FloatArray,
    small: FloatArray,
    full: FloatArray,
) -> tuple[int, float]:
    """Stationary probabilities of the number waiting at a batch start.

    `pmf` and `risen` are as `censored` leaves them; `probability` is the censored chain's. Fills
    `small[1..b-1]` with p(1..b-1) and `full[m]` with p(b+m); returns how many of `full` were kept and the
    probability that a batch leaves no request behind and the server idles.
    """
    reach = pmf.size - b
    up, started = np.zeros(reach), np.zeros(reach)
    for j in range(reach - 1, -1, -1):
        total = pmf[b + j]
        for i in range(1, b + 1):
            if i > reach - 1 - j:
                break
            total += down[i] * up[j + i]
        up[j] = total
    fall = 0.0
    for i in range(1, b + 1):
        fall += i * down[i]
    never = (b - mean[b]) / fall  # 1 - Σ up, from the derivative of the factorisation at z = 1
    stay = 1.0 - up[0]
    above = 0.0
    idle = 0.0
    norm = 0.0
    for k in range(1, b + 1):
        norm += probability[k - 1]
        idle += probability[k - 1] * math.exp(-mean[k])
        for m in range(1, reach):
            started[m] += probability[k - 1] * risen[k, b + m]
    for m in range(1, reach):
        above += started[m]
    above /= never
    norm += above
    for k in range(1, b):
        small[k] = probability[k - 1] / norm
    full[0] = probability[b - 1] / norm
    left = above / norm
    kept = 1
    while kept < full.size and left > TAIL:
        total = 0.0
        if kept < reach:
            total = started[kept] / norm
        for i in range(1, reach):
            if i >= kept:
                break
            total += up[i] * full[kept - i]
        full[kept] = total / stay
        left -= full[kept]
        kept += 1
    return kept, idle / norm


@kernel
def stationary(matrix: FloatArray) -> FloatArray:
    """Stationary probabilities, up to a factor, of a stochastic matrix, which is spoilt (GTH elimination)."""
    n = len(matrix)
    probability = np.zeros(n)
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
    probability[0] = 1.0
    for state in range(1, n):
        for i in range(state):
            probability[state] += probability[i] * matrix[i, state]
    return probability


@kernel
def arrival_states(
    rate: float,
    service: FloatArray,
    cells: int,
    small: FloatArray,
    full: FloatArray,
    pmf: FloatArray,
    ahead: FloatArray,
    table: FloatArray,
) -> None:
    """The time a request spends at (wait cell, requests before it in its batch) on arrival, per batch.

    Scratch: `pmf` (the most that arrive in a batch,), `ahead` (2, batches * b), 0 before. Fills `table`,
    (wait cells, b), 0 before.
    """
    b = service.size
    cell = service[b - 1] / cells
    for k in range(1, b):
        if small[k] <= 1e-10:
            continue
        for i in range(math.ceil(service[k - 1] / cell - 1e-9)):
            low, high = i * cell, (i + 1) * cell
            if high > service[k - 1]:
                high = service[k - 1]
            passed = rate * (service[k - 1] - 0.5 * (low + high))
            support = int(passed + 5.0 * math.sqrt(passed) + 5.0)
            if support > pmf.size:
                support = pmf.size
            poisson_into(passed, pmf, support)
            weight = small[k] * (high - low)
            row, before = i, 0
            for j in range(support):
                if j - before == b:
                    row += cells
                    before += b
                table[row, j - before] += weight * pmf[j]
    # Batches that start with b or more: those left over are spread further, one cell of time after another.
    now, then = 0, 1
    filled = full.size
    for n in range(filled):
        ahead[now, n] = full[n]
    for i in range(cells - 1, -1, -1):
        step = rate * cell
        if i == cells - 1:
            step = 0.5 * step
        support = int(step + 6.0 * math.sqrt(step) + 4.0)
        if support > pmf.size:
            support = pmf.size
        if i >= cells - 2:
            poisson_into(step, pmf, support)
        filled += support
        if filled > ahead.shape[1]:
            filled = ahead.shape[1]
        for n in range(filled):
            ahead[then, n] = 0.0
        for a in range(support):
            weight = pmf[a]
            if weight > 1e-9:
                for j in range(filled - a):
                    ahead[then, j + a] += weight * ahead[now, j]
        now, then = then, now
        for q in range(ahead.shape[1] // b):
            for r in range(b):
                table[i + q * cells, r] += ahead[now, q * b + r] * cell


@kernel
def sojourns(
    rate: float, service: FloatArray, cell: float, table: FloatArray, slope: FloatArray
) -> tuple[float, float]:
    """Each place's time spread over where its requests' sojourns end.

    Adds to `slope` the changes of the density from bin to bin; returns the time in all places and the same
    weighted by the sojourn.
    """
    b = service.size
    pmf, sizes = np.empty(b + 1), np.empty(b + 1)
    total, weighted = 0.0, 0.0
    for i in range(table.shape[0]):
        here = 0.0
        for r in range(b):
            here += table[i, r]
        if here <= 1e-9 * service[0]:
            continue
        wait = (i + 0.5) * cell
        rest = here
        poisson_into(rate * wait, pmf, b)
        for k in range(b + 1):
            sizes[k] = 0.0
        for r in range(b - 1):
            for k in range(r + 1, b):
                sizes[k] += table[i, r] * pmf[k - 1 - r]
        for k in range(1, b):
            rest -= sizes[k]
        if rest > 0.0:
            sizes[b] = rest
        for k in range(1, b + 1):
            if sizes[k] > 0.0:
                # Spread evenly over one cell, which begins within a bin.
                start = FINE * (i + service[k - 1] / cell)
                index = int(start)
                early = sizes[k] / FINE * (1.0 - (start - index))
                late = sizes[k] / FINE - early
                slope[index] += early
                slope[index + 1] += late
                slope[index + FINE] -= early
                slope[index + FINE + 1] -= late
                weighted += sizes[k] * (wait + service[k - 1])
        total += here
    return total, weighted


@kernel
def run_pool(
    gaps: FloatArray, load: float, service: FloatArray, servers: int, width: int, sojourn: FloatArray
) -> int:
    """Simulate a pool: each request goes to the server with the fewest in flight, the longest so of equals.

    `load` arrivals a unit of time, `gaps` of mean 1; every server takes from its own line, of at most
    `width`, a power of two. Fills `sojourn` (arrivals,) and returns how many were seen, -1 where a line grew
    too long.
    """
    b, wrap = service.size, width - 1
    line = np.empty((servers, width))
    # When a server's batch ends, and since when so few are in flight.
    end, since = np.full(servers, math.inf), np.zeros(servers)
    # The line's head, how many are in flight, how many of these run.
    head, held, size = (np.zeros(servers, np.int64), np.zeros(servers, np.int64), np.zeros(servers, np.int64))
    # A request that arrives just as a batch ends is in time for the next one.
    mean = 1.0 / load
    tie = 1e-9 * mean
    now, soonest, seen = 0.0, math.inf, 0
    for i in range(gaps.size):
        now += gaps[i] * mean
        if soonest < now - tie:
            soonest = math.inf
            for s in range(servers):
                ends = end[s]
                while ends < now - tie:
                    left = held[s] - size[s]
                    held[s], since[s] = left, ends
                    if left == 0:
                        size[s], ends = 0, math.inf
                        break
                    k = min(left, b)
                    ends += service[k - 1]
                    if i >= SETTLED:
                        for j in range(head[s], head[s] + k):
                            sojourn[seen] = ends - line[s, j & wrap]
                            seen += 1
                    head[s] += k
                    size[s] = k
                end[s] = ends
                if ends < soonest:
                    soonest = ends
        best, fewest, longest = 0, held[0], since[0]
        for s in range(1, servers):
            here = held[s]
            if here < fewest or (here == fewest and since[s] < longest):
                best, fewest, longest = s, here, since[s]
        held[best], since[best] = fewest + 1, now
        if fewest == 0:
            size[best] = 1
            end[best] = now + service[0]
            if end[best] < soonest:
                soonest = end[best]
            if i >= SETTLED:
                sojourn[seen] = service[0]
                seen += 1
        else:
            waiting = fewest - size[best]
            if waiting >= width:
                return -1
            line[best, (head[best] + waiting) & wrap] = now
    return seen


@kernel
def run_one(arrival: FloatArray, service: FloatArray, sojourn: FloatArray) -> int:
    """Simulate one server like `run_pool`, but batch by batch, in a third of the time."""
    b = service.size
    free, i, seen = 0.0, 0, 0
    while i < arrival.size:
        start = max(free, arrival[i])
        last = min(i + b, arrival.size)
        behind = i + 1
        while behind < last and arrival[behind] <= start:
            behind += 1
        free = start + service[behind - i - 1]
        if i >= SETTLED:
            for j in range(i, behind):
                sojourn[seen] = free - arrival[j]
                seen += 1
        i = behind
    return seen
