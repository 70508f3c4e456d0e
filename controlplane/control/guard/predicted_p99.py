"""The P99 of a queue at observed batch times and rate, for a verdict ahead of late answers. Pure.

The queue is Triton's greedy batcher under Poisson arrivals, run over one fixed stream. `latency.queueing`
solves the same queue exactly, but compiles at its first use, and a verdict must not wait for a compiler. The
stream is the one of eleven whose P99 is nearest to the exact ones: off by 3 % (root mean square) for batches
of 1 to 8 at loads of 0.4 to 0.9. Batches vary as in the server's baseline: constant times make it too small.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Iterable, Sequence
from operator import sub

ARRIVALS = 4000
STEP = 1.02
"""Rates and times are rounded to steps of this factor: the P99 is no more precise."""
_SEED = 8
_OVERLOADED = 0.98
_P99 = 0.99


def rounded_p99_s(rate_rps: float, times_s: Iterable[float], spread: Iterable[float]) -> float:
    """Return `p99_s` of positive values rounded to steps; kept, since a slow server may break nothing."""
    return _kept_p99_s(_step(rate_rps), tuple(map(_step, times_s)), tuple(map(_step, spread)))


@functools.lru_cache(4096)
def _kept_p99_s(rate: int, times: tuple[int, ...], spread: tuple[int, ...]) -> float:
    return p99_s(STEP**rate, [STEP**step for step in times], [STEP**step for step in spread])


def _step(value: float) -> int:
    return round(math.log(value) / math.log(STEP))


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
