"""Do the batches of one queue take longer than they did while the server kept its promise? Pure.

Late answers follow from a slow server, in clusters and after a while. Its batches show it at once and nearly
independently. A server with one instance of a model takes one batch at a time, so the request log gives the
time of a batch: from when the server was free and the first of its requests had come, to its first answer.

Distributions differ between models and hosts, so the test assumes none. For each batch size the server's own
record keeps the times that 10 % and 1 % of its batches exceed. Two CUSUM charts count these exceedances: a
batch scores ln(q / m) above the threshold, ln((1 - q) / (1 - m)) below it. As long as a batch exceeds it with
a probability of at most m, twice the recorded share, exp(score) is a supermartingale between resets, and the
mean number of batches up to a false alarm at height h is at least exp(h) (Lorden 1971). One batch adds at
most ln(q / m), however long it took: a host that stalls for seconds delays one batch and is no slow server.

A slowdown that breaks nothing for a while is the server's record from then on.
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass, replace

from controlplane.domain.observation import Answer

SHARES = (0.1, 0.01)
"""The share of a healthy server's batches above each chart's threshold."""

SLACK = 2.0
"""The record may be wrong by this factor, in shares."""

SLOW_SHARES = (0.8, 0.5)
"""q: the share of a slow server's batches above each threshold."""

SIZES = 17
"""Batch sizes with a record of their own; larger ones share the last."""

GAP_S = 0.001
"""Answers of one batch leave within this time of one another."""

LEARN_BATCHES = 50
STEP = 0.05
HOLD = 0.3
"""From this strength on the record stands still."""

HORIZON_S = 365 * 86400.0
ACCEPT_S = 30.0
"""A slowdown that breaks no promise for so long becomes the record."""

_FREE, _FIRST, _LAST, _ARRIVED, _SIZE, _SINCE = range(6)


@dataclass(frozen=True, slots=True)
class Service:
    """A server's record of one queue, and the charts against it.

    `batch`: when the server was last free, the open batch's first and last answer, its first arrival, its
    size, and since when a chart stands above HOLD. `thresholds`: seconds, for each size one a chart.
    """

    scores: tuple[float, ...] = (0.0,) * len(SHARES)
    batch: tuple[float, ...] = (-math.inf, 0.0, -math.inf, 0.0, 0.0, math.inf)
    counts: tuple[float, ...] = (0.0,) * SIZES
    thresholds: tuple[float, ...] = (0.0,) * (SIZES * len(SHARES))


def height(rate_rps: float) -> float:
    """The score of the alarm: the logarithm of the batches that both charts see in the horizon."""
    return math.log(len(SHARES) * max(rate_rps * HORIZON_S, 100.0))


def strength(service: Service, rate_rps: float) -> float:
    """How far the higher chart is on its way to the alarm: 1 is the alarm."""
    return max(service.scores) / height(rate_rps)


def restart(service: Service) -> Service:
    """The record alone, with nothing held against the server."""
    return replace(service, scores=(0.0,) * len(SHARES))


def weigh(service: Service, answers: Sequence[Answer], rate_rps: float) -> Service:
    """The record and the charts after these answers, in the order they ended."""
    heard = [a for a in answers if not a.failed]
    if not heard:
        return service
    scores, batch = list(service.scores), list(service.batch)
    counts, thresholds = list(service.counts), list(service.thresholds)
    latencies = [a.latency_ms / 1000.0 for a in heard]
    scan(scores, batch, counts, thresholds, [a.ended_s for a in heard], latencies, height(rate_rps))
    return Service(tuple(scores), tuple(batch), tuple(counts), tuple(thresholds))


def scan(
    scores: MutableSequence[float],
    batch: MutableSequence[float],
    counts: MutableSequence[float],
    thresholds: MutableSequence[float],
    ended_s: Sequence[float],
    latency_s: Sequence[float],
    alarm: float,
) -> None:
    """Carry the record and the charts over requests. Plain arithmetic, so that the bench compiles it."""
    for i in range(len(ended_s)):
        ended, arrived = ended_s[i], ended_s[i] - latency_s[i]
        if batch[_SIZE] > 0.0 and ended - batch[_FIRST] <= GAP_S:
            batch[_LAST] = max(batch[_LAST], ended)
            batch[_ARRIVED] = min(batch[_ARRIVED], arrived)
            batch[_SIZE] += 1.0
            continue
        took_s = batch[_FIRST] - max(batch[_FREE], batch[_ARRIVED])
        if batch[_SIZE] > 0.0 and took_s > 0.0:
            size = int(min(batch[_SIZE], SIZES - 1))
            # The record of this size, or of the next smaller one, whose time grows at most in proportion.
            known = size
            while known > 0 and counts[known] < LEARN_BATCHES:
                known -= 1
            highest = 0.0
            for j in range(len(SHARES)):
                if known > 0:
                    usual = SLACK * SHARES[j]
                    above = took_s > thresholds[known * len(SHARES) + j] * size / known
                    gain = (
                        math.log(SLOW_SHARES[j] / usual)
                        if above
                        else math.log((1.0 - SLOW_SHARES[j]) / (1.0 - usual))
                    )
                    scores[j] = min(alarm, max(0.0, scores[j] + gain))
                highest = max(highest, scores[j])
            if highest < HOLD * alarm:
                batch[_SINCE] = math.inf
            elif batch[_SINCE] == math.inf:
                batch[_SINCE] = ended
            elif ended - batch[_SINCE] > ACCEPT_S:
                batch[_SINCE] = math.inf
                highest = 0.0
                for j in range(len(SHARES)):
                    scores[j] = 0.0
                for k in range(SIZES):
                    counts[k] = 0.0
            if highest < HOLD * alarm:
                _learn(counts, thresholds, size, took_s)
        batch[_FREE] = batch[_LAST]
        batch[_FIRST] = ended
        batch[_LAST] = ended
        batch[_ARRIVED] = arrived
        batch[_SIZE] = 1.0


def _learn(
    counts: MutableSequence[float], thresholds: MutableSequence[float], size: int, took_s: float
) -> None:
    """Move the record of one batch size by one batch; it starts at the longest of the first ones."""
    for j in range(len(SHARES)):
        at = size * len(SHARES) + j
        if counts[size] < LEARN_BATCHES:
            thresholds[at] = took_s if counts[size] == 0.0 else max(thresholds[at], took_s)
        elif took_s > thresholds[at]:
            thresholds[at] *= math.exp(STEP * (1.0 - SHARES[j]))
        else:
            thresholds[at] *= math.exp(-STEP * SHARES[j])
    counts[size] += 1.0
