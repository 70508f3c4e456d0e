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
from controlplane.simulate.records import REQUEST, Records

BLOCK = 16384


class Gaps(StrEnum):
    """The distribution of the gaps between requests."""

    POISSON = "poisson"
    CONSTANT = "constant"
    GAMMA = "gamma"


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests at a rate that is constant, or changes in steps.

    gaps: their distribution; for GAMMA `cv` is the coefficient of variation of a gap (above 1: bursts).
    rate_rps: the rate, where `steps` is empty.
    steps: (second, rate_rps) in order, each until the next; the first rate holds before it, the last one on.
    Raises InputError naming the field.
    """

    rate_rps: float = 0.0
    gaps: Gaps = Gaps.POISSON
    cv: float = 1.0
    steps: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        positive(self.cv, "cv")
        non_negative(self.rate_rps, "rate_rps")
        for at, rate in self.steps:
            non_negative(at, "steps")
            non_negative(rate, "steps")
        if any(later[0] < earlier[0] for earlier, later in pairwise(self.steps)):
            raise InputError("must be in the order of their times", field="steps")

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
    return Demand(steps=tuple(zip(starts, [*rates, 0.0], strict=True)))


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
    _begin_ms: FloatArray = field(default_factory=lambda: np.empty(0))
    _rate: FloatArray = field(default_factory=lambda: np.empty(0))
    _cumulative: FloatArray = field(default_factory=lambda: np.empty(0))

    def __post_init__(self) -> None:
        if isinstance(self.demand, Trace):
            self._ready = MILLIS_PER_SECOND * np.asarray(self.demand.times_s)
            return
        if self.demand.gaps is Gaps.CONSTANT:
            # A random phase: streams of equal rate would otherwise run in lockstep.
            self._units = float(self.rng.random()) - 1.0
        steps = self.demand.steps or ((0.0, self.demand.rate_rps),)
        self._begin_ms = MILLIS_PER_SECOND * np.array([0.0, *(begin for begin, _ in steps)])
        self._rate = np.array([steps[0][1], *(rate for _, rate in steps)]) / MILLIS_PER_SECOND
        self._cumulative = np.append(0.0, np.cumsum(np.diff(self._begin_ms) * self._rate[:-1]))

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
        distribution = self.demand.gaps
        if distribution is Gaps.POISSON:
            gaps = self.rng.standard_exponential(BLOCK)
        elif distribution is Gaps.CONSTANT:
            gaps = np.ones(BLOCK)
        else:
            shape = 1.0 / self.demand.cv**2
            gaps = self.rng.standard_gamma(shape, BLOCK) / shape
        gaps[0] += self._units
        units = np.cumsum(gaps, out=gaps)
        self._units = float(units[-1])
        return self._at(units)

    def _at(self, units: FloatArray) -> FloatArray:
        """Λ^-1: the time at which this many arrivals are expected; the last step's rate continues."""
        if self._rate[-1] <= 0:
            units = units[units < self._cumulative[-1]]
        elif self._begin_ms[-1] == 0.0:  # one rate from the beginning on
            return np.divide(units, self._rate[-1], out=units)
        step = np.searchsorted(self._cumulative, units, side="right") - 1
        times = self._begin_ms[step] + (units - self._cumulative[step]) / self._rate[step]
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

    def window(self, until_ms: float) -> tuple[Records, IntArray]:
        """Return all arrivals before `until_ms` as `REQUEST`, and the bounds of each route's part."""
        parts = [np.empty(0, REQUEST)]
        for route in self._routes:
            some = [self._streams[s].until(until_ms) for s in route.streams]
            requests = np.empty(sum(times.size for times in some), REQUEST)
            requests["arrival"] = np.concatenate(some)
            requests["workload"] = np.repeat(np.array(route.streams), [times.size for times in some])
            if len(some) > 1:
                requests = requests[np.argsort(requests["arrival"], kind="stable")]
            parts.append(requests)
        return np.concatenate(parts), np.cumsum([part.size for part in parts])
