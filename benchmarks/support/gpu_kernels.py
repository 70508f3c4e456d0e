"""Kernels of many jobs on one GPU, in simulated time: what the order and the time of submission change.

A job is a chain of kernels; each needs so many of the GPU's slots. Times are microseconds. `naive` and
`late` are the two ways of the paper's Fig 2 (jobs of equal kernels of one slot); `run` takes any `Order`, as
in its Figs 12 and 13.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


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
