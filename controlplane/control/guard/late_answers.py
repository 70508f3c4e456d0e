"""Evidence of a broken P99 from late answers, request by request. Pure; docs/design/guard.md.

At most 1 % of the requests may exceed the SLO. Behind a queue late answers come in clusters, so the unit of
evidence is the cluster. Four CUSUM charts, one for each reference k, add 1 - k for a request above the SLO
and -k for any other, and never fall below 0. Lundberg's bound for clusters of exponential size with mean c,
P(a chart ever exceeds h) ~ exp(-h (1 - p/k) / c) with p = 1 %, gives the height of the alarm over n requests:

    h(k) = margin * ln(n) * c / (1 - p/k)

c is half of E[size^2] / E[size]. What is learned of it counts between the plan's value (`Promise`), times the
dispersion of arrivals, and a multiple of that. Clusters are learned when the chart of 2 % is back at zero, so
that a violation does not raise the height of its own alarm.

The dispersion of arrivals is the variance of their number in a window over its mean. Arrivals in clumps make
the clusters larger by it, on a server as fast as ever, and thousands of arrivals show it before dozens of
clusters do. Each window is compared with the one before it, so that a rate that rises over minutes is none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from controlplane.control.guard.promise import Promise
from controlplane.domain.observation import Answer

LEAST_IN_WINDOW = 10.0
"""Arrivals, in the mean, in a window of at least two SLOs, in which a queue builds up and empties."""
PRIOR_WINDOWS = 20.0
MEMORY_WINDOWS = 500.0
LARGEST_DISPERSION = 8.0


class Arrivals(NamedTuple):
    """The arrivals in the window that ends at `until_s`, and in the windows before it.

    `before` are those of the last one, -1 for none. `mean` is the moving mean of the arrivals in a window,
    `half_square` that of half the squared difference between two.
    """

    until_s: float = 0.0
    arrived: float = 0.0
    before: float = -1.0
    windows: float = 0.0
    mean: float = 0.0
    half_square: float = 0.0


def window_s(rate_rps: float, slo_s: float) -> float:
    """Return the length of a window."""
    return max(2.0 * slo_s, LEAST_IN_WINDOW / rate_rps)


def dispersion(seen: Arrivals) -> float:
    """Return the dispersion seen, 1 for Poisson arrivals and for none."""
    if seen.mean <= 0.0:
        return 1.0
    known = seen.windows / (seen.windows + PRIOR_WINDOWS)
    return min(LARGEST_DISPERSION, max(1.0, 1.0 + known * (seen.half_square / seen.mean - 1.0)))


def scan_arrivals(seen: Arrivals, arrived_s: Sequence[float], length_s: float) -> Arrivals:
    """Count arrivals, in the order of their answers. Plain arithmetic, so that the bench compiles it."""
    until_s, count, before, windows, mean, half_square = seen
    for i in range(len(arrived_s)):
        if arrived_s[i] >= until_s:
            if arrived_s[i] >= until_s + length_s:
                before = -1.0  # the first one, or one after a pause
                until_s = arrived_s[i] + length_s
            else:
                if before >= 0.0:
                    weight = max(1.0 / (windows + 1.0), 1.0 / MEMORY_WINDOWS)
                    mean += weight * (count - mean)
                    half_square += weight * (0.5 * (count - before) ** 2 - half_square)
                    windows += 1.0
                before = count
                until_s += length_s
            count = 0.0
        count += 1.0
    return Arrivals(until_s, count, before, windows, mean, half_square)


EXCESS = 0.01
"""The share of requests that may take longer than the SLO."""
REFERENCES = (0.0125, 0.02, 0.05, 0.15)
"""Shares at which the charts have no drift. One near sqrt(p * q) detects a share of q soonest: a small k
detects a small excess after a while, a large one a large excess at once."""
LEARNING = 1
"""The chart at whose zero the clusters before are learned: that of twice the promised share."""
MEMORY_CLUSTERS = 500
PRIOR_CLUSTERS = 50

Charts = tuple[float, float, float, float]


class ClusterSizes(NamedTuple):
    """Moving means of the size and of its square over the clusters learned, in requests."""

    size: float
    size_squared: float
    clusters: float = 0.0


class Cluster(NamedTuple):
    """The cluster under way: its late answers so far, and the end of the latest one."""

    late: float = 0.0
    last_s: float = -math.inf


class Ended(NamedTuple):
    """The clusters that ended and are not learned yet: their number, and the sums of sizes and squares."""

    clusters: float = 0.0
    late: float = 0.0
    squares: float = 0.0


class LateAnswers(NamedTuple):
    """The evidence of the requests so far on one promise. The charts are in requests."""

    charts: Charts
    sizes: ClusterSizes
    cluster: Cluster = Cluster()
    ended: Ended = Ended()
    arrivals: Arrivals = Arrivals()


class Alarm(NamedTuple):
    """What the alarm's height follows from: the promise's rarity, and the bounds of the clusters' scale."""

    slo_s: float
    rarity: float
    least_scale: float
    largest_scale: float


def begin(promise: Promise) -> LateAnswers:
    """Return the evidence of no request."""
    scale = promise.natural_scale
    return LateAnswers((0.0, 0.0, 0.0, 0.0), ClusterSizes(scale, scale * scale))


def restart(late: LateAnswers) -> LateAnswers:
    """Return the evidence with charts at zero; what was learned of clusters stays."""
    cluster = late.cluster._replace(late=0.0)
    return late._replace(charts=(0.0, 0.0, 0.0, 0.0), cluster=cluster, ended=Ended())


def strength(late: LateAnswers, promise: Promise) -> float:
    """Return the highest chart as a part of its alarm's height."""
    if not any(late.charts):
        return 0.0
    return highest(late.charts) / (promise.rarity * scale(late, promise))


def highest(charts: Charts) -> float:
    """Return the highest chart as a part of the alarm's height at a rarity and a scale of 1."""
    most = 0.0
    for j in range(len(REFERENCES)):
        most = max(most, charts[j] * (1.0 - EXCESS / REFERENCES[j]))
    return most


def scale(late: LateAnswers, promise: Promise) -> float:
    """Return the clusters' E[size^2] / E[size] that the test uses, in requests."""
    return bounded_scale(late.sizes, alarm_of(late, promise))


def bounded_scale(sizes: ClusterSizes, alarm: Alarm) -> float:
    """Return what was learned of the clusters' scale, within its bounds."""
    return min(max(sizes.size_squared / sizes.size, alarm.least_scale), alarm.largest_scale)


def alarm_of(late: LateAnswers, promise: Promise) -> Alarm:
    """Return the alarm for arrivals as they are dispersed."""
    clumped = dispersion(late.arrivals)
    scales = promise.natural_scale * clumped, promise.largest_scale * clumped
    return Alarm(promise.slo_ms / 1000.0, promise.rarity, *scales)


def count(late: LateAnswers, promise: Promise, answers: Sequence[Answer]) -> LateAnswers:
    """Return the evidence with the arrivals of these answers counted."""
    if not answers:
        return late
    length_s = window_s(promise.rate_rps, promise.slo_ms / 1000.0)
    arrived_s = [a.ended_s - a.latency_ms / 1000.0 for a in answers]
    return late._replace(arrivals=scan_arrivals(late.arrivals, arrived_s, length_s))


def weigh(late: LateAnswers, promise: Promise, answers: Sequence[Answer]) -> tuple[LateAnswers, bool]:
    """Return the evidence after these answers, in the order they ended, and whether the promise is broken.

    Failed requests do not count: they may be the clients' fault, and a canary judges them. Answers after the
    alarm are not read.
    """
    answers = [a for a in answers if not a.failed]
    exceeded = [a.latency_ms > promise.slo_ms for a in answers]
    if not any(exceeded) and not any(late.charts) and not late.cluster.late:
        return late, False  # the scan would change nothing; the usual case
    after, alarm = scan(late, [a.ended_s for a in answers], exceeded, alarm_of(late, promise))
    return after, alarm >= 0


def scan(
    late: LateAnswers, ended_s: Sequence[float], exceeded: Sequence[bool], alarm: Alarm
) -> tuple[LateAnswers, int]:
    """Return the evidence after these requests, and the index of the one that raised the alarm, -1 for none.

    Plain arithmetic on anything that can be indexed, so that the bench compiles this function and runs it
    over weeks of traffic.
    """
    charts, sizes, ended = late.charts, late.sizes, late.ended
    open_late, last_s = late.cluster
    raised = -1
    for i in range(len(ended_s)):
        above = exceeded[i]
        if above:
            open_late += 1.0
            last_s = ended_s[i]
        elif open_late > 0.0 and ended_s[i] - last_s > alarm.slo_s:
            squares = ended.squares + open_late * open_late
            ended = Ended(ended.clusters + 1.0, ended.late + open_late, squares)
            open_late = 0.0
        charts = _moved(charts, above)
        if above and highest(charts) >= alarm.rarity * bounded_scale(sizes, alarm):
            raised = i
            break
        if ended.clusters > 0.0 and charts[LEARNING] == 0.0:
            sizes = _learned(sizes, ended)
            ended = Ended(0.0, 0.0, 0.0)
    return LateAnswers(charts, sizes, Cluster(open_late, last_s), ended, late.arrivals), raised


def _moved(charts: Charts, above: bool) -> Charts:
    step = 1.0 if above else 0.0
    a, b, c, d = REFERENCES
    return (
        max(0.0, charts[0] + (step - a)),
        max(0.0, charts[1] + (step - b)),
        max(0.0, charts[2] + (step - c)),
        max(0.0, charts[3] + (step - d)),
    )


def _learned(sizes: ClusterSizes, ended: Ended) -> ClusterSizes:
    clusters = sizes.clusters + ended.clusters
    weight = min(1.0, ended.clusters * max(1.0 / (clusters + PRIOR_CLUSTERS), 1.0 / MEMORY_CLUSTERS))
    return ClusterSizes(
        sizes.size + weight * (ended.late / ended.clusters - sizes.size),
        sizes.size_squared + weight * (ended.squares / ended.clusters - sizes.size_squared),
        clusters,
    )
