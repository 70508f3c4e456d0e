"""Paella's Figs 2, 12 and 13, kernels of many jobs on one GPU in simulated time: a minute.

    python -m benchmarks.plans.paella

What the order and the time of submission change. A job is a chain of kernels; each needs so many of the GPU's
slots. Times are microseconds. `naive` and `late` are the two ways of the paper's Fig 2 (jobs of equal kernels
of one slot); `run` takes any `Order`, as in its Figs 12 and 13. Exits 1 where an aim is missed.
"""

from __future__ import annotations

import heapq
import math
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import numpy as np

from benchmarks.harness import Figures, show, table

# Fig 2: a GTX 1660 SUPER, its hardware queues, and jobs of equal kernels of one slot.
FIG2_JOBS, FIG2_KERNELS, FIG2_KERNEL_US = 10_000, 8, 300.0
FIG2_QUEUES, FIG2_SLOTS = 32, 176
FIG2_P99_US, FIG2_STEP_RPS, FIG2_STEPS = 4_800.0, 250, 320
FIG2_DISPATCH_US = (0.0, 4.25)
FIG2_PAPER = {0.0: None, 4.25: 2.2}
FIG2_AIMS = {0.0: (5.0, 6.0), 4.25: (2.1, 2.4)}

# Figs 12 and 13: ResNet-18 against InceptionV3 on a T4; kernels need between a fifth and all of its slots.
SLOTS, JOBS = 40, 3_000
SHORT, LONG = 0, 1
KERNELS = {SHORT: (25, 1_580.0), LONG: (125, 31_200.0)}
"""A job's kernels, and microseconds in all."""
LONG_PART = 0.048
DEMANDS = (8, 16, 24, 32, 40)
OUTSTANDING = (119, 6)
SIGMA = 1.5
SEEDS = range(1, 6)
RATES = (50, 100, 200)
STREAMS_TO_SRPT = (1.2, 3.9)
"""The paper's Fig 12 shows up to 3."""
THRESHOLDS = (0.0, 1.0, 10.0, 30.0, 100.0, 1_000.0, 1e6)
FIG13_RPS, FIG13_NOISE = 200, 1.005


def naive(arrivals: Sequence[float], *, kernels: int, kernel_us: float, queues: int) -> list[float]:
    """Latencies where a job's kernels all go to one of the hardware's queues on arrival."""
    free = [0.0] * queues
    latencies = []
    for number, arrived in enumerate(arrivals):
        queue = number % queues
        free[queue] = max(arrived, free[queue]) + kernels * kernel_us
        latencies.append(free[queue] - arrived)
    return latencies


def late(
    arrivals: Sequence[float], *, kernels: int, kernel_us: float, slots: int, dispatch_us: float
) -> list[float]:
    """Latencies where a kernel is submitted once it can run, by a dispatcher that takes time for each."""
    ready = [(arrived, number, kernels) for number, arrived in enumerate(arrivals)]
    heapq.heapify(ready)
    free = [0.0] * slots
    dispatcher = 0.0
    latencies = [0.0] * len(arrivals)
    while ready:
        since, job, left = heapq.heappop(ready)
        dispatcher = max(since, dispatcher) + dispatch_us
        end = max(dispatcher, free[0]) + kernel_us
        heapq.heapreplace(free, end)
        if left > 1:
            heapq.heappush(ready, (end, job, left - 1))
        else:
            latencies[job] = end - arrivals[job]
    return latencies


@dataclass(eq=False, slots=True)
class Job:
    """A job of a `kind`; `demands` are the slots that each of its kernels needs."""

    number: int
    kind: int
    arrived: float
    kernel_us: float
    demands: tuple[int, ...]
    done: int = 0

    @property
    def remaining_us(self) -> float:
        return (len(self.demands) - self.done) * self.kernel_us

    @property
    def demand(self) -> int:
        """The slots of its next kernel."""
        return self.demands[self.done]


class Order(Protocol):
    """A submission of kernels to the GPU."""

    def ready(self, job: Job) -> None:
        """A job has a kernel that can run: it arrived, or its last one ended."""

    def ended(self, job: Job) -> None:
        """A job's last kernel ended."""

    def placed(self, free: int) -> Job | None:
        """Take the job whose next kernel starts now; None where none fits into the free slots."""


def run(jobs: Sequence[Job], order: Order, *, slots: int, outstanding: Sequence[int]) -> list[float]:
    """Return each job's latency. Of each kind at most so many are `outstanding`; more wait at their client.

    A job's time begins where it is submitted.
    """
    events = [(job.arrived, job.number, job) for job in jobs]
    heapq.heapify(events)
    running: set[int] = set()
    room = list(outstanding)
    waiting: list[deque[Job]] = [deque() for _ in outstanding]
    submitted = [0.0] * len(jobs)
    latencies = [0.0] * len(jobs)
    free = slots

    def submit(job: Job, now: float) -> None:
        room[job.kind] -= 1
        submitted[job.number] = now
        order.ready(job)

    while events:
        now, _, job = heapq.heappop(events)
        if job.number in running:
            running.remove(job.number)
            free += job.demand
            job.done += 1
            if job.done < len(job.demands):
                order.ready(job)
            else:
                latencies[job.number] = now - submitted[job.number]
                order.ended(job)
                room[job.kind] += 1
                if waiting[job.kind]:
                    submit(waiting[job.kind].popleft(), now)
        elif room[job.kind]:
            submit(job, now)
        else:
            waiting[job.kind].append(job)
        while (placed := order.placed(free)) is not None:
            free -= placed.demand
            running.add(placed.number)
            heapq.heappush(events, (now + placed.kernel_us, placed.number, placed))
    return latencies


class Streams:
    """Jobs go to streams in turn, one after another in each; the GPU takes the oldest kernel once it fits."""

    def __init__(self, count: int) -> None:
        self._streams: list[deque[Job]] = [deque() for _ in range(count)]
        self._heads: deque[Job] = deque()
        self._given = 0
        self._stream_of: dict[int, deque[Job]] = {}

    def ready(self, job: Job) -> None:
        if job.number not in self._stream_of:
            stream = self._streams[self._given % len(self._streams)]
            self._given += 1
            self._stream_of[job.number] = stream
            stream.append(job)
            if stream[0] is not job:
                return
        self._heads.append(job)

    def ended(self, job: Job) -> None:
        stream = self._stream_of.pop(job.number)
        stream.popleft()
        if stream:
            self._heads.append(stream[0])

    def placed(self, free: int) -> Job | None:
        if self._heads and self._heads[0].demand <= free:
            return self._heads.popleft()
        return None


@dataclass
class ShortestRemaining:
    """The paper's order: shortest remaining time first, unless a kind's deficit is above `threshold`.

    At most `ahead` kernels are with the GPU before they fit. Deficits count kernels by kind; a kind without
    waiting work begins anew, as in the authors' code.
    """

    kinds: int
    ahead: int = 2
    threshold: float = math.inf
    _sent: deque[Job] = field(default_factory=deque)
    _ready: dict[int, Job] = field(default_factory=dict)
    _shortest: list[tuple[float, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._oldest: list[list[tuple[float, int, int]]] = [[] for _ in range(self.kinds)]
        self._deficits = [0.0] * self.kinds
        self._waiting = [0] * self.kinds

    def ready(self, job: Job) -> None:
        self._ready[job.number] = job
        self._waiting[job.kind] += 1
        heapq.heappush(self._shortest, (job.remaining_us, job.done, job.number))
        heapq.heappush(self._oldest[job.kind], (float(job.number), job.done, job.number))

    def ended(self, job: Job) -> None:
        pass

    def placed(self, free: int) -> Job | None:
        while self._ready and len(self._sent) < self.ahead:
            self._sent.append(self._next())
        if self._sent and self._sent[0].demand <= free:
            return self._sent.popleft()
        return None

    def _next(self) -> Job:
        kind = max((k for k in range(self.kinds) if self._waiting[k]), key=lambda k: self._deficits[k])
        heap = self._oldest[kind] if self._deficits[kind] > self.threshold else self._shortest
        # An entry of a kernel that was taken from the other heap is out of date.
        while True:
            done, number = heapq.heappop(heap)[-2:]
            job = self._ready.get(number)
            if job is not None and job.done == done:
                break
        del self._ready[number]
        self._waiting[job.kind] -= 1
        for other in range(self.kinds):
            self._deficits[other] += 1.0 / self.kinds
        self._deficits[job.kind] -= 1.0
        for other in range(self.kinds):
            if not self._waiting[other]:
                self._deficits[other] = 0.0
        return job


def p99(latencies: Sequence[float]) -> float:
    return float(np.quantile(latencies, 0.99))


def highest_rate(latencies: Callable[[Sequence[float]], list[float]]) -> int:
    """The highest rate of even arrivals at which P99 is within Fig 2's bound."""
    held, missed = 0, FIG2_STEPS
    while missed - held > 1:
        steps = (held + missed) // 2
        gap_us = 1e6 / (steps * FIG2_STEP_RPS)
        fits = p99(latencies([number * gap_us for number in range(FIG2_JOBS)])) <= FIG2_P99_US
        held, missed = (steps, missed) if fits else (held, steps)
    return held * FIG2_STEP_RPS


def fig2(figures: Figures) -> None:
    """The highest rate with P99 up to 4.8 ms: late dispatch over all kernels at once."""
    size = {"kernels": FIG2_KERNELS, "kernel_us": FIG2_KERNEL_US}
    at_once = highest_rate(lambda at: naive(at, queues=FIG2_QUEUES, **size))
    for us in FIG2_DISPATCH_US:
        bound = highest_rate(lambda at, us=us: late(at, slots=FIG2_SLOTS, dispatch_us=us, **size))
        low, high = FIG2_AIMS[us]
        name, paper = f"Fig 2: late over at once, {us:g} us a kernel", FIG2_PAPER[us]
        figures.add(name, bound / at_once, at_least=low, at_most=high, reference=paper)


def jobs(rate: float, seed: int) -> list[Job]:
    """Short and long jobs with lognormal gaps."""
    random = np.random.default_rng(seed)
    gaps = random.lognormal(-(SIGMA**2) / 2, SIGMA, JOBS) * 1e6 / rate
    found = []
    for number, at in enumerate(np.cumsum(gaps)):
        kind = LONG if random.random() < LONG_PART else SHORT
        kernels, us = KERNELS[kind]
        demands = tuple(int(d) for d in random.choice(DEMANDS, kernels))
        found.append(Job(number, kind, float(at), us / kernels, demands))
    return found


def ran(rate: float, seed: int, order: Order) -> tuple[list[float], list[float]]:
    """Latencies in ms of the short and of the long jobs."""
    given = jobs(rate, seed)
    latencies = run(given, order, slots=SLOTS, outstanding=OUTSTANDING)
    short, long = ([latencies[j.number] / 1e3 for j in given if j.kind == k] for k in (SHORT, LONG))
    return short, long


def fig12(figures: Figures) -> None:
    """P99 of short jobs: one stream, 32 streams and SRPT, medians of all seeds."""
    ways: dict[str, Callable[[], Order]] = {
        "one stream": lambda: Streams(1),
        "32 streams": lambda: Streams(32),
        "SRPT": lambda: ShortestRemaining(2),
    }
    for rate in RATES:
        one, streams, srpt = (
            float(np.median([p99(ran(rate, seed, way())[0]) for seed in SEEDS])) for way in ways.values()
        )
        low, high = STREAMS_TO_SRPT
        figures.add(f"Fig 12, {rate}/s: P99 with 32 streams", streams, "ms", at_most=one)
        figures.add(f"Fig 12, {rate}/s: P99 with SRPT", srpt, "ms", at_most=streams)
        figures.add(f"Fig 12, {rate}/s: 32 streams over SRPT", streams / srpt, at_least=low, at_most=high)


def fig13(figures: Figures) -> None:
    """Mean latencies over the threshold: short ones never rise, long ones never fall, but for noise."""
    shown = table(f"Fig 13: mean latencies in ms at {FIG13_RPS} jobs/s", ">threshold", ">short", ">long")
    means = []
    for threshold in (*THRESHOLDS, math.inf):
        runs = [ran(FIG13_RPS, seed, ShortestRemaining(2, threshold=threshold)) for seed in SEEDS]
        means.append(tuple(float(np.mean([np.mean(one[kind]) for one in runs])) for kind in (SHORT, LONG)))
        name = "none (SRPT)" if math.isinf(threshold) else f"{threshold:g}"
        shown.add_row(name, *(f"{ms:.2f}" for ms in means[-1]))
    show(shown)
    short, long = (max(of(a, b) for a, b in pairwise(means)) for of in (_short_rises, _long_falls))
    figures.add("Fig 13: the largest rise of the short ones", short, at_most=FIG13_NOISE)
    figures.add("Fig 13: the largest fall of the long ones", long, at_most=FIG13_NOISE)
    figures.add(
        "Fig 13: no threshold over the largest", means[-1][0] / means[-2][0], at_least=1.0, at_most=1.0
    )


def _short_rises(before: tuple[float, ...], after: tuple[float, ...]) -> float:
    return after[SHORT] / before[SHORT]


def _long_falls(before: tuple[float, ...], after: tuple[float, ...]) -> float:
    return before[LONG] / after[LONG]


def main() -> int:
    figures = Figures()
    for part in (fig2, fig12, fig13):
        part(figures)
    return figures.end()


if __name__ == "__main__":
    sys.exit(main())
