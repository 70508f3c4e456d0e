"""Arrival times of requests: a distribution of gaps, a rate over time, or a trace. Seeded, constant memory.

Every process but a trace is a stream of unit gaps (mean 1) mapped through the inverse of the cumulative rate
Λ(t). That is exact for a Poisson process of any rate over time, and keeps the burstiness of the others.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

import numpy as np

from controlplane.domain.errors import InputError
from controlplane.domain.units import MILLIS_PER_SECOND, non_negative, positive
from controlplane.domain.workload import Arrivals
from controlplane.latency.protocol import FloatArray, IntArray
from controlplane.simulate.network import Component, seed_of

BLOCK = 16384


class Gaps(StrEnum):
    """The distribution of the gaps between requests."""

    POISSON = "poisson"
    CONSTANT = "constant"
    GAMMA = "gamma"


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests at a rate that is constant, or linear between knots.

    gaps: their distribution; for GAMMA `cv` is the coefficient of variation of a gap (above 1: bursts).
    rate_rps: the rate, where `knots` is empty.
    knots: (seconds, rate_rps) in order; two at the same second are a step. The last rate continues.
    Raises InputError naming the field.
    """

    rate_rps: float = 0.0
    gaps: Gaps = Gaps.POISSON
    cv: float = 1.0
    knots: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        positive(self.cv, "cv")
        non_negative(self.rate_rps, "rate_rps")
        for at, rate in self.knots:
            non_negative(at, "knots")
            non_negative(rate, "knots")
        if any(later[0] < earlier[0] for earlier, later in pairwise(self.knots)):
            raise InputError("must be in the order of their times", field="knots")

    @staticmethod
    def of(arrivals: Arrivals, rate_rps: float, dispersion: float = 1.0) -> Demand:
        """Return a plan's arrivals at a rate.

        The dispersion of renewals tends to the squared coefficient of variation of their gaps.
        """
        if dispersion > 1.0:
            return Demand(rate_rps=rate_rps, gaps=Gaps.GAMMA, cv=math.sqrt(dispersion))
        return Demand(rate_rps=rate_rps, gaps=Gaps(arrivals.value))


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded arrival times in seconds, ascending from 0."""

    times_s: tuple[float, ...]

    def __post_init__(self) -> None:
        times = np.asarray(self.times_s)
        if times.size and (not np.all(np.isfinite(times)) or times[0] < 0 or np.any(np.diff(times) < 0)):
            raise InputError("must be finite, ascending and not negative", field="times_s")


def steps(*stages: tuple[float, float], gaps: Gaps = Gaps.POISSON) -> Demand:
    """Return a rate that changes in steps of (second, rate_rps): (0, 100), (30, 300)."""
    knots: list[tuple[float, float]] = []
    for at, rate in stages:
        if knots:
            knots.append((at, knots[-1][1]))
        knots.append((at, rate))
    return Demand(gaps=gaps, knots=tuple(knots))


def read_trace(text: str, file: str | None = None) -> Trace | Demand:
    """Read a CSV of `time_s` (a request a line) or of `start_s,count` (requests from then to the next).

    Counts become a Poisson process of that rate in each interval; the last line ends the trace, so its count
    must be 0. Raises InputError with the line.
    """
    rows = list(csv.DictReader(io.StringIO(text)))
    names = list(rows[0]) if rows else []
    if names == ["time_s"]:
        times = [_number(row["time_s"], "time_s", number, file) for number, row in enumerate(rows, 2)]
        try:
            return Trace(tuple(times))
        except InputError as problem:
            raise InputError(problem.problem, file=file, field="time_s") from None
    if names != ["start_s", "count"]:
        raise InputError(
            "needs one column 'time_s', or the columns 'start_s,count', named in the first line", file=file
        )
    starts = [_number(row["start_s"], "start_s", number, file) for number, row in enumerate(rows, 2)]
    counts = [_number(row["count"], "count", number, file) for number, row in enumerate(rows, 2)]
    for number, (start, end) in enumerate(pairwise(starts), 3):
        if end <= start:
            raise InputError("must be later than the line before", file=file, line=number, field="start_s")
    if counts[-1] != 0:
        raise InputError("must be 0: the last line ends the trace", file=file, line=len(rows) + 1)
    widths = np.diff(starts)
    rates = [count / width for count, width in zip(counts, widths.tolist(), strict=False)]
    return steps(*zip(starts, [*rates, 0.0], strict=True))


def _number(text: str | None, field: str, line: int, file: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        raise InputError(f"{text!r} is not a number", file=file, line=line, field=field) from None
    if not math.isfinite(value) or value < 0:
        raise InputError("must be finite and not negative", file=file, line=line, field=field)
    return value


@dataclass(slots=True)
class ArrivalStream:
    """The arrivals of one demand, produced window by window. Times in ms."""

    demand: Demand | Trace
    rng: np.random.Generator
    _units: float = 0.0
    _ready: FloatArray = field(default_factory=lambda: np.empty(0))
    _knots_ms: FloatArray = field(default_factory=lambda: np.empty(0))
    _cumulative: FloatArray = field(default_factory=lambda: np.empty(0))

    def __post_init__(self) -> None:
        if isinstance(self.demand, Trace):
            self._ready = MILLIS_PER_SECOND * np.asarray(self.demand.times_s)
            return
        if self.demand.gaps is Gaps.CONSTANT:
            # A random phase: streams of equal rate would otherwise run in lockstep.
            self._units = float(self.rng.random()) - 1.0
        knots = self.demand.knots or ((0.0, self.demand.rate_rps),)
        at = np.array([0.0, *(MILLIS_PER_SECOND * k[0] for k in knots)])
        rate = np.array([knots[0][1], *(k[1] for k in knots)]) / MILLIS_PER_SECOND
        self._knots_ms = at
        self._cumulative = np.concatenate(([0.0], np.cumsum(np.diff(at) * (rate[1:] + rate[:-1]) / 2)))

    def until(self, end_ms: float) -> FloatArray:
        """Return all arrivals before `end_ms` that were not returned yet, ascending."""
        blocks = [self._ready]
        while not isinstance(self.demand, Trace) and (blocks[-1].size == 0 or blocks[-1][-1] < end_ms):
            block = self._next_block()
            if block.size == 0:
                break
            blocks.append(block)
        times = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
        cut = int(np.searchsorted(times, end_ms, side="left"))
        self._ready = times[cut:]
        return times[:cut]

    def _next_block(self) -> FloatArray:
        assert isinstance(self.demand, Demand)
        law = self.demand.gaps
        if law is Gaps.POISSON:
            gaps = self.rng.standard_exponential(BLOCK)
        elif law is Gaps.CONSTANT:
            gaps = np.ones(BLOCK)
        else:
            shape = 1.0 / self.demand.cv**2
            gaps = self.rng.standard_gamma(shape, BLOCK) / shape
        gaps[0] += self._units
        units = np.cumsum(gaps, out=gaps)
        self._units = float(units[-1])
        return self._at(units)

    def _at(self, units: FloatArray) -> FloatArray:
        """Λ^-1: the time at which this many arrivals are expected; the last knot's rate continues."""
        assert isinstance(self.demand, Demand)
        if not self.demand.knots:
            rate = self.demand.rate_rps / MILLIS_PER_SECOND
            return np.divide(units, rate, out=units) if rate > 0 else np.empty(0)
        last = self.demand.knots[-1][1] / MILLIS_PER_SECOND
        inside = units[units < self._cumulative[-1]]
        times = self._within(inside)
        if last <= 0 or inside.size == units.size:
            return times
        beyond = self._knots_ms[-1] + (units[inside.size :] - self._cumulative[-1]) / last
        return np.concatenate((times, beyond))

    def _within(self, units: FloatArray) -> FloatArray:
        """Λ^-1 between knots, where the rate is linear and its integral a parabola."""
        assert isinstance(self.demand, Demand)
        knots = self.demand.knots
        rate = np.array([knots[0][1], *(k[1] for k in knots)]) / MILLIS_PER_SECOND
        piece = np.searchsorted(self._cumulative, units, side="right") - 1
        piece = np.clip(piece, 0, len(rate) - 2)
        width = self._knots_ms[piece + 1] - self._knots_ms[piece]
        slope = (rate[piece + 1] - rate[piece]) / np.where(width > 0, width, 1.0)
        into = units - self._cumulative[piece]
        # The stable root of slope/2 x^2 + rate x = into.
        root = np.sqrt(np.maximum(rate[piece] ** 2 + 2.0 * slope * into, 0.0))
        times = self._knots_ms[piece] + 2.0 * into / np.maximum(rate[piece] + root, 1e-300)
        return np.asarray(np.maximum.accumulate(times))


class Arriving:
    """A stream of arrivals for each workload; those without a demand follow the plan's rate."""

    def __init__(self, part: Component, demands: Mapping[str, Demand | Trace], seed: int) -> None:
        self._routes = part.routes
        self._streams = [
            ArrivalStream(
                demands.get(s.name, Demand.of(s.placement.arrivals, s.rate_rps, s.placement.dispersion)),
                np.random.default_rng(seed_of(seed, s.name)),
            )
            for s in part.streams
        ]

    def window(self, until_ms: float) -> tuple[FloatArray, IntArray, IntArray]:
        """Return all arrivals before `until_ms`, their workloads, and the bounds of each route's part."""
        times: list[FloatArray] = []
        owners: list[IntArray] = []
        bounds = [0]
        for route in self._routes:
            some = [self._streams[s].until(until_ms) for s in route.streams]
            owner = [np.full(t.size, s, dtype=np.int64) for t, s in zip(some, route.streams, strict=True)]
            if len(some) == 1:
                times.append(some[0])
                owners.append(owner[0])
            else:
                together = np.concatenate(some)
                order = np.argsort(together, kind="stable")
                times.append(together[order])
                owners.append(np.concatenate(owner)[order])
            bounds.append(bounds[-1] + times[-1].size)
        edges = np.array(bounds, dtype=np.int64)
        if len(times) == 1:
            return times[0], owners[0], edges
        whole = np.concatenate(times) if times else np.empty(0)
        return whole, np.concatenate(owners) if owners else np.empty(0, np.int64), edges
