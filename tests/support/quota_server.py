"""A server at a quota on simulated time, under the whole guard, look by look until it redirects.

One thread serves Triton's greedy batches. It may run for a part of each period of 10 ms, and other work has
its core for a part of the rest. Its waits are counted as the kernel counts them, and read as seldom as the
controller reads them. Arrivals may come in clumps.
"""

import math
import random
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from controlplane.control.guard import decide, rule
from controlplane.control.guard.effects import Redirect
from controlplane.control.guard.promise import Promise
from controlplane.control.guard.state import GuardedPartition, GuardState, Limits, PlacedServer
from controlplane.domain.fleet import Delays, QuotaUse
from controlplane.domain.observation import Answer, FleetSeen, Health, HostSeen, ServerSeen
from controlplane.domain.workload import ShadowPolicy

PERIOD_S = 0.01
LOOK_S, HURRIED_LOOK_S = 0.2, 0.05
READ_S, HURRIED_READ_S, WINDOW_S = 1.0, 0.1, 0.25
HOST_S = 0.2
LOG_S = 0.05
"""The time until the monitor hands on a line."""
SLICE_S = 0.002
"""The mean time that the thread runs until other work gets its core."""
LEVEL_S = 0.1
"""The time for which other work has the core for the same part."""


@dataclass(frozen=True)
class Case:
    """A queue, and a cut after which a request takes `slowdown` times as long.

    Since the cut `traffic` times as many requests arrive, `clump` of them together in the mean. `starved` are
    the mean and the deviation of the part of its ready time in which other work has the server's core;
    `waiting` is the gateway's. Since the cut these are `starved_then` and `waiting_then`, and the gateway
    waits for `gateway_s` in the mean until it passes an answer on. `utilisation` is the plan's.
    """

    seed: int
    slowdown: float = 1.5
    clump: float = 1.0
    starved: tuple[float, float] = (0.0, 0.0)
    waiting: float = 0.2
    starved_then: tuple[float, float] | None = None
    waiting_then: float | None = None
    gateway_s: float = 0.0
    rate_rps: float = 100.0
    slo_ms: float = 50.0
    quota: float = 0.5
    work_s: float = 0.0025
    overhead_s: float = 0.0008
    batch: int = 8
    utilisation: float = 0.6
    traffic: float = 1.0
    cut_s: float = 8.0
    until_s: float = 20.0

    @property
    def cut_quota(self) -> float:
        other = min(self.rate_rps * self.overhead_s, 0.4 * self.quota)
        return other + (self.quota - other) / self.slowdown


@dataclass(frozen=True)
class Outcome:
    """The answers (end and arrival, seconds), and when the guard redirected; infinite where it did not."""

    answers: list[tuple[float, float]]
    redirected_s: float


class _Thread:
    """The thread that serves, and the kernel's counters of it."""

    def __init__(self, case: Case, chance: random.Random) -> None:
        self._chance, self._case = chance, case
        self.quota = case.quota
        self._left_s, self._period = 0.0, -1
        self._ran_s = self._waited_s = self._throttled_s = 0.0
        self._counted = [(0.0, 0.0, 0.0, 0.0)]
        levels = math.ceil(2.0 * case.until_s / LEVEL_S)
        parts = (self._part(level * LEVEL_S) for level in range(levels))
        self._starved = [min(0.9, max(0.0, chance.gauss(*part))) for part in parts]

    def _part(self, at_s: float) -> tuple[float, float]:
        """The mean and the deviation of the part in which other work has the core."""
        then = self._case.starved_then
        return self._case.starved if then is None or at_s < self._case.cut_s else then

    def run(self, at_s: float, work_s: float) -> float:
        """The time at which this much work has run."""
        while work_s > 1e-9:
            period = math.floor(at_s / PERIOD_S + 1e-9)
            if period > self._period:
                self._period, self._left_s = period, self.quota * PERIOD_S
            ends_s = (self._period + 1) * PERIOD_S
            if self._left_s <= 1e-9:
                self._throttled_s += ends_s - at_s
                self._waited_s += ends_s - at_s
                at_s = ends_s
                continue
            ran_s = min(work_s, self._left_s, self._chance.expovariate(1.0 / SLICE_S), ends_s - at_s + 1e-9)
            at_s, work_s = at_s + ran_s, work_s - ran_s
            self._left_s -= ran_s
            self._ran_s += ran_s
            starved = self._starved[min(int(at_s / LEVEL_S), len(self._starved) - 1)]
            if starved > 0.0 and work_s > 1e-9:
                waited_s = self._chance.expovariate(1.0) * ran_s * starved / (1.0 - starved)
                at_s += waited_s
                self._waited_s += waited_s
        self._counted.append((at_s, self._ran_s, self._waited_s, self._throttled_s))
        return at_s

    def use(self, at_s: float) -> QuotaUse:
        """The counters at the last end of a batch."""
        _, *counted = self._counted[bisect_right(self._counted, (at_s, math.inf)) - 1]
        return QuotaUse(1, *counted)


class _Counters:
    """The delays that the controller knows of."""

    def __init__(self, thread: _Thread) -> None:
        self._thread = thread
        self._readings: list[tuple[float, QuotaUse]] = []
        self.delays: Delays | None = None

    def read(self, now_s: float, every_s: float) -> None:
        if self._readings and now_s - self._readings[-1][0] < every_s:
            return
        self._readings.append((now_s, self._thread.use(now_s)))
        while len(self._readings) > 2 and now_s - self._readings[1][0] >= WINDOW_S:
            self._readings.pop(0)
        self.delays = self._readings[-1][1].since(self._readings[0][1]) or self.delays


def outcome(case: Case) -> Outcome:
    """The run of one case."""
    chance = random.Random(case.seed)
    thread = _Thread(case, chance)
    answers = _served(case, thread, chance)
    counters, state = _Counters(thread), _first_state(case)
    now_s, heard = 0.0, 0
    while now_s < case.until_s:
        hurried = rule.suspicion(state.watches["w"]) > 0.25
        now_s += HURRIED_LOOK_S if hurried else LOOK_S
        counters.read(now_s, HURRIED_READ_S if hurried else READ_S)
        fresh = []
        while heard < len(answers) and answers[heard][0] <= now_s - LOG_S:
            ended_s, due_s = answers[heard]
            fresh.append(Answer(ended_s, 1000.0 * (ended_s - due_s), False, "w", "active"))
            heard += 1
        active = ServerSeen(Health.READY, delays=counters.delays, inferences={"w": 1.0})
        servers = {"active": active, "shadow": ServerSeen(Health.READY)}
        seen = FleetSeen(now_s, tuple(fresh), servers, _host(case, now_s))
        state, effects = decide.tick(state, seen)
        if any(isinstance(effect, Redirect) for effect in effects):
            return Outcome(answers, now_s)
    return Outcome(answers, math.inf)


def _host(case: Case, now_s: float) -> HostSeen:
    """What is known of the gateway, of the time until the last reading."""
    if case.waiting_then is None or now_s < case.cut_s + HOST_S:
        return HostSeen(case.waiting)
    return HostSeen(case.waiting_then, wait_s=case.gateway_s)


def _served(case: Case, thread: _Thread, chance: random.Random) -> list[tuple[float, float]]:
    due = list(_arrivals(case, chance))
    answers: list[tuple[float, float]] = []
    first, end = 0, 0.0
    while first < len(due):
        end = max(due[first], end)
        if end >= case.cut_s:
            thread.quota = case.cut_quota
        size = 1
        while size < case.batch and first + size < len(due) and due[first + size] <= end:
            size += 1
        end = thread.run(end, size * case.work_s + case.overhead_s)
        delay_s = case.gateway_s * chance.expovariate(1.0) if end >= case.cut_s else 0.0
        passed_s = max(end + delay_s, answers[-1][0] if answers else 0.0)
        answers += [(passed_s, at) for at in due[first : first + size]]
        first += size
    return answers


def _arrivals(case: Case, chance: random.Random) -> Iterator[float]:
    at = 0.0
    while at < case.until_s:
        rate_rps = case.rate_rps * (case.traffic if at >= case.cut_s else 1.0)
        at += chance.expovariate(rate_rps / case.clump)
        yield at
        while chance.random() < 1.0 - 1.0 / case.clump:
            yield at


def _first_state(case: Case) -> GuardState:
    promise = Promise("w", case.slo_ms, case.rate_rps, batch=case.batch, utilisation=case.utilisation)
    percent = 100.0 * case.quota
    partition = GuardedPartition("w", "g0", percent, (promise,), ShadowPolicy.HOT, "g0", 10.0)
    placed = PlacedServer("active", "g0", percent, 0.0), PlacedServer("shadow", "g0", percent + 10.0, 0.0)
    return decide.begin((partition,), {"w": placed}, Limits())
