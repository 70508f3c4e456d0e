"""Evidence that the batches of one queue take longer than they did while the server kept its promise. Pure.

Late answers follow from a slow server, in clusters and after a while. Its batches show it at once and nearly
independently. A server with one instance of a model runs one batch at a time, so the request log gives the
time of a batch: from when the server was free and the first request had arrived, to the first answer.

The unit of evidence is a block: batches of four requests or more together, or one that stalled, their time
over the usual time of batches of these sizes. A batch after a rest has a baseline of its own: at a quota it
takes what is left of the period. Distributions differ between models and hosts, so the test assumes none.
The server's own baseline keeps the two ratios that 10 % and 1 % of its blocks exceed; a Pareto tail through
them gives the ratio for 0.1 %. A CUSUM chart scores each block by the logarithm of how much likelier a slow
server's block lies between two of these thresholds than a healthy one's. While at most 1.75 times these
shares of the blocks exceed the thresholds, exp(score) is a supermartingale between resets, and the mean
number of blocks to a false alarm at height h is at least exp(h) (Lorden 1971). A block adds at most ln 86,
and only after another slow one; alone it adds ln 13, however long it took: a host that stalls for seconds
delays one block.

A host that is short of cores delays every batch, and the kernel counts for how long. A batch counts without
that part (`host.unexplained`), in the baseline and against it.

The baseline learns only when the score is back at zero, so that a slow server does not become its own
measure. A slowdown that breaks nothing for a while becomes the baseline.

An answer counts with the time that it would have taken without the stalls of its busy period, and had its
longest batch been delayed no more than the second longest: one slow batch is an accident, two are not.
"""

from __future__ import annotations

import functools
import math
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass, replace

from controlplane.domain.observation import Answer

SHARES = (0.1, 0.01)
"""The shares of a healthy server's blocks above the two recorded thresholds."""

TAIL_SHARE = 0.001
"""The share above a third threshold, by a Pareto tail through the two."""

LEAST_SLOWER = 1.1
"""A block that takes less than this many times its usual time is no slower one, however small the spread."""

LEAST_TAIL = 1.1
"""The least quotient of the third threshold and the second, for times with hardly any spread."""

SLACK = 1.75
"""The baseline may be wrong by this factor, in shares."""

SLOW_SHARES = (0.4, 0.25, 0.2, 0.15)
"""A slow server's blocks below the thresholds, between each two, and above all. At a quota a server that
takes half as long again has many blocks that take no longer: those after a rest."""

USUAL_SHARES = (
    1.0 - SLACK * SHARES[0],
    SLACK * (SHARES[0] - SHARES[1]),
    SLACK * (SHARES[1] - TAIL_SHARE),
    SLACK * TAIL_SHARE,
)
SCORES = tuple(math.log(slow / usual) for slow, usual in zip(SLOW_SHARES, USUAL_SHARES, strict=True))

SIZES = 17
"""Batches of 1 to 16 requests have a baseline of their own, larger ones share the last. A batch of k is at
place k of the baseline; after a rest it is at SIZES + k."""

RESTED_S = 0.01
"""A server that had no work for so long has its quota back, a period of it: its next batch is faster."""

GAP_S = 0.001
"""Answers of one batch leave within this time of one another, ..."""

CLOSED_S = 0.1
"""... and their lines are in the log after this time."""

BLOCK = 4
"""Batches of so many requests together are the unit of evidence: their time varies less than that of one."""

LEARN_BATCHES = 10
LEARN_BLOCKS = 30
CHECK_BLOCKS = 130
"""From the blocks after the first ones the thresholds are found once more, and lowered where those of a busy
start were too high: single blocks would lower them far too slowly."""

CHECK_TAIL = 1.5
"""There the ratio that 1 % exceed lies above the one that 5 % exceed by the quotient of this and the one that
10 % exceed, to this power: the largest of 100 may be that of a busy moment of the host."""

TAIL = math.log(10.0) / math.log(5.0)
"""A Pareto tail through the median and the ratio that 10 % exceed goes on by their quotient to this power."""

RECENT_BLOCKS = 6
"""The blocks over which the slowdown is averaged, ..."""

LASTING_BLOCKS = 60.0
"""... and those over which a lasting one is."""

LEAST_LASTING = 20.0
"""Fewer blocks show no lasting slowdown."""

MEMORY_BATCHES = 500.0
STEP = 0.01
HOLD = 0.3
"""From this strength on the baseline does not change."""

HORIZON_S = 7 * 86400.0
ACCEPT_S = 30.0
"""A slowdown that breaks no promise for so long becomes the baseline."""

STALL = 3.0
"""A batch of this many times its usual time is a stall."""

STALL_S = 5.0
STALLS = 6
"""So many stalls in a row excuse what they delay, and one more every STALL_S."""

OUTLIER = 8.0
"""One batch counts for at most this many times its usual time: a stall says little of the others."""

_SCORE, _FREE, _SINCE, _STALLED, _STALLS = range(5)
_SLOW_TOOK, _SLOW_USUAL, _TOOK, _USUAL, _REQUESTS, _ESTIMATED, _BLOCKS, _ABOVE = range(5, 13)
_LONGEST, _SECOND, _OPEN, _OVER, _FAR_OVER = range(13, 18)
_LASTING, _LASTING_SUM, _LASTING_SQUARES = range(18, 21)


@dataclass(frozen=True, slots=True)
class Service:
    """A server's baseline of one queue, and the chart against the server.

    `chart`: the score; when the server was last free; since when the score is above HOLD; how much longer
    than usual the stalls of the busy period took; how far the stalls are ahead of one every STALL_S; the time
    and the usual time of the recent blocks, and of the open block, with its requests and whether a usual time
    is an estimate; the blocks of the baseline; whether the last block was above the second threshold; how
    much longer than usual the longest and the second longest batch of the busy period took; the blocks that
    are not learned yet, and how many of them exceeded each threshold. `means` are the usual times of each
    size in seconds, `thresholds` the ratios that 10 % and 1 % of the blocks exceed, `first` the first ratios,
    then the largest of those after them. `open` are the answers of a batch that may not be complete.
    """

    chart: tuple[float, ...] = (0.0, -math.inf, math.inf, 0.0, -math.inf, *(0.0,) * 16)
    counts: tuple[float, ...] = (0.0,) * (2 * SIZES)
    means: tuple[float, ...] = (0.0,) * (2 * SIZES)
    thresholds: tuple[float, ...] = (0.0,) * len(SHARES)
    first: tuple[float, ...] = (0.0,) * LEARN_BLOCKS
    open: tuple[Answer, ...] = ()

    @property
    def score(self) -> float:
        """The logarithm of the evidence that batches take longer."""
        return self.chart[_SCORE]


@functools.lru_cache(4096)
def height(rate_rps: float) -> float:
    """Return the score of the alarm: the logarithm of the most blocks in the horizon."""
    return math.log(max(rate_rps * HORIZON_S / BLOCK, 100.0))


def strength(service: Service, rate_rps: float) -> float:
    """Return the score as a part of the alarm's."""
    return service.score / height(rate_rps)


def slowdown(service: Service) -> float:
    """Return how many times their usual time the recent batches took."""
    usual_s = service.chart[_SLOW_USUAL]
    return service.chart[_SLOW_TOOK] / usual_s if usual_s > 0.0 else 1.0


def lasting(service: Service) -> tuple[float, float]:
    """Return how many times their usual time the blocks of some seconds took, and its standard error.

    Infinite errors stand for too few blocks.
    """
    number = service.chart[_LASTING]
    if number < LEAST_LASTING:
        return 1.0, math.inf
    mean = service.chart[_LASTING_SUM] / number
    variance = max(0.0, service.chart[_LASTING_SQUARES] / number - mean * mean)
    return mean, math.sqrt(variance / number)


def measured_s(service: Service, limit: int) -> tuple[float, ...]:
    """Return the usual times of batches of 1 to `limit`, 0 for sizes of which too few were seen."""
    times = []
    for size in range(1, limit + 1):
        place = min(size, SIZES - 1)
        known = next((k for k in (place, place + SIZES) if service.counts[k] >= LEARN_BATCHES), None)
        times.append(0.0 if known is None else service.means[known])
    return tuple(times)


def spread(service: Service) -> tuple[float, float]:
    """Return the ratios to the usual time that 10 % and 1 % of the blocks exceed; 1 where none is known."""
    tenth, hundredth = (max(1.0, threshold) for threshold in service.thresholds)
    return min(tenth, OUTLIER), min(hundredth, OUTLIER)


def usual_s(service: Service, limit: int) -> tuple[float, ...]:
    """Return the usual times of batches of 1 to `limit`; empty where nothing is known.

    A size without a baseline takes as long as the next smaller one, in proportion to the sizes. A queue has
    few batches after a rest: their baseline counts where there is no other.
    """
    times: list[float] = []
    for size in range(1, limit + 1):
        known = _known(service.counts, min(size, SIZES - 1))
        if known == 0:
            known = next((k for k in range(1, 2 * SIZES) if service.counts[k] >= LEARN_BATCHES), 0)
        if known == 0:
            return ()
        times.append(service.means[known] * max(1.0, size / (known % SIZES)))
    return tuple(times)


def restart(service: Service) -> Service:
    """Return the baseline with a score of zero."""
    chart = list(service.chart)
    for place in (_SCORE, _OPEN, _OVER, _FAR_OVER, _LASTING, _LASTING_SUM, _LASTING_SQUARES):
        chart[place] = 0.0
    return replace(service, chart=tuple(chart))


def weigh(
    service: Service,
    answers: Sequence[Answer],
    rate_rps: float,
    now_s: float,
    unexplained: float = 1.0,
    *,
    calm: bool = True,
) -> tuple[Service, list[Answer]]:
    """Return the baseline after these answers, in the order they ended, and the answers that count.

    Failed requests do not count; the others count with the times that they would have taken without a stall.
    `unexplained` is the part of a batch's time that the host cannot explain. The baseline learns only while
    it is `calm`: while late answers are hardly evidence either.
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
    chart, first = list(service.chart), list(service.first)
    counts, means, thresholds = list(service.counts), list(service.means), list(service.thresholds)
    latencies = [a.latency_ms / 1000.0 for a in heard]
    ends = [a.ended_s for a in heard]
    scan(chart, counts, means, thresholds, first, ends, latencies, (height(rate_rps), unexplained, calm))
    after = Service(tuple(chart), tuple(counts), tuple(means), tuple(thresholds), tuple(first), waiting)
    counted = zip(heard, latencies, strict=True)
    return after, [Answer(a.ended_s, 1000.0 * s, False, a.endpoint, a.server) for a, s in counted]


def scan(
    chart: MutableSequence[float],
    counts: MutableSequence[float],
    means: MutableSequence[float],
    thresholds: MutableSequence[float],
    first: MutableSequence[float],
    ended_s: Sequence[float],
    latency_s: MutableSequence[float],
    limits: tuple[float, float, bool],
) -> None:
    """Carry the baseline and the chart over whole batches; take the longest delay off `latency_s`.

    `limits` are the alarm's score, the part of a batch's time that the host cannot explain, which is the time
    that counts, and whether the baseline may learn. Plain arithmetic, so that the bench compiles it.
    """
    begin = 0
    while begin < len(ended_s):
        last = begin
        arrived = ended_s[begin] - latency_s[begin]
        while last + 1 < len(ended_s) and ended_s[last + 1] - ended_s[begin] <= GAP_S:
            last += 1
            arrived = min(arrived, ended_s[last] - latency_s[last])
        place = min(last + 1 - begin, SIZES - 1)
        if arrived >= chart[_FREE] + RESTED_S:
            place += SIZES
        own = limits[1]
        took_s = ended_s[begin] - max(chart[_FREE], arrived)
        known = _known(counts, place)
        usual_s = _usual(means, known, place)
        excess_s = took_s - usual_s / own
        if arrived >= chart[_FREE]:
            chart[_STALLED] = chart[_LONGEST] = chart[_SECOND] = 0.0
        stalled = took_s * own > STALL * usual_s
        if stalled:
            # A host that stalls so often is no excuse any more: the server itself may be slow.
            due_s = max(chart[_STALLS], ended_s[begin])
            if due_s - ended_s[begin] <= STALL_S * (STALLS - 1):
                chart[_STALLS] = due_s + STALL_S
                chart[_STALLED] += excess_s
        elif excess_s > chart[_LONGEST]:
            chart[_SECOND] = chart[_LONGEST]
            chart[_LONGEST] = excess_s
        else:
            chart[_SECOND] = max(chart[_SECOND], excess_s)
        excused_s = chart[_STALLED] + chart[_LONGEST] - chart[_SECOND]
        for i in range(begin, last + 1):
            latency_s[i] -= excused_s
        if took_s > 0.0:
            if known > 0:
                chart[_TOOK] += took_s * own
                chart[_USUAL] += usual_s
                chart[_REQUESTS] += last + 1 - begin
                if known != place:
                    chart[_ESTIMATED] = 1.0
            if chart[_SCORE] == 0.0 and limits[2]:
                _learn_mean(counts, means, place, took_s * own)
            if stalled or chart[_REQUESTS] >= BLOCK:
                _weigh_block(chart, counts, thresholds, first, ended_s[last], (limits[0], limits[2]))
        chart[_FREE] = ended_s[last]
        begin = last + 1


def _weigh_block(
    chart: MutableSequence[float],
    counts: MutableSequence[float],
    thresholds: MutableSequence[float],
    first: MutableSequence[float],
    ended_s: float,
    limits: tuple[float, bool],
) -> None:
    """Carry the chart over one block, and the baseline where it may learn and the score is not high."""
    alarm, learns = limits
    ratio = chart[_TOOK] / chart[_USUAL]
    if chart[_BLOCKS] >= LEARN_BLOCKS:
        exceeded = 0
        rare = thresholds[1] * max(LEAST_TAIL, thresholds[1] / thresholds[0])
        for threshold in (thresholds[0], thresholds[1], rare):
            if ratio > max(threshold, LEAST_SLOWER):
                exceeded += 1
        if chart[_ABOVE] == 0.0:
            exceeded = min(exceeded, 2)
        chart[_ABOVE] = 1.0 if exceeded >= 2 else 0.0
        chart[_SCORE] = min(alarm, max(0.0, chart[_SCORE] + SCORES[exceeded]))
    for place, time_s in ((_SLOW_TOOK, min(ratio, OUTLIER) * chart[_USUAL]), (_SLOW_USUAL, chart[_USUAL])):
        chart[place] += time_s - chart[place] / RECENT_BLOCKS
    if chart[_BLOCKS] >= LEARN_BLOCKS:
        counted = min(ratio, OUTLIER)
        kept = 1.0 - 1.0 / LASTING_BLOCKS
        chart[_LASTING] = kept * chart[_LASTING] + 1.0
        chart[_LASTING_SUM] = kept * chart[_LASTING_SUM] + counted
        chart[_LASTING_SQUARES] = kept * chart[_LASTING_SQUARES] + counted * counted
    if chart[_SCORE] < HOLD * alarm:
        chart[_SINCE] = math.inf
        if learns:
            _learn_block(chart, thresholds, first, ratio)
    elif chart[_SINCE] == math.inf:
        chart[_SINCE] = ended_s
    elif ended_s - chart[_SINCE] > ACCEPT_S:
        chart[_SINCE] = math.inf
        chart[_BLOCKS] = chart[_SCORE] = 0.0
        chart[_OPEN] = chart[_OVER] = chart[_FAR_OVER] = 0.0
        chart[_LASTING] = chart[_LASTING_SUM] = chart[_LASTING_SQUARES] = 0.0
        for k in range(2 * SIZES):
            counts[k] = 0.0
        for k in range(LEARN_BLOCKS):
            first[k] = 0.0
    chart[_TOOK] = chart[_USUAL] = chart[_REQUESTS] = chart[_ESTIMATED] = 0.0


def _known(counts: Sequence[float], place: int) -> int:
    """The place whose baseline holds for `place`; 0 without one.

    The time of a batch grows at most in proportion to its size, so that of the next smaller size with a
    baseline holds; else that of the batches after a rest holds for those without one, or the other way round.
    """
    for start in (place, (place + SIZES) % (2 * SIZES)):
        for known in range(start, start - start % SIZES, -1):
            if counts[known] >= LEARN_BATCHES:
                return known
    return 0


def _usual(means: Sequence[float], known: int, place: int) -> float:
    """The usual time of a batch at `place` by the baseline at `known`; infinite without one."""
    return means[known] * (place % SIZES) / (known % SIZES) if known > 0 else math.inf


def _learn_mean(
    counts: MutableSequence[float], means: MutableSequence[float], place: int, took_s: float
) -> None:
    """Move the usual time at one place by one batch."""
    taken_s = min(took_s, OUTLIER * means[place]) if counts[place] > 0.0 else took_s
    means[place] += (taken_s - means[place]) / min(counts[place] + 1.0, MEMORY_BATCHES)
    counts[place] += 1.0


def _learn_block(
    chart: MutableSequence[float],
    thresholds: MutableSequence[float],
    first: MutableSequence[float],
    ratio: float,
) -> None:
    """Count one block against the thresholds, and move these once the score is back at zero.

    An estimated usual time is too long and ratios to it too small, so such a block lowers no threshold.
    """
    if chart[_BLOCKS] < LEARN_BLOCKS:
        if chart[_ESTIMATED] == 0.0:
            _learn_first(chart, thresholds, first, ratio)
        return
    if chart[_BLOCKS] < CHECK_BLOCKS and ratio < STALL:
        _sort_in(first, LEARN_BLOCKS, ratio)
    if chart[_ESTIMATED] == 0.0:
        chart[_OPEN] += 1.0
    for j in range(len(SHARES)):
        if ratio > thresholds[j]:
            chart[_OVER + j] += 1.0
    if chart[_SCORE] == 0.0:
        step = max(STEP, 1.0 / chart[_BLOCKS])
        for j in range(len(SHARES)):
            thresholds[j] *= math.exp(step * (chart[_OVER + j] - SHARES[j] * chart[_OPEN]))
            chart[_OVER + j] = 0.0
        if chart[_BLOCKS] < CHECK_BLOCKS <= chart[_BLOCKS] + chart[_OPEN]:
            after = CHECK_BLOCKS - LEARN_BLOCKS
            tenth, twentieth = first[after // 10 - 1], first[after // 20 - 1]
            thresholds[0] = min(thresholds[0], tenth)
            thresholds[1] = min(thresholds[1], twentieth * (twentieth / tenth) ** CHECK_TAIL)
        chart[_BLOCKS] += chart[_OPEN]
        chart[_OPEN] = 0.0


def _learn_first(
    chart: MutableSequence[float],
    thresholds: MutableSequence[float],
    first: MutableSequence[float],
    ratio: float,
) -> None:
    """Sort one of the first ratios in; start the thresholds from them at the last one.

    The largest of them may be a stall: it bounds the second threshold, and a Pareto tail does as well.
    """
    _sort_in(first, int(chart[_BLOCKS]) + 1, ratio)
    chart[_BLOCKS] += 1.0
    if chart[_BLOCKS] == LEARN_BLOCKS:
        tenth = first[int(SHARES[0] * LEARN_BLOCKS) - 1]
        thresholds[0] = tenth
        thresholds[1] = min(first[0], tenth * (tenth / first[LEARN_BLOCKS // 2]) ** TAIL)
        for k in range(LEARN_BLOCKS):
            first[k] = 0.0


def _sort_in(first: MutableSequence[float], length: int, ratio: float) -> None:
    """Sort a ratio in among the first `length`, the largest first; the last of them falls out."""
    at = length - 1
    if ratio <= first[at]:
        return
    while at > 0 and first[at - 1] < ratio:
        first[at] = first[at - 1]
        at -= 1
    first[at] = ratio
