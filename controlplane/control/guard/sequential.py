"""Evidence of a broken P99 from late answers, request by request. Pure.

"P99 <= SLO" says that at most 1 % of the requests take longer than the SLO. Behind a queue those come in
clusters: one busy period puts dozens of neighbours above the SLO, and a test that assumes independence would
raise an alarm on a server that keeps its promise. So the unit of evidence is the cluster.

Four CUSUM charts run side by side, one for each reference k. Each adds 1 - k for a request above the SLO,
-k for any other, and never falls below 0. While the promise is kept its drift is negative, and Lundberg's
bound for clusters of exponential size with mean c gives P(a chart ever exceeds h) ~ exp(-h (1 - p/k) / c),
p = 1 %. Asking that this be rare over a horizon of n requests gives the height of the alarm:

    h(k) = margin * ln(n) * c / (1 - p/k)

c is half of E[size^2] / E[size], which the large clusters dominate. A queue at the
planned utilisation u has (u / (1 - u))^2 + 1 by nature: its backlog above a high level is a random walk with
Poisson variance and the drift of the spare capacity. Arrivals of dispersion d have d times that
(`arrivals`). What is learned counts between that and four times that, so that a server that is always slow
cannot make slow normal. Clusters are learned when the chart of 2 % is back at zero, so that a violation does
not raise the height of its own alarm. A chart with a small k detects a small excess after a while, one with a
large k a large excess at once.
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass, replace

from controlplane.control.guard import arrivals
from controlplane.domain.observation import Answer

EXCESS = 0.01
"""The share of requests that may take longer than the SLO."""

REFERENCES = (0.0125, 0.02, 0.05, 0.15)
"""Shares at which the charts have no drift. One near sqrt(p * q) detects a share of q soonest."""

LEARNING = 1
"""The chart at whose zero the clusters before are learned: that of twice the promised share."""

HORIZON_S = 7 * 86400.0
MARGIN = 1.25
"""Cluster sizes fall off a little slower than exponentially; measured by benchmarks/guard.py."""

MEMORY_CLUSTERS = 500
PRIOR_CLUSTERS = 50
LARGEST_SCALE = 4.0
"""This bounds what is learned, ..."""
UNPREDICTED_SCALE = 64.0
"""... and this does where the plan has no utilisation."""
HIGHEST_LOAD = 0.95


@dataclass(frozen=True, slots=True)
class Promise:
    """The promise to the requests of one queue: the SLO, at up to this many of them a second.

    `endpoint` is the name the model runs under; `aliases` are the other endpoints that share its queue.
    `execution_ms` is the predicted time of a full batch and `utilisation` the predicted load, None without a
    prediction. `batch` is the largest batch in requests, `inferences` the planned mean of a request: the
    batch that clients send. The request log shows the time of a batch where the model has one instance.
    `longest_ms` is how long a rare request may take; None where the spec does not say. `widest_slo_ms` is the
    largest SLO of the queue's workloads, whose requests may be waited for; None: `slo_ms`, the strictest one.
    `p99_ms` is the predicted one and `batch_ms` the predicted times of batches of 1, 2, ... requests; None
    and empty without a prediction.
    """

    endpoint: str
    slo_ms: float
    rate_rps: float
    execution_ms: float | None = None
    aliases: tuple[str, ...] = ()
    inferences: float = 1.0
    instances: int = 1
    batch: int = 1
    utilisation: float | None = None
    longest_ms: float | None = None
    widest_slo_ms: float | None = None
    p99_ms: float | None = None
    batch_ms: tuple[float, ...] = ()

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Return all endpoints that share the queue."""
        return (self.endpoint, *self.aliases)

    @property
    def natural_scale(self) -> float:
        """Return E[size^2] / E[size] of a healthy queue's clusters above the SLO, in requests.

        Above a high level the backlog is a random walk whose drift is the spare capacity: its excursions have
        2 (u / (1 - u))^2 at a utilisation of u. Without a prediction, the requests within one SLO count as a
        cluster.
        """
        if self.utilisation is None:
            return 1.0 + 0.25 * self.rate_rps * self.slo_ms / 1000.0
        load = min(self.utilisation, HIGHEST_LOAD)
        return 2.0 + 2.0 * (load / (1.0 - load)) ** 2

    @property
    def largest_scale(self) -> float:
        """Return the largest cluster scale that may be learned, in requests."""
        return self.natural_scale * (UNPREDICTED_SCALE if self.utilisation is None else LARGEST_SCALE)

    @property
    def rarity(self) -> float:
        """Return the alarm's height for clusters of scale 1: margin * ln(requests in the horizon) / 2."""
        return 0.5 * MARGIN * math.log(max(self.rate_rps * HORIZON_S, 100.0))


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence of the requests so far on one promise.

    `scores` are the charts, in requests. `size`, `size_squared` are moving means over the `clusters` learned;
    `cluster` requests of the one under way exceeded, the latest at `last_s`. `open` are the clusters that
    ended and are not learned yet: their number, and the sums of their sizes and squares. `arrived` counts
    arrivals.
    """

    scores: tuple[float, ...]
    size: float
    size_squared: float
    clusters: float = 0.0
    cluster: float = 0.0
    last_s: float = -math.inf
    open: tuple[float, float, float] = (0.0, 0.0, 0.0)
    arrived: tuple[float, ...] = arrivals.FRESH


def fresh(promise: Promise) -> Evidence:
    """Return the evidence of no request."""
    scale = promise.natural_scale
    return Evidence((0.0,) * len(REFERENCES), scale, scale * scale)


def restart(evidence: Evidence) -> Evidence:
    """Return the evidence with charts at zero; what was learned of clusters stays."""
    return replace(evidence, scores=(0.0,) * len(REFERENCES), cluster=0.0, open=(0.0, 0.0, 0.0))


def strength(evidence: Evidence, promise: Promise) -> float:
    """Return the highest chart as a part of its alarm's height."""
    if not any(evidence.scores):
        return 0.0
    return highest(evidence.scores) / (promise.rarity * scale(evidence, promise))


def highest(scores: Sequence[float]) -> float:
    """Return the highest chart as a part of the alarm's height at a rarity and a scale of 1."""
    most = 0.0
    for j in range(len(REFERENCES)):
        most = max(most, scores[j] * (1.0 - EXCESS / REFERENCES[j]))
    return most


def scale(evidence: Evidence, promise: Promise) -> float:
    """Return the clusters' E[size^2] / E[size] that the test uses, in requests."""
    least, largest = scales(evidence, promise)
    return min(max(evidence.size_squared / evidence.size, least), largest)


def scales(evidence: Evidence, promise: Promise) -> tuple[float, float]:
    """Return the least and the largest scale that the test uses, for arrivals as they are dispersed."""
    dispersion = arrivals.dispersion(evidence.arrived)
    return promise.natural_scale * dispersion, promise.largest_scale * dispersion


def count(evidence: Evidence, promise: Promise, answers: Sequence[Answer]) -> Evidence:
    """Return the evidence with the arrivals of these answers counted."""
    if not answers:
        return evidence
    arrived = list(evidence.arrived)
    slo_s = promise.slo_ms / 1000.0
    length_s = arrivals.window_s(promise.rate_rps, slo_s)
    arrivals.scan(arrived, [a.ended_s - a.latency_ms / 1000.0 for a in answers], length_s)
    return replace(evidence, arrived=tuple(arrived))


def weigh(evidence: Evidence, promise: Promise, answers: Sequence[Answer]) -> tuple[Evidence, bool]:
    """Return the evidence after these answers, in the order they ended, and whether the promise is broken.

    Failed requests do not count: they may be the clients' fault, and a canary judges them. Answers after the
    alarm are not read.
    """
    answers = [a for a in answers if not a.failed]
    exceeded = [a.latency_ms > promise.slo_ms for a in answers]
    if not any(exceeded) and not any(evidence.scores) and not evidence.cluster:
        return evidence, False  # the scan would change nothing; the usual case
    scores = list(evidence.scores)
    learned = [
        evidence.size,
        evidence.size_squared,
        evidence.clusters,
        evidence.cluster,
        evidence.last_s,
        *evidence.open,
    ]
    alarm = scan(
        scores,
        learned,
        [a.ended_s for a in answers],
        exceeded,
        promise.slo_ms / 1000.0,
        scales(evidence, promise),
        promise.rarity,
        0,
    )
    size, size_squared, clusters, cluster, last_s, *ended = learned
    after = replace(
        evidence,
        scores=tuple(scores),
        size=size,
        size_squared=size_squared,
        clusters=clusters,
        cluster=cluster,
        last_s=last_s,
        open=(ended[0], ended[1], ended[2]),
    )
    return after, alarm >= 0


def scan(
    scores: MutableSequence[float],
    learned: MutableSequence[float],
    ended_s: Sequence[float],
    exceeded: Sequence[bool],
    slo_s: float,
    scales: tuple[float, float],
    rarity: float,
    start: int,
) -> int:
    """Carry `scores` and `learned` over requests from `start`.

    `learned` is size, its square, clusters, cluster, last_s and the three of `open`. Returns the index of the
    request that raised the alarm, -1 for none. Plain arithmetic on anything that can be indexed, so that the
    bench compiles this function and runs it over weeks of traffic.
    """
    for i in range(start, len(ended_s)):
        above = exceeded[i]
        if above:
            learned[3] += 1.0
            learned[4] = ended_s[i]
        elif learned[3] > 0.0 and ended_s[i] - learned[4] > slo_s:
            learned[5] += 1.0
            learned[6] += learned[3]
            learned[7] += learned[3] * learned[3]
            learned[3] = 0.0
        height = rarity * min(max(learned[1] / learned[0], scales[0]), scales[1])
        alarm = False
        for j in range(len(REFERENCES)):
            k = REFERENCES[j]
            scores[j] = max(0.0, scores[j] + (1.0 - k if above else -k))
            alarm = alarm or (above and scores[j] * (1.0 - EXCESS / k) >= height)
        if alarm:
            return i
        if learned[5] > 0.0 and scores[LEARNING] == 0.0:
            _learn(learned)
    return -1


def _learn(learned: MutableSequence[float]) -> None:
    """Move the means of the clusters' sizes by those that ended."""
    number = learned[5]
    learned[2] += number
    weight = min(1.0, number * max(1.0 / (learned[2] + PRIOR_CLUSTERS), 1.0 / MEMORY_CLUSTERS))
    learned[0] += weight * (learned[6] / number - learned[0])
    learned[1] += weight * (learned[7] / number - learned[1])
    learned[5] = learned[6] = learned[7] = 0.0
