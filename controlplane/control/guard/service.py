"""Do the batches of one queue take longer than they did while the server kept its promise? Pure.

Late answers follow from a slow server, in clusters and after a while. Its batches show it at once and nearly
independently. A server with one instance of a model takes one batch at a time, so the request log gives the
time of a batch: from when the server was free and the first of its requests had come, to its first answer.

The unit of evidence is a block: batches of four requests or more together, their time over the usual time of
batches of these sizes. Distributions differ between models and hosts, so the test assumes none. The server's
own record keeps the ratios that 10 % and 1 % of its blocks exceed. Two CUSUM charts count these exceedances:
a block scores ln(q / m) above the threshold, ln((1 - q) / (1 - m)) below it. As long as a block exceeds it
with a probability of at most m, twice the recorded share, exp(score) is a supermartingale between resets, and
the mean number of blocks up to a false alarm at height h is at least exp(h) (Lorden 1971). One block adds at
most ln(q / m), however long it took: a host that stalls for seconds delays one block and is no slow server.
Nor are the answers that it makes late: an answer counts with the time that it would have taken without the
stalls, or the longest batch, of its busy period.

A slowdown that breaks nothing for a while is the server's record from then on.
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass, replace

from controlplane.domain.observation import Answer

SHARES = (0.1, 0.01)
"""The share of a healthy server's blocks above each chart's threshold."""

SLACK = 2.0
"""The record may be wrong by this factor, in shares."""

SLOW_SHARES = (0.6, 0.5)
"""q: the share of a slow server's blocks above each threshold."""

SIZES = 17
"""Batch sizes with a record of their own; larger ones share the last."""

GAP_S = 0.001
"""Answers of one batch leave within this time of one another, ..."""

CLOSED_S = 0.1
"""... and their lines are in the log after this time."""

BLOCK = 4
"""Batches of so many requests together are the unit of evidence: their time varies less than that of one."""

LEARN_BATCHES = 30
LEARN_BLOCKS = 30
MEMORY_BATCHES = 500.0
STEP = 0.01
HOLD = 0.3
"""From this strength on the record stands still."""

HORIZON_S = 365 * 86400.0
ACCEPT_S = 30.0
"""A slowdown that breaks no promise for so long becomes the record."""

STALL = 3.0
"""A batch of this many times its usual time is a stall."""

STALL_S = 5.0
STALLS = 6
"""So many stalls in a row excuse what they delay, and one more every STALL_S."""

OUTLIER = 8.0
"""One batch counts for at most this many times its usual time: a stall says little of the others."""

_FREE, _SINCE, _EXCESS, _STALLS = range(4)
_SLOW_TOOK, _SLOW_USUAL, _TOOK, _USUAL, _REQUESTS, _ESTIMATED, _BLOCKS = range(4, 11)


@dataclass(frozen=True, slots=True)
class Service:
    """A server's record of one queue, and the charts against it.

    `batch`: when the server was last free; since when a chart stands above HOLD; how much longer than usual
    the stalls, or the longest batch, of the busy period took; how far the stalls are ahead of one every
    STALL_S; the time and the usual time of the blocks since the charts left zero, and of the open block, with
    its requests and whether a usual time is an estimate; the blocks of the record. `means` are the usual
    times of each size in seconds, `thresholds` ratios, one a chart. `open` are the answers of a batch that
    may not be complete.
    """

    scores: tuple[float, ...] = (0.0,) * len(SHARES)
    batch: tuple[float, ...] = (-math.inf, math.inf, 0.0, -math.inf, *(0.0,) * 7)
    counts: tuple[float, ...] = (0.0,) * SIZES
    means: tuple[float, ...] = (0.0,) * SIZES
    thresholds: tuple[float, ...] = (0.0,) * len(SHARES)
    open: tuple[Answer, ...] = ()


def height(rate_rps: float) -> float:
    """The score of the alarm: the logarithm of the blocks that both charts see in the horizon, at most."""
    return math.log(len(SHARES) * max(rate_rps * HORIZON_S, 100.0))


def strength(service: Service, rate_rps: float) -> float:
    """How far the higher chart is on its way to the alarm: 1 is the alarm."""
    return max(service.scores) / height(rate_rps)


def slowdown(service: Service) -> float:
    """How many times their usual time the batches take since the charts left zero."""
    usual_s = service.batch[_SLOW_USUAL]
    return service.batch[_SLOW_TOOK] / usual_s if usual_s > 0.0 else 1.0


def usual_s(service: Service, limit: int) -> tuple[float, ...]:
    """The usual time of batches of 1 to `limit`; empty where nothing is known.

    A size without a record takes its part of the next smaller one's time, as the charts have it.
    """
    times: list[float] = []
    for size in range(1, limit + 1):
        known = _known(service.counts, min(size, SIZES - 1))
        if known == 0:
            known = next((k for k in range(1, SIZES) if service.counts[k] >= LEARN_BATCHES), 0)
        if known == 0:
            return ()
        times.append(service.means[known] * max(1.0, size / known))
    return tuple(times)


def restart(service: Service) -> Service:
    """The record alone, with nothing held against the server."""
    return replace(service, scores=(0.0,) * len(SHARES))


def weigh(
    service: Service, answers: Sequence[Answer], rate_rps: float, now_s: float
) -> tuple[Service, list[Answer]]:
    """The record and the charts after these answers, in the order they ended, and the answers that count.

    Left out are failed requests; the others have the times that they would have taken without a stall.
    """
    heard = [*service.open, *(a for a in answers if not a.failed)]
    if not heard:
        return service, []
    complete = len(heard)
    if heard[-1].ended_s > now_s - CLOSED_S:
        complete -= 1
        while complete > 0 and heard[complete].ended_s - heard[complete - 1].ended_s <= GAP_S:
            complete -= 1
    heard, waiting = heard[:complete], tuple(heard[complete:])
    scores, batch = list(service.scores), list(service.batch)
    counts, means, thresholds = list(service.counts), list(service.means), list(service.thresholds)
    latencies = [a.latency_ms / 1000.0 for a in heard]
    scan(scores, batch, counts, means, thresholds, [a.ended_s for a in heard], latencies, height(rate_rps))
    after = Service(tuple(scores), tuple(batch), tuple(counts), tuple(means), tuple(thresholds), waiting)
    return after, [a._replace(latency_ms=1000.0 * s) for a, s in zip(heard, latencies, strict=True)]


def scan(
    scores: MutableSequence[float],
    batch: MutableSequence[float],
    counts: MutableSequence[float],
    means: MutableSequence[float],
    thresholds: MutableSequence[float],
    ended_s: Sequence[float],
    latency_s: MutableSequence[float],
    alarm: float,
) -> None:
    """Carry the record and the charts over whole batches; take the longest delay off `latency_s`.

    Plain arithmetic, so that the bench compiles it.
    """
    first = 0
    while first < len(ended_s):
        last = first
        arrived = ended_s[first] - latency_s[first]
        while last + 1 < len(ended_s) and ended_s[last + 1] - ended_s[first] <= GAP_S:
            last += 1
            arrived = min(arrived, ended_s[last] - latency_s[last])
        size = min(last + 1 - first, SIZES - 1)
        took_s = ended_s[first] - max(batch[_FREE], arrived)
        known = _known(counts, size)
        usual_s = means[known] * size / known if known > 0 else math.inf
        if arrived >= batch[_FREE]:
            batch[_EXCESS] = 0.0
        if took_s > STALL * usual_s:
            # A server that stalls again and again is no victim of its host.
            due_s = max(batch[_STALLS], ended_s[first])
            if due_s - ended_s[first] <= STALL_S * (STALLS - 1):
                batch[_STALLS] = due_s + STALL_S
                batch[_EXCESS] += took_s - usual_s
        else:
            batch[_EXCESS] = max(batch[_EXCESS], took_s - usual_s)
        for i in range(first, last + 1):
            latency_s[i] -= batch[_EXCESS]
        if took_s > 0.0:
            if known > 0:
                batch[_TOOK] += took_s
                batch[_USUAL] += usual_s
                batch[_REQUESTS] += last + 1 - first
                if known < size:
                    batch[_ESTIMATED] = 1.0
            if batch[_SINCE] == math.inf:
                _learn_mean(counts, means, size, took_s)
            if batch[_REQUESTS] >= BLOCK:
                _weigh_block(scores, batch, counts, thresholds, ended_s[last], alarm)
        batch[_FREE] = ended_s[last]
        first = last + 1


def _weigh_block(
    scores: MutableSequence[float],
    batch: MutableSequence[float],
    counts: MutableSequence[float],
    thresholds: MutableSequence[float],
    ended_s: float,
    alarm: float,
) -> None:
    """Carry the charts over one block, and the record where nothing speaks against the server."""
    ratio = batch[_TOOK] / batch[_USUAL]
    highest = 0.0
    for j in range(len(SHARES)):
        if batch[_BLOCKS] >= LEARN_BLOCKS:
            usual = SLACK * SHARES[j]
            gain = (
                math.log(SLOW_SHARES[j] / usual)
                if ratio > thresholds[j]
                else math.log((1.0 - SLOW_SHARES[j]) / (1.0 - usual))
            )
            scores[j] = min(alarm, max(0.0, scores[j] + gain))
        highest = max(highest, scores[j])
    if highest == 0.0:
        batch[_SLOW_TOOK] = batch[_SLOW_USUAL] = 0.0
    else:
        batch[_SLOW_TOOK] += min(ratio, OUTLIER) * batch[_USUAL]
        batch[_SLOW_USUAL] += batch[_USUAL]
    if highest < HOLD * alarm:
        batch[_SINCE] = math.inf
        _learn_thresholds(batch, thresholds, ratio)
    elif batch[_SINCE] == math.inf:
        batch[_SINCE] = ended_s
    elif ended_s - batch[_SINCE] > ACCEPT_S:
        batch[_SINCE] = math.inf
        batch[_BLOCKS] = 0.0
        for j in range(len(SHARES)):
            scores[j] = thresholds[j] = 0.0
        for k in range(SIZES):
            counts[k] = 0.0
    batch[_TOOK] = batch[_USUAL] = batch[_REQUESTS] = batch[_ESTIMATED] = 0.0


def _known(counts: Sequence[float], size: int) -> int:
    """The size whose record holds for `size`: itself or the next smaller one with a record; 0 without one.

    The time of a batch grows at most in proportion to its size.
    """
    known = size
    while known > 0 and counts[known] < LEARN_BATCHES:
        known -= 1
    return known


def _learn_mean(
    counts: MutableSequence[float], means: MutableSequence[float], size: int, took_s: float
) -> None:
    """Move the usual time of one batch size by one batch."""
    taken_s = min(took_s, OUTLIER * means[size]) if counts[size] > 0.0 else took_s
    means[size] += (taken_s - means[size]) / min(counts[size] + 1.0, MEMORY_BATCHES)
    counts[size] += 1.0


def _learn_thresholds(
    batch: MutableSequence[float], thresholds: MutableSequence[float], ratio: float
) -> None:
    """Move the thresholds by one block; they start at the highest ratio of the first ones.

    An estimated usual time is too long and ratios to it too small, so such a block lowers no threshold.
    """
    for j in range(len(SHARES)):
        if batch[_BLOCKS] < LEARN_BLOCKS:
            thresholds[j] = max(thresholds[j], ratio)
        elif ratio > thresholds[j]:
            thresholds[j] *= math.exp(STEP * (1.0 - SHARES[j]))
        elif batch[_ESTIMATED] == 0.0:
            thresholds[j] *= math.exp(-STEP * SHARES[j])
    if batch[_ESTIMATED] == 0.0:
        batch[_BLOCKS] += 1.0
