"""The P99 of a queue at observed batch times and rate, for a verdict ahead of late answers. Pure.

The queue is Triton's greedy batcher under Poisson arrivals, run over one fixed stream. `latency.queueing`
solves the same queue exactly, but compiles at its first use, and a verdict must not wait for a compiler. The
stream is the one of eleven whose P99 is nearest to the exact ones:
off by 3 % (root mean square) for batches of 1 to 8 at loads of 0.4 to 0.9 and constant times. Batches vary as
they do in the server's baseline, since constant times make the P99 too small.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Sequence
from operator import sub

ARRIVALS = 4000
STEP = 1.02
"""Rates and slowdowns are told apart by as much: the P99 is no more precise."""
_SEED = 8
_OVERLOADED = 0.98
_P99 = 0.99


@functools.lru_cache(4096)
def p99_in_steps_s(
    rate_steps: int, slower_steps: int, usual_s: tuple[float, ...], spread: tuple[float, ...]
) -> float:
    """Return `p99_s` at a rate of STEP^`rate_steps` requests/s, usual times times STEP^`slower_steps`.

    Kept, because a server that stays slow and breaks nothing is asked about at every look.
    """
    slowdown = STEP**slower_steps
    return p99_s(STEP**rate_steps, [slowdown * usual for usual in usual_s], spread)


def steps(value: float) -> int:
    """Return the power of STEP that is nearest to a positive value."""
    return round(math.log(value) / math.log(STEP))


def rounded(values: Sequence[float]) -> tuple[float, ...]:
    """Return positive values as the nearest powers of STEP, so that those told apart no better are equal."""
    return tuple(STEP ** steps(value) for value in values)


def p99_s(rate_rps: float, times_s: Sequence[float], spread: Sequence[float] = (1.0, 1.0)) -> float:
    """Return the P99 of a request, infinite under overload.

    A batch of k takes `times_s[k - 1]` in the mean; 9 % take `spread[0]` times that, 1 % `spread[1]` times.
    """
    limit = len(times_s)
    if rate_rps <= 0.0:
        return times_s[0]
    if rate_rps * times_s[-1] > _OVERLOADED * limit:
        return math.inf
    due, kinds = [at / rate_rps for at in _arrivals()], _kinds()
    factors = (max(0.0, (1.0 - 0.09 * spread[0] - 0.01 * spread[1]) / 0.9), *spread)
    ends: list[float] = []
    first, free_s = 0, 0.0
    while first < ARRIVALS:
        start = max(due[first], free_s)
        size = 1
        while size < limit and first + size < ARRIVALS and due[first + size] <= start:
            size += 1
        free_s = start + factors[kinds[first]] * times_s[size - 1]
        ends += [free_s] * size
        first += size
    sojourns: list[float] = sorted(map(sub, ends, due))
    return sojourns[math.ceil(_P99 * ARRIVALS) - 1]


@functools.cache
def _arrivals() -> tuple[float, ...]:
    """Return the arrival times of a Poisson stream of one request a second."""
    chance = random.Random(_SEED)
    at, arrivals = 0.0, []
    for _ in range(ARRIVALS):
        at += chance.expovariate(1.0)
        arrivals.append(at)
    return tuple(arrivals)


@functools.cache
def _kinds() -> tuple[int, ...]:
    """Return for each arrival how long its batch takes: 2 for the longest 1 %, 1 for the next 9 %, else 0."""
    chance = random.Random(_SEED + 1)
    chances = (chance.random() for _ in range(ARRIVALS))
    return tuple(2 if u < 0.01 else 1 if u < 0.1 else 0 for u in chances)
