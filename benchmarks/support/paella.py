"""Paella's Figs 2 and 12: kernels of many jobs on one GPU in simulated time, a minute.

What the order and the time of submission change. A job is a chain of kernels; each needs so many of the GPU's
slots. Times are microseconds. `naive` and `late` are the two ways of the paper's Fig 2 (jobs of equal kernels
of one slot); `run` takes any `Order`, as in its Fig 12.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

# Fig 2: a GTX 1660 SUPER, its hardware queues, and jobs of equal kernels of one slot.
FIG2_JOBS, FIG2_KERNELS, FIG2_KERNEL_US = 10_000, 8, 300.0
FIG2_QUEUES, FIG2_SLOTS = 32, 176
FIG2_P99_US, FIG2_STEP_RPS, FIG2_STEPS = 4_800.0, 250, 320
FIG2_DISPATCH_US = 4.25

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
RATE = 200
STREAMS = 32


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


def fig2() -> float:
    """The highest rate with P99 up to 4.8 ms: late dispatch over all kernels at once."""
    equal: dict[str, Any] = {"kernels": FIG2_KERNELS, "kernel_us": FIG2_KERNEL_US}
    at_once = highest_rate(partial(naive, queues=FIG2_QUEUES, **equal))
    dispatched = highest_rate(partial(late, slots=FIG2_SLOTS, dispatch_us=FIG2_DISPATCH_US, **equal))
    return dispatched / at_once


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


def fig12() -> float:
    """P99 of short jobs with 32 streams over that with SRPT, medians of all seeds."""
    streams, srpt = (
        float(np.median([p99(short_jobs(RATE, seed, way())) for seed in SEEDS]))
        for way in (lambda: Streams(STREAMS), ShortestRemaining)
    )
    return streams / srpt
