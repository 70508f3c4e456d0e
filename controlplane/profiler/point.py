"""Measurement of one point on a running server: batches of one size, back to back."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType

import numpy as np
import psutil
from tritonclient.grpc.service_pb2 import ModelInferRequest

from controlplane.domain.device import CPU_DEVICE, DeviceReading
from controlplane.domain.errors import EngineError, RequestRefused
from controlplane.domain.fleet import Server, ShareUsage
from controlplane.domain.observation import ModelStatistics
from controlplane.domain.profile import AnswerTimes, Measurement
from controlplane.ports import Clock, Launcher
from controlplane.profiler.load import ANSWER_LATE_S, Answers, ClosedLoop
from controlplane.profiler.requests import Traffic, request_of
from controlplane.profiler.sweep import (
    COST_TURNS,
    FEWEST_BATCHES,
    LATE_S,
    LEAST_BATCHES,
    RAMP_BATCHES,
    SLOW_S,
    Effort,
    Trust,
    least_batches,
)
from controlplane.triton import statistics
from controlplane.triton.client import TritonClient

_RAMP_ANSWERS = 6
_LOOKS = 10
"""Readings of the counters within a point, for the standard deviation."""
_FIRST_S = 300.0
"""The longest wait for a model's first answers, of which nothing is known yet."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A measured point and its trustworthiness."""

    point: Measurement
    trust: Trust


@dataclass(frozen=True, slots=True)
class Lone:
    """The times of a request that is alone on the server: `single_s` the whole of it.

    `answers` of a decoupled model.
    """

    single_s: float
    frontend_ms: float
    answers: AnswerTimes | None


@dataclass(frozen=True, slots=True)
class _Reading:
    """All counters at one time."""

    at_s: float
    statistics: ModelStatistics
    usage: ShareUsage
    host_busy_s: float
    answered: int


@dataclass(frozen=True, slots=True)
class Executed:
    """The executions of one batch size: mean and deviation, how many, and their part of all executions."""

    mean_ms: float
    std_ms: float | None
    count: int
    formed: float


@dataclass(frozen=True, slots=True)
class _Usage:
    received: float | None
    throttled: float | None
    host_busy: float | None


class Bench:
    """A server under measurement. Close it before its server is stopped: Triton waits for idle connections.

    Every method raises EngineError where the server fails.
    """

    def __init__(self, server: Server, launcher: Launcher, clock: Clock) -> None:
        self._server = server
        self._launcher = launcher
        self._clock = clock
        self._triton = TritonClient(server)

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._triton.__exit__(kind, error, trace)

    def statistics(self, endpoint: str) -> ModelStatistics:
        """Read the endpoint's counters."""
        return self._triton.statistics(endpoint)

    def version(self) -> str:
        """Triton's version."""
        return self._triton.version()

    def saturate(
        self, endpoint: str, traffic: Traffic, batch: int, seconds: float, effort: Effort
    ) -> Watched:
        """Run batches of `batch` for at least `seconds`, which Triton forms from requests of one inference.

        As in service, the handling of each request costs processor time of the same share. A single sequence
        leaves pauses, so it tells no capacity. Raises EngineError where Triton formed no such batch.
        """
        concurrency = 1 if traffic.in_sequence else effort.in_flight
        with self.loop(endpoint, traffic, concurrency, late_s=effort.late_s) as loop:
            began_s = self._clock.monotonic()
            ramp = effort.ramp * batch
            loop.wait_for(ramp if effort.ramp == 1 else max(ramp, _RAMP_ANSWERS), deadline_s=effort.late_s)
            before = self._read(endpoint, loop)
            batch_s = (before.at_s - began_s) * batch / before.answered
            enough = before.answered + least_batches(batch_s) * batch
            counted = [before.statistics]
            stepped = [self._steps(traffic)]
            readings: list[DeviceReading] = []
            while loop.answered < enough or len(counted) <= _LOOKS:
                loop.run(max(seconds, batch_s) / _LOOKS)
                counted.append(self._triton.statistics(endpoint))
                stepped.append(self._steps(traffic))
                readings.append(self._launcher.reading(self._server.spec.device))
                if self._clock.monotonic() > before.at_s + effort.late_s:
                    raise EngineError(f"{endpoint}: too few batches of {batch} within {effort.late_s:.0f} s")
            after = self._read(endpoint, loop)
            answers = loop.answers(before.answered)
        usage = self._usage(before, after)
        capacity_rps = rate_rps(answers, batch)
        done = executed(traffic, (*counted, after.statistics), answers, batch, stepped)
        return Watched(
            point=Measurement(
                percent=self._server.spec.percent,
                batch=batch,
                execution_ms=done.mean_ms,
                concurrency=concurrency,
                std_ms=done.std_ms,
                n=done.count,
                capacity_rps=None if traffic.in_sequence else capacity_rps,
                throttled=usage.throttled,
                host_busy=usage.host_busy,
                power_w=_mean(r.power_w for r in readings),
                clock_mhz=_mean(r.sm_clock_mhz for r in readings),
            ),
            trust=Trust(None if traffic.in_sequence else usage.received, formed=done.formed),
        )

    def lone(self, endpoint: str, traffic: Traffic, seconds: float) -> Lone:
        """Measure the time that a single request spends outside of queue and execution, and its answers."""
        with self.loop(endpoint, traffic, 1, late_s=_FIRST_S) as loop:
            loop.wait_for(1, deadline_s=_FIRST_S)  # it may load and compile what the next ones find
            began_s = self._clock.monotonic()
            loop.wait_for(2, deadline_s=_FIRST_S)
            single_s = self._clock.monotonic() - began_s
            slow = single_s > SLOW_S
            if not slow:
                loop.wait_for(_RAMP_ANSWERS, deadline_s=LATE_S)
            before = self._read(endpoint, loop)
            if not slow:
                loop.run(seconds)
            wanted = before.answered + (FEWEST_BATCHES if slow else LEAST_BATCHES)
            loop.wait_for(wanted, deadline_s=_FIRST_S)
            after = self._read(endpoint, loop)
            answers = loop.answers(before.answered)
        window = statistics.difference(before.statistics, after.statistics)
        inside_ms = (statistics.queue_ms(window) or 0.0) + (statistics.compute_ms(window) or 0.0)
        last_ms = float(np.mean(answers.latency_ms))
        times = None if answers.first_ms is None else AnswerTimes(float(np.mean(answers.first_ms)), last_ms)
        return Lone(single_s, max(0.0, last_ms - inside_ms), times)

    def request_ms(self, endpoint: str, traffic: Traffic, batch: int, seconds: float) -> float | None:
        """Measure the processor time of handling one request: parsing, queueing, answering.

        It is what a batch of requests of one inference takes more than the same batch as one request, for
        each request more. Both take turns, so that a change of the host's speed meets both. None where the
        launcher does not measure processor time, for a GPU, whose shares hold no such work, and for a model
        that refuses the larger request.
        """
        if batch < 2 or not self._server.spec.device.startswith(CPU_DEVICE):
            return None
        more_ms = []
        for _ in range(COST_TURNS):
            singles = self._processor_ms(endpoint, traffic, batch, seconds / COST_TURNS)
            large = replace(traffic, requests=(request_of(traffic.requests, batch),))
            try:
                whole = self._processor_ms(endpoint, large, 1, seconds / COST_TURNS)
            except RequestRefused:
                return None
            if singles is None or whole is None:
                return None
            more_ms.append(singles - whole)
        return max(0.0, float(np.median(more_ms))) / (batch - 1)

    def _processor_ms(self, endpoint: str, traffic: Traffic, fill: int, seconds: float) -> float | None:
        """Return the server's processor time for each batch, which `fill` requests make, in ms."""
        with self.loop(endpoint, traffic, traffic.in_flight(fill)) as loop:
            loop.wait_for(max(RAMP_BATCHES * fill, _RAMP_ANSWERS), deadline_s=LATE_S)
            before_s, answered = self._launcher.usage(self._server).cpu_seconds, loop.answered
            loop.run(seconds)
            loop.wait_for(answered + LEAST_BATCHES * fill, deadline_s=LATE_S)
            used_s = _minus(self._launcher.usage(self._server).cpu_seconds, before_s)
            batches = (loop.answered - answered) / fill
        return None if used_s is None else 1000.0 * used_s / batches

    def memory_mb(self) -> float | None:
        """Return the server's present memory; None where the launcher does not measure it."""
        return self._launcher.usage(self._server).memory_mb

    def loop(
        self, endpoint: str, traffic: Traffic, concurrency: int, late_s: float = ANSWER_LATE_S
    ) -> ClosedLoop:
        """Return a closed loop of this traffic on one of the server's endpoints."""
        target = f"{self._server.host}:{self._server.grpc_port}"
        bodies: list[bytes] = []
        for request in traffic.requests:
            named = ModelInferRequest()
            named.CopyFrom(request)
            named.model_name = endpoint
            bodies.append(named.SerializeToString())
        return ClosedLoop(
            target, bodies, concurrency, streamed=traffic.streamed, ends=traffic.ends(), late_s=late_s
        )

    def _steps(self, traffic: Traffic) -> tuple[ModelStatistics, ...]:
        return tuple(self._triton.statistics(step) for step in traffic.steps)

    def _read(self, endpoint: str, loop: ClosedLoop) -> _Reading:
        counted, at_s = self._triton.statistics(endpoint), self._clock.monotonic()
        # The host's time and the server's share are compared: one is read right after the other.
        usage, times = self._launcher.usage(self._server), psutil.cpu_times()
        return _Reading(
            statistics=counted,
            at_s=at_s,
            usage=usage,
            host_busy_s=float(times.user + times.system + times.nice + times.irq + times.softirq),
            answered=loop.answered,
        )

    def _usage(self, before: _Reading, after: _Reading) -> _Usage:
        passed_s = after.at_s - before.at_s
        used_s = _minus(after.usage.cpu_seconds, before.usage.cpu_seconds)
        periods = _minus(after.usage.periods, before.usage.periods)
        throttled = _minus(after.usage.throttled_periods, before.usage.throttled_periods)
        cores = psutil.cpu_count() or 1
        others_s = after.host_busy_s - before.host_busy_s - (used_s or 0.0)
        return _Usage(
            # The counters lose the time of a process that ended. The host's time does not measure a GPU's
            # share.
            received=None
            if used_s is None or used_s < 0 or not self._server.spec.device.startswith(CPU_DEVICE)
            else used_s / passed_s / (self._server.spec.percent / 100.0),
            throttled=min(1.0, throttled / periods) if periods and throttled is not None else None,
            host_busy=None if used_s is None else min(1.0, max(0.0, others_s / passed_s / cores)),
        )


def executed(
    traffic: Traffic,
    counted: Sequence[ModelStatistics],
    answers: Answers,
    batch: int,
    stepped: Sequence[Sequence[ModelStatistics]] = (),
) -> Executed:
    """Return the executions of a batch, from Triton's counters and the ends of the answers.

    `stepped`: several readings of an ensemble's steps. A batch of the whole takes the time between the ends
    of two, which is that of all its steps, as they take turns; the squares of the steps' deviations add up.
    Raises EngineError where no such batch was formed.
    """
    cycle_ms = 1000.0 * batch / rate_rps(answers, batch)
    if traffic.steps:
        deviations = [deviation_ms(of_step, batch) for of_step in zip(*stepped, strict=True)]
        known = [deviation for deviation in deviations if deviation is not None]
        std_ms = math.hypot(*known) if known and len(known) == len(deviations) else None
        return Executed(cycle_ms, std_ms, answers.ended_s.size // batch - 1, 1.0)
    window = statistics.difference(counted[0], counted[-1])
    mean_ms = statistics.mean_execution_ms(window, batch)
    executions = window.batches[batch].executions
    # A decoupled model may answer long after its execution has returned, an iterating one after several.
    mean_ms = max(mean_ms, cycle_ms) if traffic.streamed or traffic.in_steps else mean_ms
    return Executed(mean_ms, deviation_ms(counted, batch), executions, executions / window.executions)


def rate_rps(answers: Answers, batch: int) -> float:
    """Return inferences per second, from the end of one batch to the end of another.

    Any other interval contains a partial batch, which would distort the rate of a few batches.
    """
    ends_s = answers.ended_s[batch - 1 :: batch]
    return float(batch * (ends_s.size - 1) / (ends_s[-1] - ends_s[0]))


def deviation_ms(counted: Sequence[ModelStatistics], batch: int) -> float | None:
    """Return the standard deviation of an execution, from several readings of cumulative counters.

    The mean of m executions deviates by sigma / sqrt(m), so the windows' squared deviations, each times its
    m, have the mean sigma². None where fewer than two windows have the batch.
    """
    windows = [statistics.difference(a, b).batches.get(batch) for a, b in itertools.pairwise(counted)]
    seen = [w for w in windows if w is not None]
    if len(seen) < 2:
        return None
    count = np.array([w.executions for w in seen], dtype=np.float64)
    mean_ms = np.array([statistics.execution_ms(w) for w in seen])
    deviation = mean_ms - np.average(mean_ms, weights=count)
    return float(np.sqrt(np.sum(count * deviation**2) / (count.size - 1)))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else None


def _minus(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before
