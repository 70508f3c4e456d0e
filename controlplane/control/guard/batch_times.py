"""Evidence that the batches of one queue take longer than they did. Pure; docs/design/guard.md.

A server with one instance of a model runs one batch at a time, so the request log gives the time of a batch:
from when the server was free and the first request had arrived, to the first answer, without the part that
the host explains (`HostPart`). The unit of evidence is a block: batches of four requests or more
together, or one that stalled, their time over the usual one. A CUSUM chart scores each block by the logarithm
of how much likelier a slow server's block lies between two thresholds of the baseline than a healthy one's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import MutableSequence, Sequence
from typing import NamedTuple

from controlplane.control.guard import baseline
from controlplane.control.guard.baseline import OUTLIER, SHARES, SIZES, STALL, Baseline
from controlplane.control.guard.promise import HORIZON_S
from controlplane.domain.observation import Answer

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

RESTED_S = 0.01
"""A server that had no work for so long has its quota back, a period of it: its next batch is faster."""
GAP_S = 0.001
"""Answers of one batch leave within this time of one another, ..."""
CLOSED_S = 0.1
"""... and their lines are in the log after this time."""

BLOCK = 4
"""Batches of so many requests together are the unit of evidence: their time varies less than that of one."""
RECENT_BLOCKS = 6
"""The blocks over which the slowdown is averaged, ..."""
LASTING_BLOCKS = 60.0
"""... and those over which a lasting one is."""
LEAST_LASTING = 8.0
"""Fewer blocks show no lasting slowdown."""
SURE = 3.0
"""The standard errors by which batches must take longer than would break the P99."""
HOLD = 0.3
"""From this strength on the baseline does not change."""
ACCEPT_S = 30.0
"""A slowdown that breaks no promise for so long becomes the baseline."""
WAITS = 3.0
"""The gateway's wait for a core varies as an exponential one: few last longer than so many mean ones."""
STALL_S = 5.0
STALLS = 6
"""So many stalls in a row excuse what they delay, and one more every STALL_S."""


class Chart(NamedTuple):
    """The logarithm of the evidence that batches take longer; since when it is above HOLD.

    `above`: the last block exceeded the second threshold.
    """

    score: float = 0.0
    since_s: float = math.inf
    above: bool = False


class BusyPeriod(NamedTuple):
    """The end of the last batch, and by how much those since the server last had no work were delayed.

    The stalls took `stalled_s` longer than usual, of the other batches the two most delayed `longest_s` and
    `second_s`. `excused_s` is how far stalls are ahead of one every STALL_S.
    """

    free_s: float = -math.inf
    stalled_s: float = 0.0
    longest_s: float = 0.0
    second_s: float = 0.0
    excused_s: float = -math.inf


class Block(NamedTuple):
    """The block under way: its time, the part of it that the host does not explain, and its usual time.

    `estimated`: a part of the latter is an estimate.
    """

    took_s: float = 0.0
    own_s: float = 0.0
    usual_s: float = 0.0
    batches: float = 0.0
    requests: float = 0.0
    estimated: bool = False


class Recent(NamedTuple):
    """The sums of the last RECENT_BLOCKS: see `Block`."""

    took_s: float = 0.0
    own_s: float = 0.0
    usual_s: float = 0.0
    batches: float = 0.0


class BesidePlan(NamedTuple):
    """The own times of batches of a kind beside the planned ones.

    Of the block under way, as sums over the last RECENT_BLOCKS, and of the last LASTING_BLOCKS their number
    and the sums of their multiples of the planned time and of the squares of these. A batch whose answers
    come apart looks like a long one and a short one: together they have the right time.
    """

    own_s: float = 0.0
    planned_s: float = 0.0
    requests: float = 0.0
    recent_s: float = 0.0
    recent_planned_s: float = 0.0
    blocks: float = 0.0
    multiples: float = 0.0
    squares: float = 0.0


class BatchTimes(NamedTuple):
    """A server's baseline of one queue, the chart against the server, and its batches beside the plan's.

    Of all batches, and of those that had to wait: after a rest they are faster at a quota. `open` are the
    answers of a batch that may not be complete.
    """

    baseline: Baseline = baseline.EMPTY
    chart: Chart = Chart()
    busy: BusyPeriod = BusyPeriod()
    block: Block = Block()
    recent: Recent = Recent()
    queued: BesidePlan = BesidePlan()
    every: BesidePlan = BesidePlan()
    open: tuple[Answer, ...] = ()


class HostPart(NamedTuple):
    """What the host explains of a batch's time.

    `own` is the part of a server's time that it does not explain, `wait_s` how long the gateway waits in the
    mean until it passes an answer on. `cut`: the server itself has lost its quota, so a stall is its own.
    """

    own: float = 1.0
    wait_s: float = 0.0
    cut: bool = False


NO_PART = HostPart()


class Weighing(NamedTuple):
    """The alarm's score, the planned times, the host's part of a batch's, and whether the baseline learns.

    The planned times are of batches of 1, 2, ... requests; none where the plan has no prediction. They lack
    `frontend_s`, what a request spends outside of queue and batch.
    """

    alarm: float
    planned_s: Sequence[float] = ()
    host: HostPart = NO_PART
    learns: bool = True
    frontend_s: float = 0.0


@functools.lru_cache(4096)
def height(rate_rps: float) -> float:
    """Return the score of the alarm: the logarithm of the most blocks in the horizon."""
    return math.log(max(rate_rps * HORIZON_S / BLOCK, 100.0))


def strength(times: BatchTimes, rate_rps: float) -> float:
    """Return the score as a part of the alarm's."""
    return times.chart.score / height(rate_rps)


def slowdown(times: BatchTimes, host: HostPart = NO_PART) -> float:
    """Return how many times their usual time the recent batches took by the server's own fault.

    A reading of the host is of the time before it: where its part grows or falls, the part that it had when
    the blocks were weighed and its present one are both wrong for some of them. The larger one counts.
    """
    recent = times.recent
    if recent.usual_s <= 0.0:
        return 1.0
    return min(recent.own_s, own_s(recent.took_s, recent.batches, host)) / recent.usual_s


def own_s(took_s: float, batches: float, host: HostPart) -> float:
    """Return the part of the time of so many batches that the host does not explain."""
    return host.own * max(0.0, took_s - WAITS * host.wait_s * batches)


def beside_plan(times: BatchTimes) -> tuple[float, float]:
    """Return how many times as long as planned batches have taken for some seconds, and its standard error.

    Of all batches or of those that had to wait, whichever is the surer sign of slower ones. Infinite errors
    stand for too few blocks.
    """
    return max(map(_multiple, (times.every, times.queued)), key=lambda one: one[0] - SURE * one[1])


def _multiple(plan: BesidePlan) -> tuple[float, float]:
    if plan.blocks < LEAST_LASTING:
        return 1.0, math.inf
    mean = plan.multiples / plan.blocks
    variance = max(0.0, plan.squares / plan.blocks - mean * mean)
    return mean, math.sqrt(variance / plan.blocks)


def recently_beside_plan(times: BatchTimes) -> float:
    """Return how many times as long as planned the last batches took; 1 where that is not known."""
    return max(
        (p.recent_s / p.recent_planned_s for p in (times.every, times.queued) if p.recent_planned_s),
        default=1.0,
    )


def restart(times: BatchTimes) -> BatchTimes:
    """Return the baseline with a score of zero."""
    tail = times.baseline.tail._replace(new=0.0, over=0.0, far_over=0.0)
    kept, chart = times.baseline._replace(tail=tail), times.chart._replace(score=0.0)
    return times._replace(baseline=kept, chart=chart, every=BesidePlan(), queued=BesidePlan())


def weigh(
    times: BatchTimes, answers: Sequence[Answer], now_s: float, weighing: Weighing
) -> tuple[BatchTimes, list[Answer]]:
    """Return the baseline after these answers, in the order they ended, and the answers that count.

    Failed requests do not count; the others count with the times that they would have taken without a stall
    and without the gateway's wait.
    """
    heard = [*times.open, *(a for a in answers if not a.failed)]
    if not heard:
        return times, []
    complete = len(heard)
    if heard[-1].ended_s > now_s - CLOSED_S:
        complete -= 1
        while complete > 0 and heard[complete].ended_s - heard[complete - 1].ended_s <= GAP_S:
            complete -= 1
    heard, waiting = heard[:complete], tuple(heard[complete:])
    ended_s, latency_s = [a.ended_s for a in heard], [a.latency_ms / 1000.0 for a in heard]
    learning = times._replace(baseline=baseline.copied(times.baseline))
    after = scan(learning, ended_s, latency_s, weighing)
    waited_s = WAITS * weighing.host.wait_s
    counted = zip(heard, latency_s, strict=True)
    counting = [Answer(a.ended_s, 1000.0 * (s - waited_s), False, a.endpoint, a.server) for a, s in counted]
    return after._replace(open=waiting), counting


def scan(
    times: BatchTimes, ended_s: Sequence[float], latency_s: MutableSequence[float], weighing: Weighing
) -> BatchTimes:
    """Return the evidence after whole batches; take the longest delay off `latency_s`.

    Plain arithmetic, so that the bench compiles it.
    """
    busy, block, host = times.busy, times.block, weighing.host
    queued, every, planned_s = times.queued, times.every, weighing.planned_s
    counts, means = times.baseline.counts, times.baseline.means
    begin = 0
    while begin < len(ended_s):
        began_s = ended_s[begin]
        end = begin + 1
        arrived_s = began_s - latency_s[begin]
        while end < len(ended_s) and ended_s[end] - began_s <= GAP_S:
            arrived_s = min(arrived_s, ended_s[end] - latency_s[end])
            end += 1
        place = min(end - begin, SIZES - 1)
        if arrived_s >= busy.free_s + RESTED_S:
            place += SIZES
        took_s = began_s - max(busy.free_s, arrived_s)
        # The frontend works beside the batch before: only a request that finds the server free waits for it.
        outside_s = min(max(0.0, arrived_s + weighing.frontend_s - busy.free_s), weighing.frontend_s)
        known = baseline.known_place(counts, place)
        usual_s = baseline.usual_at(means, known, place)
        spent_s = own_s(took_s, 1.0, host)
        stalled = spent_s > STALL * usual_s
        answered_s, excess_s = (began_s, ended_s[end - 1]), took_s - usual_s / host.own
        busy = _delayed(busy, arrived_s, answered_s, excess_s, stalled and not host.cut)
        delay_s = busy.stalled_s + busy.longest_s - busy.second_s
        for i in range(begin, end):
            latency_s[i] -= delay_s
        if took_s > 0.0 and end - begin <= len(planned_s):
            one_s, inside_s = planned_s[end - begin - 1], own_s(took_s - outside_s, 1.0, host)
            every = _compared(every, inside_s, one_s, end - begin)
            if place < SIZES:
                queued = _compared(queued, inside_s, one_s, end - begin)
        if took_s > 0.0:
            if known > 0:
                block = Block(
                    block.took_s + took_s,
                    block.own_s + spent_s,
                    block.usual_s + usual_s,
                    block.batches + 1.0,
                    block.requests + (end - begin),
                    block.estimated or known != place,
                )
            if weighing.learns and times.chart.score == 0.0:
                baseline.learn_batch(times.baseline, place, took_s * host.own)
            if stalled or block.requests >= BLOCK:
                times = _weigh_block(times, block, busy.free_s, weighing)
                block = Block(0.0, 0.0, 0.0, 0.0, 0.0, False)
        begin = end
    return BatchTimes(times.baseline, times.chart, busy, block, times.recent, queued, every, times.open)


def _compared(plan: BesidePlan, own_s: float, planned_s: float, requests: int) -> BesidePlan:
    """Return the times beside the planned ones after one more batch."""
    block = BesidePlan(
        plan.own_s + own_s,
        plan.planned_s + planned_s,
        plan.requests + requests,
        plan.recent_s,
        plan.recent_planned_s,
        plan.blocks,
        plan.multiples,
        plan.squares,
    )
    if block.requests < BLOCK:
        return block
    multiple = min(block.own_s / block.planned_s, OUTLIER)
    recent, lasting = 1.0 - 1.0 / RECENT_BLOCKS, 1.0 - 1.0 / LASTING_BLOCKS
    return BesidePlan(
        0.0,
        0.0,
        0.0,
        recent * plan.recent_s + multiple * block.planned_s,
        recent * plan.recent_planned_s + block.planned_s,
        lasting * plan.blocks + 1.0,
        lasting * plan.multiples + multiple,
        lasting * plan.squares + multiple * multiple,
    )


def _delayed(
    busy: BusyPeriod, arrived_s: float, answered_s: tuple[float, float], excess_s: float, stalled: bool
) -> BusyPeriod:
    """Return the busy period with one more batch, that took `excess_s` longer than usual.

    `answered_s` are its first and its last answer.
    """
    free_s, stalled_s, longest_s, second_s, excused_s = busy
    if arrived_s >= free_s:
        stalled_s = longest_s = second_s = 0.0
    if stalled:
        # A host that stalls so often is no excuse any more: the server itself may be slow.
        due_s = max(excused_s, answered_s[0])
        if due_s - answered_s[0] <= STALL_S * (STALLS - 1):
            excused_s = due_s + STALL_S
            stalled_s += excess_s
    elif excess_s > longest_s:
        longest_s, second_s = excess_s, longest_s
    elif excess_s > second_s:
        second_s = excess_s
    return BusyPeriod(answered_s[1], stalled_s, longest_s, second_s, excused_s)


def _weigh_block(times: BatchTimes, block: Block, ended_s: float, weighing: Weighing) -> BatchTimes:
    """Return the evidence after one block; the baseline learns where it may and the score is not high."""
    kept, chart = times.baseline, times.chart
    ratio = block.own_s / block.usual_s
    counted = min(ratio, OUTLIER)
    rest = 1.0 - 1.0 / RECENT_BLOCKS
    recent = Recent(
        rest * times.recent.took_s + block.took_s,
        rest * times.recent.own_s + counted * block.usual_s,
        rest * times.recent.usual_s + block.usual_s,
        rest * times.recent.batches + block.batches,
    )
    if kept.tail.blocks >= baseline.LEARN_BLOCKS:
        chart = _scored(chart, kept.tail, ratio, weighing.alarm)
    tail = kept.tail
    if chart.score < HOLD * weighing.alarm:
        chart = Chart(chart.score, math.inf, chart.above)
        if weighing.learns:
            # With the gateway's waits, which its usual time has too: without them nothing may be left of it.
            whole = weighing.host.own * block.took_s / block.usual_s
            tail = baseline.learn_block(kept, whole, block.estimated, chart.score == 0.0)
    elif chart.since_s == math.inf:
        chart = Chart(chart.score, ended_s, chart.above)
    elif ended_s - chart.since_s > ACCEPT_S:
        chart = Chart(0.0, math.inf, chart.above)
        tail = baseline.forget(kept)
    kept = Baseline(kept.counts, kept.means, kept.first, tail)
    return BatchTimes(kept, chart, times.busy, times.block, recent, times.queued, times.every, times.open)


def _scored(chart: Chart, tail: baseline.Tail, ratio: float, alarm: float) -> Chart:
    """Return the chart after a block of this ratio to its usual time."""
    rare = tail.hundredth * max(LEAST_TAIL, tail.hundredth / tail.tenth)
    exceeded = 0
    for threshold in (tail.tenth, tail.hundredth, rare):
        if ratio > max(threshold, LEAST_SLOWER):
            exceeded += 1
    if not chart.above:
        exceeded = min(exceeded, 2)
    return Chart(min(alarm, max(0.0, chart.score + SCORES[exceeded])), chart.since_s, exceeded >= 2)
