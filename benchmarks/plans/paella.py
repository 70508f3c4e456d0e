"""Paella's Figs 2 and 12, kernels of many jobs on one GPU in simulated time: a minute.

    python -m benchmarks.plans.paella

What the order and the time of submission change. A job is a chain of kernels; each needs so many of the GPU's
slots. Times are microseconds. `naive` and `late` are the two ways of the paper's Fig 2 (jobs of equal kernels
of one slot); `run` takes any `Order`, as in its Fig 12. Exits 1 where an aim is missed.
"""

from __future__ import annotations

import heapq
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np

from benchmarks.harness import Figures

# Fig 2: a GTX 1660 SUPER, its hardware queues, and jobs of equal kernels of one slot.
FIG2_JOBS, FIG2_KERNELS, FIG2_KERNEL_US = 10_000, 8, 300.0
FIG2_QUEUES, FIG2_SLOTS = 32, 176
FIG2_P99_US, FIG2_STEP_RPS, FIG2_STEPS = 4_800.0, 250, 320
FIG2_DISPATCH_US = (0.0, 4.25)
FIG2_PAPER = {0.0: None, 4.25: 2.2}
FIG2_AIMS = {0.0: (5.0, 6.0), 4.25: (2.1, 2.4)}

# Fig 12: ResNet-18 against InceptionV3 on a T4; kernels need between a fifth and all of its slots.
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
    """The paper's order: shortest remaining time first; at most `ahead` kernels wait at the GPU."""

    ahead: int = 2
    _sent: deque[Job] = field(default_factory=deque)
    _shortest: list[tuple[float, int, int, Job]] = field(default_factory=list)

    def ready(self, job: Job) -> None:
        heapq.heappush(self._shortest, (job.remaining_us, job.done, job.number, job))

    def ended(self, job: Job) -> None:
        pass

    def placed(self, free: int) -> Job | None:
        while self._shortest and len(self._sent) < self.ahead:
            self._sent.append(heapq.heappop(self._shortest)[-1])
        if self._sent and self._sent[0].demand <= free:
            return self._sent.popleft()
        return None


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
    at_once = highest_rate(partial(naive, kernels=FIG2_KERNELS, kernel_us=FIG2_KERNEL_US, queues=FIG2_QUEUES))
    for us in FIG2_DISPATCH_US:
        dispatched = partial(late, kernels=FIG2_KERNELS, kernel_us=FIG2_KERNEL_US, dispatch_us=us)
        bound = highest_rate(partial(dispatched, slots=FIG2_SLOTS))
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


def short_jobs(rate: float, seed: int, order: Order) -> list[float]:
    """Latencies in ms of the short jobs."""
    given = jobs(rate, seed)
    latencies = run(given, order, slots=SLOTS, outstanding=OUTSTANDING)
    return [latencies[j.number] / 1e3 for j in given if j.kind == SHORT]


def fig12(figures: Figures) -> None:
    """P99 of short jobs: one stream, 32 streams and SRPT, medians of all seeds."""
    ways: dict[str, Callable[[], Order]] = {
        "one stream": lambda: Streams(1),
        "32 streams": lambda: Streams(32),
        "SRPT": lambda: ShortestRemaining(),
    }
    for rate in RATES:
        one, streams, srpt = (
            float(np.median([p99(short_jobs(rate, seed, way())) for seed in SEEDS])) for way in ways.values()
        )
        low, high = STREAMS_TO_SRPT
        figures.add(f"Fig 12, {rate}/s: P99 with 32 streams", streams, "ms", at_most=one)
        figures.add(f"Fig 12, {rate}/s: P99 with SRPT", srpt, "ms", at_most=streams)
        figures.add(f"Fig 12, {rate}/s: 32 streams over SRPT", streams / srpt, at_least=low, at_most=high)


def main() -> int:
    figures = Figures()
    fig2(figures)
    fig12(figures)
    return figures.end()


if __name__ == "__main__":
    sys.exit(main())
