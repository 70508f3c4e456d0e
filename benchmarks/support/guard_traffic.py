"""Traffic of one guarded queue on simulated time, and the guard's own tests over it, compiled.

Requests run through Triton's greedy batcher: batch = min(waiting, limit); a batch of b takes
(a b + c) s times lognormal noise. What disturbs the queue is part of `Traffic`. `Guard` runs the product's
functions (`late_answers.scan`, `batch_times.scan`) and its rule for both together.
"""

import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from controlplane.control.guard import baseline, batch_times, late_answers, queues, rule
from controlplane.control.guard.batch_times import HostPart, Weighing
from controlplane.control.guard.late_answers import Alarm, LateAnswers
from controlplane.control.guard.promise import Promise

njit: Any = numba.njit
"""Its stubs take a compiled function for a decorator."""
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


@njit
def seed(number: int) -> None:
    """Begin numba's own stream of random numbers anew."""
    np.random.seed(number)


@njit
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


def _compile(module: ModuleType, *names: str) -> None:
    """Compile functions where they are, so that those that call them find them compiled."""
    for name in names:
        setattr(module, name, njit(getattr(module, name)))


_LEARNING = ("_sort_in", "_learn_first", "learn_block", "learn_batch", "forget", "known_place", "usual_at")
_compile(baseline, *_LEARNING)
_compile(batch_times, "own_s", "_compared", "_delayed", "_scored", "_weigh_block")
_compile(late_answers, "_moved", "_learned", "highest", "bounded_scale")
scan_batches = njit(batch_times.scan)
scan_late = njit(late_answers.scan)
count_arrivals = njit(late_answers.scan_arrivals)
dispersion = njit(late_answers.dispersion)
is_enough = njit(rule.is_enough)


class Guard:
    """The guard's rule for one queue, over arrays, with the product's own functions."""

    def __init__(self, promise: Promise) -> None:
        self.queue = queues.begin(promise)
        known: Any = self.queue.batches.baseline
        arrays = known._replace(
            counts=np.array(known.counts), means=np.array(known.means), first=np.array(known.first)
        )
        self.queue = self.queue._replace(batches=self.queue.batches._replace(baseline=arrays))
        self.overloads = 0

    def restart(self) -> None:
        """Nothing is held against the server any more; what was learned is kept."""
        self.queue = queues.restart(self.queue)

    def alarm(self, ended: Floats, took: Floats) -> int:
        """The last request of the first look that raises an alarm; -1 for none in these requests."""
        p, to = self.queue.promise, 0
        alarm = Alarm(p.slo_ms / 1000.0, p.rarity, p.natural_scale, p.largest_scale)
        looks = max(1, round(LOOK_S * p.rate_rps)), max(1, round(HURRIED_LOOK_S * p.rate_rps))
        memories = tuple(queues.memory_s(p, memory) for memory in queues.MEMORIES)
        constants = (batch_times.height(p.rate_rps), late_answers.window_s(p.rate_rps, alarm.slo_s))
        while to < len(ended):
            evidence = (self.queue.late, self.queue.batches, self.queue.rates_rps)
            evidence, to, late, certain = _hear(
                evidence, (ended, took), alarm, (*constants, memories, np.array(p.batch_s)), (*looks, to)
            )
            self.queue = self.queue._replace(late=evidence[0], batches=evidence[1], rates_rps=evidence[2])
            planned = self.queue._replace(rates_rps=(p.rate_rps, p.rate_rps))
            if not late and not (certain and rule.is_slow(planned)):
                continue
            if not certain and any(rule.exceeding(p, self.queue.rates_rps)):
                self.overloads += 1
                self.restart()
                continue
            return to - 1
        return -1


@njit
def _hear(evidence, requests, alarm, constants, looks):
    """`observe.update` over arrays, look by look: the evidence, the end, whether late answers and slower
    batches together are an alarm, and whether batches certainly take longer.
    """
    late, batches, rates = evidence
    ended, took = requests
    height, window_s, memories, planned_s = constants
    seldom, often, to = looks
    scale = late_answers.bounded_scale(late.sizes, alarm)
    while to < len(ended):
        lateness = late_answers.highest(late.charts) / (alarm.rarity * scale)
        suspicious = lateness > SUSPICIOUS or batches.chart.score > SUSPICIOUS * height
        at, to = to, min(to + (often if suspicious else seldom), len(ended))
        while to < len(ended) and ended[to] - ended[to - 1] <= batch_times.GAP_S:
            to += 1
        counted = took[at:to].copy()
        calm = late_answers.highest(late.charts) < batch_times.HOLD * alarm.rarity * scale
        batches = scan_batches(
            batches, ended[at:to], counted, Weighing(height, planned_s, HostPart(1.0, 0.0, False), calm, 0.0)
        )
        passed_s = max(ended[to - 1] - ended[max(0, at - 1)], 1e-6)
        short, long = math.exp(-passed_s / memories[0]), math.exp(-passed_s / memories[1])
        rate = (to - at) / passed_s
        rates = (short * rates[0] + (1.0 - short) * rate, long * rates[1] + (1.0 - long) * rate)
        seen = count_arrivals(late.arrivals, ended[at:to] - took[at:to], window_s)
        clumped = dispersion(seen)
        here = Alarm(alarm.slo_s, alarm.rarity, alarm.least_scale * clumped, alarm.largest_scale * clumped)
        before = late.sizes
        late = LateAnswers(late.charts, late.sizes, late.cluster, late.ended, seen)
        late, raised = scan_late(late, ended[at:to], counted > alarm.slo_s, here)
        score = batches.chart.score
        if score >= batch_times.HOLD * height:
            late = LateAnswers(late.charts, before, late.cluster, late.ended, late.arrivals)
        scale = late_answers.bounded_scale(late.sizes, here)
        broken = raised >= 0 or is_enough(
            late_answers.highest(late.charts) / (alarm.rarity * scale), score / height
        )
        if broken or score >= height:
            return (late, batches, rates), to, broken, score >= height
    return (late, batches, rates), to, False, False
