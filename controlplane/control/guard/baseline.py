"""What is usual for a server: the times of its batches, how far blocks lie above them, and their P99. Pure.

A batch after a rest has a usual time of its own: at a quota it takes what is left of the period.
Distributions differ between models and hosts, so none is assumed: the baseline keeps the ratios to the usual
time that 10 % and 1 % of the blocks exceed.

The P99 at observed batch times and rate is for a verdict ahead of late answers. The queue is Triton's greedy
batcher under Poisson arrivals, run over one fixed stream. `latency.queueing` solves the same queue exactly,
but compiles at its first use, and a verdict must not wait for a compiler. The stream is the one of eleven
whose P99 is nearest to the exact ones: off by 3 % (root mean square) for batches of 1 to 8 at loads of 0.4 to
0.9. Batches vary as in the server's baseline: constant times make it too small.
"""

from __future__ import annotations

import functools
import math
import random
import statistics
from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from operator import sub
from typing import NamedTuple

SHARES = (0.1, 0.01)
"""The shares of a healthy server's blocks above the two thresholds."""
SIZES = 17
"""Batches of 1 to 16 requests have a usual time of their own, larger ones share the last. A batch of k is at
place k; after a rest it is at SIZES + k."""
OUTLIER = 8.0
"""One batch counts for at most this many times its usual time: a stall says little of the others."""
STALL = 3.0
"""A batch of this many times its usual time is a stall."""
LEARN_BATCHES = 10
LEARN_BLOCKS = 30
CHECK_BLOCKS = 130
"""From the blocks after the first ones the thresholds are found once more, and lowered where those of a busy
start were too high: single blocks would lower them far too slowly."""
CHECK_TAIL = 1.5
"""There the ratio that 1 % exceed lies above the one that 5 % exceed by the quotient of this and the one that
10 % exceed, to this power: the largest of 100 may be that of a busy moment of the host."""
PARETO = math.log(10.0) / math.log(5.0)
"""A Pareto tail through the median and the ratio that 10 % exceed goes on by their quotient to this power."""
MEMORY_BATCHES = 500.0
STEP = 0.01


class Tail(NamedTuple):
    """The ratios that 10 % and 1 % of the `blocks` exceed.

    `new` blocks are not learned yet; `over` and `far_over` are how many of these exceeded each threshold.
    """

    tenth: float = 0.0
    hundredth: float = 0.0
    blocks: float = 0.0
    new: float = 0.0
    over: float = 0.0
    far_over: float = 0.0


class Baseline(NamedTuple):
    """The batches seen at each place, their usual time in seconds, and the thresholds.

    `first` are the first ratios of blocks, then the largest of those after them. What learns changes the
    three sequences in place, after `copied`.
    """

    counts: MutableSequence[float]
    means: MutableSequence[float]
    first: MutableSequence[float]
    tail: Tail = Tail()


EMPTY = Baseline([0.0] * (2 * SIZES), [0.0] * (2 * SIZES), [0.0] * LEARN_BLOCKS)


def copied(baseline: Baseline) -> Baseline:
    """Return the baseline with sequences of its own."""
    return Baseline(list(baseline.counts), list(baseline.means), list(baseline.first), baseline.tail)


def measured_s(baseline: Baseline, limit: int) -> tuple[float, ...]:
    """Return the usual times of batches of 1 to `limit`, 0 for sizes of which too few were seen."""
    found = []
    for size in range(1, limit + 1):
        place = min(size, SIZES - 1)
        at = next((k for k in (place, place + SIZES) if baseline.counts[k] >= LEARN_BATCHES), None)
        found.append(0.0 if at is None else baseline.means[at])
    return tuple(found)


def usual_s(baseline: Baseline, limit: int) -> tuple[float, ...]:
    """Return the usual times of batches of 1 to `limit`; empty where nothing is known.

    A size without one takes as long as the next smaller one, in proportion to the sizes. A queue has few
    batches after a rest: their time counts where there is no other.
    """
    found: list[float] = []
    for size in range(1, limit + 1):
        at = known_place(baseline.counts, min(size, SIZES - 1))
        if at == 0:
            at = next((k for k in range(1, 2 * SIZES) if baseline.counts[k] >= LEARN_BATCHES), 0)
        if at == 0:
            return ()
        found.append(baseline.means[at] * max(1.0, size / (at % SIZES)))
    return tuple(found)


def extended(known_s: Mapping[int, float], limit: int) -> tuple[float, ...]:
    """Return the times of batches of 1 to `limit`: those known, between and beyond them by their line.

    Empty where fewer than two sizes are known: one time says nothing of how it grows.
    """
    if len(known_s) < 2:
        return (known_s[1],) if limit == 1 and 1 in known_s else ()
    slope, first = statistics.linear_regression(list(known_s), list(known_s.values()))
    least = min(known_s.values())
    return tuple(known_s.get(k) or max(first + max(slope, 0.0) * k, least) for k in range(1, limit + 1))


def spread(baseline: Baseline) -> tuple[float, float]:
    """Return the ratios to the usual time that 10 % and 1 % of the blocks exceed; 1 where none is known."""
    tail = baseline.tail
    return min(max(1.0, tail.tenth), OUTLIER), min(max(1.0, tail.hundredth), OUTLIER)


def known_place(counts: Sequence[float], place: int) -> int:
    """Return the place whose usual time holds for `place`; 0 without one.

    The time of a batch grows at most in proportion to its size, so that of the next smaller size with a
    usual time holds; else that of the batches after a rest holds for those without one, or the other way
    round.
    """
    for start in (place, (place + SIZES) % (2 * SIZES)):
        for known in range(start, start - start % SIZES, -1):
            if counts[known] >= LEARN_BATCHES:
                return known
    return 0


def usual_at(means: Sequence[float], known: int, place: int) -> float:
    """Return the usual time of a batch at `place` by the one at `known`; infinite without one."""
    return means[known] * (place % SIZES) / (known % SIZES) if known > 0 else math.inf


def learn_batch(baseline: Baseline, place: int, took_s: float) -> None:
    """Move the usual time at one place by one batch."""
    counts, means = baseline.counts, baseline.means
    taken_s = min(took_s, OUTLIER * means[place]) if counts[place] > 0.0 else took_s
    means[place] += (taken_s - means[place]) / min(counts[place] + 1.0, MEMORY_BATCHES)
    counts[place] += 1.0


def learn_block(baseline: Baseline, ratio: float, estimated: bool, settled: bool) -> Tail:
    """Return the tail with one block counted, and the thresholds moved where the chart is `settled` at zero.

    An estimated usual time is too long and ratios to it too small, so such a block lowers no threshold.
    """
    first, tail = baseline.first, baseline.tail
    if tail.blocks < LEARN_BLOCKS:
        return tail if estimated else _learn_first(first, tail, ratio)
    if tail.blocks < CHECK_BLOCKS and ratio < STALL:
        _sort_in(first, LEARN_BLOCKS, ratio)
    new = tail.new + (0.0 if estimated else 1.0)
    over = tail.over + (1.0 if ratio > tail.tenth else 0.0)
    far_over = tail.far_over + (1.0 if ratio > tail.hundredth else 0.0)
    if not settled:
        return Tail(tail.tenth, tail.hundredth, tail.blocks, new, over, far_over)
    step = max(STEP, 1.0 / tail.blocks)
    tenth = tail.tenth * math.exp(step * (over - SHARES[0] * new))
    hundredth = tail.hundredth * math.exp(step * (far_over - SHARES[1] * new))
    if tail.blocks < CHECK_BLOCKS <= tail.blocks + new:
        after = CHECK_BLOCKS - LEARN_BLOCKS
        checked, twentieth = first[after // 10 - 1], first[after // 20 - 1]
        tenth = min(tenth, checked)
        hundredth = min(hundredth, twentieth * (twentieth / checked) ** CHECK_TAIL)
    return Tail(tenth, hundredth, tail.blocks + new, 0.0, 0.0, 0.0)


def forget(baseline: Baseline) -> Tail:
    """Begin anew: return the tail of no block. The thresholds stand until there are enough for new ones."""
    counts, first = baseline.counts, baseline.first
    for k in range(2 * SIZES):
        counts[k] = 0.0
    for k in range(LEARN_BLOCKS):
        first[k] = 0.0
    return Tail(baseline.tail.tenth, baseline.tail.hundredth, 0.0, 0.0, 0.0, 0.0)


def _learn_first(first: MutableSequence[float], tail: Tail, ratio: float) -> Tail:
    """Sort one of the first ratios in; start the thresholds from them at the last one.

    The largest of them may be a stall: it bounds the second threshold, and a Pareto tail does as well.
    """
    _sort_in(first, int(tail.blocks) + 1, ratio)
    blocks = tail.blocks + 1.0
    if blocks < LEARN_BLOCKS:
        return Tail(tail.tenth, tail.hundredth, blocks, tail.new, tail.over, tail.far_over)
    tenth = first[int(SHARES[0] * LEARN_BLOCKS) - 1]
    hundredth = min(first[0], tenth * (tenth / first[LEARN_BLOCKS // 2]) ** PARETO)
    for k in range(LEARN_BLOCKS):
        first[k] = 0.0
    return Tail(tenth, hundredth, blocks, tail.new, tail.over, tail.far_over)


def _sort_in(first: MutableSequence[float], length: int, ratio: float) -> None:
    """Sort a ratio in among the first `length`, the largest first; the last of them falls out."""
    at = length - 1
    if ratio <= first[at]:
        return
    while at > 0 and first[at - 1] < ratio:
        first[at] = first[at - 1]
        at -= 1
    first[at] = ratio


ARRIVALS = 4000
P99_STEP = 1.02
"""Rates and times are rounded to steps of this factor: the P99 is no more precise."""
_COARSE = 10
"""Steps of a rounding far up."""
_SEED = 8
_OVERLOADED = 0.98
_P99 = 0.99


def rounded_p99_s(rate_rps: float, times_s: Iterable[float], spread: Iterable[float]) -> float:
    """Return `p99_s` of positive values rounded to steps; kept, since a slow server may break nothing."""
    return _kept_p99_s(_step(rate_rps), tuple(map(_step, times_s)), tuple(map(_step, spread)))


def exceeds(limit_s: float, rate_rps: float, times_s: Sequence[float], spread: Sequence[float]) -> bool:
    """Return whether the rounded P99 of positive values is above a limit.

    Under suspicion the values differ at each look, and each P99 takes milliseconds. So it is first computed
    of values rounded far up, which seldom differ: where it is within the limit, no finer one is needed.
    """
    above = _kept_p99_s(_step_above(rate_rps), tuple(map(_step_above, times_s)), tuple(map(_step, spread)))
    return P99_STEP * above > limit_s and rounded_p99_s(rate_rps, times_s, spread) > limit_s


@functools.lru_cache(4096)
def _kept_p99_s(rate: int, times: tuple[int, ...], spread: tuple[int, ...]) -> float:
    return p99_s(P99_STEP**rate, [P99_STEP**step for step in times], [P99_STEP**step for step in spread])


def _step(value: float) -> int:
    return round(math.log(value) / math.log(P99_STEP))


def _step_above(value: float) -> int:
    return _COARSE * math.ceil(_step(value) / _COARSE)


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
