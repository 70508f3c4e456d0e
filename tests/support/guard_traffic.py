"""Traffic of one guarded queue on simulated time, and the guard's own tests over it, compiled.

Requests run through Triton's greedy batcher: batch = min(waiting, limit); a batch of b takes
(a b + c) s times lognormal noise. What disturbs the queue is part of `Traffic`. `Guard` runs the product's
functions (`sequential.scan`, `service.scan`) and its rule for both together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numba
import numpy as np
import numpy.typing as npt

from controlplane.control.guard import arrivals, sequential, service, signals
from controlplane.control.guard.sequential import Promise

Floats = npt.NDArray[np.float64]

CHUNK = 200_000
LOOK_S, HURRIED_LOOK_S = 0.2, 0.05
SUSPICIOUS = 0.25
"""The evidence, of 1 for an alarm, from which on the controller looks more often."""


@dataclass(frozen=True)
class Traffic:
    """A queue and what disturbs it.

    `rate_rps` arrive, full batches of `batch` load it to `load`; `fixed` is the part of their time that does
    not grow with the batch. `noise` is the deviation of ln(batch time), `dispersion` the variance over the
    mean of the arrivals. The host stalls for 0.2 to 2 s, `stalls` times a minute.
    """

    rate_rps: float
    load: float = 0.65
    batch: int = 8
    fixed: float = 0.5
    noise: float = 0.05
    dispersion: float = 1.0
    stalls: float = 0.0
    slowdown: float = 1.0

    @property
    def item_s(self) -> float:
        return self.slowdown * (1.0 - self.fixed) * self.load / self.rate_rps

    @property
    def batch_s(self) -> float:
        return self.slowdown * self.fixed * self.load / self.rate_rps * self.batch

    def times_s(self) -> tuple[float, ...]:
        return tuple(self.item_s * k + self.batch_s for k in range(1, self.batch + 1))


@numba.njit
def seed(number: int) -> None:
    """Begin numba's own stream of random numbers anew."""
    np.random.seed(number)


@numba.njit
def _serve(clock: Floats, queue: Floats, ended: Floats, took: Floats) -> None:
    """Fill `ended` and `took` (s). `clock`: next arrival, server free, next stall, rest of a clump."""
    rate, item_s, batch_s, noise, dispersion, stalls = (
        queue[0],
        queue[1],
        queue[2],
        queue[3],
        queue[4],
        queue[5],
    )
    limit = int(queue[6])
    clump = (dispersion + 1.0) / 2.0
    arrived = np.empty(limit)
    i = 0
    while i < len(ended):
        start = max(clock[0], clock[1])
        b = 0
        while clock[0] <= start and b < limit:
            arrived[b] = clock[0]
            b += 1
            clock[3] -= 1.0
            if clock[3] <= 0.0:  # clumps of geometric size: variance over mean is 2 * mean size - 1
                clock[3] = float(np.random.geometric(1.0 / clump))
                clock[0] += np.random.exponential(clump / rate)
        end = start + (item_s * b + batch_s) * math.exp(noise * np.random.normal())
        if stalls > 0.0 and end > clock[2]:
            end += np.random.uniform(0.2, 2.0)
            clock[2] = end + np.random.exponential(60.0 / stalls)
        clock[1] = end
        for j in range(b):
            if i < len(ended):
                ended[i] = end
                took[i] = end - arrived[j]
                i += 1


class Stream:
    """The requests of one queue, in chunks, for ever."""

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        self._clock = np.array([0.0, 0.0, 60.0, 0.0])

    @property
    def now_s(self) -> float:
        """When the next batch may start."""
        return float(self._clock[:2].max())

    def chunk(self, requests: int) -> tuple[Floats, Floats]:
        """When the next requests end, and the times they take, in seconds."""
        ended, took, t = np.empty(requests), np.empty(requests), self.traffic
        queue = (t.rate_rps, t.item_s, t.batch_s, t.noise, t.dispersion, t.stalls, t.batch)
        _serve(self._clock, np.array(queue, dtype=float), ended, took)
        return ended, took


def p99_s(traffic: Traffic, requests: int) -> float:
    """The queue's P99, by a run of so many requests."""
    stream = Stream(traffic)
    stream.chunk(requests // 10)
    return float(np.quantile(stream.chunk(requests)[1], 0.99))


sequential._learn = numba.njit(sequential._learn)
scan_late = numba.njit(sequential.scan)
highest = numba.njit(sequential.highest)
enough = numba.njit(signals.enough)
service._known = numba.njit(service._known)
service._usual = numba.njit(service._usual)
service._learn_mean = numba.njit(service._learn_mean)
service._sort_in = numba.njit(service._sort_in)
service._learn_first = numba.njit(service._learn_first)
service._learn_block = numba.njit(service._learn_block)
service._weigh_block = numba.njit(service._weigh_block)
scan_batches = numba.njit(service.scan)
count_arrivals = numba.njit(arrivals.scan)
dispersion = numba.njit(arrivals.dispersion)


class Guard:
    """The guard's rule for one queue, over arrays, with the product's own functions."""

    def __init__(self, promise: Promise) -> None:
        late, record = sequential.fresh(promise), service.Service()
        self.promise = promise
        self.late = np.array(late.scores)
        self.learned = np.array([late.size, late.size_squared, 0.0, 0.0, -math.inf, *late.open])
        self.arrived = np.array(late.arrived)
        self.rates = np.full(len(signals.MEMORIES), promise.rate_rps)
        self.memories = np.array([signals.memory_s(promise, memory) for memory in signals.MEMORIES])
        self.overloads = 0
        self.batches = tuple(
            np.array(part)
            for part in (record.chart, record.counts, record.means, record.thresholds, record.first)
        )

    def restart(self) -> None:
        """Nothing is held against the server any more; what was learned is kept."""
        self.late[:] = 0.0
        self.learned[3] = 0.0
        self.learned[5:] = 0.0
        self.batches[0][:] = service.restart(self._record()).chart

    def alarm(self, ended: Floats, took: Floats) -> int:
        """The last request of the first look that raises an alarm; -1 for none in these requests."""
        p, to = self.promise, 0
        height = service.height(p.rate_rps)
        window_s = arrivals.window_s(p.rate_rps, p.slo_ms / 1000.0)
        looks = max(1, round(LOOK_S * p.rate_rps)), max(1, round(HURRIED_LOOK_S * p.rate_rps))
        while to < len(ended):
            to, late, certain = _hear(
                self.late,
                (self.learned, self.arrived, self.rates, self.memories),
                self.batches,
                (ended, took),
                (p.slo_ms / 1000.0, p.rarity, height, window_s),
                (p.natural_scale, p.largest_scale),
                (*looks, to),
            )
            if not late and not (certain and signals.slow(self._record(), self._evidence(), p, p.rate_rps)):
                continue
            if not certain and any(signals.exceeding(p, tuple(self.rates))):
                self.overloads += 1
                self.restart()
                continue
            return to - 1
        return -1

    def _record(self) -> service.Service:
        return service.Service(*(tuple(part) for part in self.batches))

    def _evidence(self) -> sequential.Evidence:
        size, size_squared, clusters, cluster, last_s, *ended = self.learned
        late, arrived = tuple(self.late), tuple(self.arrived)
        ended = (ended[0], ended[1], ended[2])
        return sequential.Evidence(late, size, size_squared, clusters, cluster, last_s, ended, arrived)


@numba.njit
def _hear(
    late: Floats,
    queue: tuple[Floats, ...],
    batches: tuple[Floats, ...],
    requests: tuple[Floats, Floats],
    limits: tuple[float, float, float, float],
    scales: tuple[float, float],
    looks: tuple[int, int, int],
) -> tuple[int, bool, bool]:
    """`signals.update` over arrays, look by look: the end, whether late answers and slower batches together
    are an alarm, and whether batches certainly take longer.
    """
    ended, took = requests
    slo_s, rarity, height, window_s = limits
    learned, arrived, rates, memories = queue
    seldom, often, to = looks
    scale = min(max(learned[1] / learned[0], scales[0]), scales[1])
    chart, counts, means, thresholds, first = batches
    while to < len(ended):
        suspicious = (
            highest(late) > SUSPICIOUS * rarity * scale or chart[service._SCORE] > SUSPICIOUS * height
        )
        at, to = to, min(to + (often if suspicious else seldom), len(ended))
        before = learned[:3].copy()
        while to < len(ended) and ended[to] - ended[to - 1] <= service.GAP_S:
            to += 1
        counted = took[at:to].copy()
        calm = highest(late) < service.HOLD * rarity * scale
        scan_batches(chart, counts, means, thresholds, first, ended[at:to], counted, (height, 1.0, calm))
        passed_s = max(ended[to - 1] - ended[max(0, at - 1)], 1e-6)
        for j in range(len(rates)):
            kept = math.exp(-passed_s / memories[j])
            rates[j] = kept * rates[j] + (1.0 - kept) * (to - at) / passed_s
        count_arrivals(arrived, ended[at:to] - took[at:to], window_s)
        clumped = dispersion(arrived)
        here = (scales[0] * clumped, scales[1] * clumped)
        alarm = scan_late(late, learned, ended[at:to], counted > slo_s, slo_s, here, rarity, 0)
        score = chart[service._SCORE]
        if score >= service.HOLD * height:
            learned[:3] = before
        scale = min(max(learned[1] / learned[0], here[0]), here[1])
        broken = alarm >= 0 or enough(highest(late) / (rarity * scale), score / height)
        if broken or score >= height:
            return to, broken, score >= height
    return to, False, False
