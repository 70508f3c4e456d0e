"""The choice of a model's points, and the detection of disturbed measurements. Pure.

iGniter's Eq 11, t(b, r) = (k1 b² + k2 b + k3) / (r + k4) + k5, has five coefficients. Three shares (both ends
and one between them) determine its hyperbola in r, four batch sizes its parabola in b. A running server's
share cannot change, so fewer shares need fewer starts. Fitted on eleven such points of V100 measurements, the
mean error on the other points is 2.3 %, the same as with eleven points spread over five shares.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.domain.device import ShareGrid
from controlplane.domain.errors import InputError
from controlplane.domain.profile import Measurement

POINTS = 11
_LOWEST_PERCENT = 10.0
"""Below it a GPU has a few SMs, on which large batches of few models are useful."""
_SHARES_FOR_BATCHES = {1: 6, 2: 5, 3: 4, 4: 3}
_LEAST_RECEIVED = 0.9
"""A saturated partition that got less of its share was disturbed."""
_LEAST_FORMED = 0.7
"""Triton counts each batch size separately, so a few batches of another size do no harm."""

_START_S = 3.5
"""The time of a start; it is the longest at the smallest share."""
_WATCHED = 0.6
"""The part of a point's time that is measured; the rest is warming up and slow batches."""
_PLANNED = 0.85
"""The part of the budget for the first attempts; the rest is for repetitions."""
_SHORTEST_S, _LONGEST_S = 0.3, 3.0

SLOW_S = 0.25
"""A batch that takes longer: an execution's own noise is small, and many of them would take minutes."""
LEAST_BATCHES = 8
FEWEST_BATCHES = 2
"""The same of a slow model."""
_ENOUGH_S = 2.0
"""Batches of a slow model within this time are enough."""
RAMP_BATCHES = 3
COST_TURNS = 5
_COST_BATCHES = 2 * COST_TURNS * (RAMP_BATCHES + LEAST_BATCHES)
"""So many batches at least show the cost of a request: turns of two loops, each with a ramp."""
LATE_S = 60.0
_PATIENCE = 4.0
"""How many times longer than expected a point may take before it counts as failed."""
_OVER_BUDGET = 2.0
"""How far all points of a choice may exceed the budget, which is approximate."""


@dataclass(frozen=True, slots=True)
class Point:
    """One batch size at one share."""

    percent: float
    batch: int


def default_points(grid: ShareGrid, max_batch: int) -> tuple[Point, ...]:
    """Return eleven points for a model whose largest batch is `max_batch`; fewer where that is below 8."""
    batches = default_batches(max_batch)
    percents = default_percents(grid, _SHARES_FOR_BATCHES[len(batches)])
    every = [Point(p, b) for p in percents for b in batches]
    if len(every) > POINTS:
        # The least informative point: it has two neighbours on both axes.
        every.remove(Point(percents[-1], batches[1]))
    return tuple(every)


def fewer_points(grid: ShareGrid, max_batch: int) -> tuple[tuple[Point, ...], ...]:
    """Return what a model too slow for `default_points` is measured at instead, the most informative first.

    Three shares of each: all batches, the smallest and the largest, then without the larger ones.
    """
    batches, shares = default_batches(max_batch), default_percents(grid, 3)
    sizes = [batches, (batches[0], batches[-1]), *(batches[:k] for k in range(len(batches) - 1, 0, -1))]
    return tuple(tuple(Point(p, b) for p in shares for b in dict.fromkeys(own)) for own in sizes)


def chosen_points(
    model: str,
    grid: ShareGrid,
    max_batch: int,
    percents: Sequence[float] | None,
    batches: Sequence[int] | None,
) -> tuple[Point, ...]:
    """Return the default points, or all combinations if the user chose percents, batches or both.

    Raises InputError for a share that is not on the grid and for a batch above the model's limit.
    """
    if percents is None and batches is None:
        return default_points(grid, max_batch)
    for percent in percents or ():
        grid.check(percent, "percents")
    for batch in batches or ():
        if not 1 <= batch <= max_batch:
            problem = f"{batch} is not between 1 and the {max_batch} of model {model!r}"
            raise InputError(problem, field="batches")
    sizes = sorted(set(batches or default_batches(max_batch)))
    shares = sorted(set(percents or default_percents(grid, 3)))
    return tuple(Point(p, b) for p in shares for b in sizes)


def default_batches(max_batch: int) -> tuple[int, ...]:
    """Return up to four sizes from 1 to `max_batch`, evenly spaced on a logarithmic scale."""
    if max_batch < 2:
        return (1,)
    count = 4 if max_batch >= 8 else 3 if max_batch >= 4 else 2
    return tuple(round(max_batch ** (i / (count - 1))) for i in range(count))


def default_percents(grid: ShareGrid, count: int) -> tuple[float, ...]:
    """Return `count` shares of the grid, evenly spaced from the lowest useful one to 100."""
    low = max(grid.minimum_percent, _LOWEST_PERCENT)
    wanted = [low + (100.0 - low) * i / (count - 1) for i in range(count)]
    return tuple(sorted({min(grid.percents(), key=lambda p: (abs(p - w), p)) for w in wanted}))


def in_flight(batch: int) -> int:
    """Return how many requests of one inference keep the server busy with batches of `batch`.

    One batch runs, one waits, one is on its way; small batches need more, since the client may be late.
    """
    return max(3 * batch, 8)


@dataclass(frozen=True, slots=True)
class Trust:
    """The trustworthiness of a measured point.

    `received` is the processor time of the partition, divided by its share of the elapsed time (None:
    unknown). `formed` is the part of all batches that had the wanted size.
    """

    received: float | None
    formed: float

    @property
    def disturbed(self) -> bool:
        """Whether the point should be measured again."""
        starved = self.received is not None and self.received < _LEAST_RECEIVED
        return starved or self.formed < _LEAST_FORMED

    @property
    def order(self) -> float:
        """The sort key of attempts; the attempt with the largest value counts."""
        return self.formed * min(1.0, 1.0 if self.received is None else self.received)


def point_seconds(budget_s: float, points: int, starts: int) -> float:
    """Return the time for each point with which a whole model takes about `budget_s`."""
    left_s = _PLANNED * budget_s - starts * _START_S
    return min(_LONGEST_S, max(_SHORTEST_S, left_s / max(points, 1) * _WATCHED))


@dataclass(frozen=True, slots=True)
class Effort:
    """How a point is measured.

    `ramp`: batches before the measurement; `in_flight`: requests under way; `late_s`: after which the point
    counts as failed.
    """

    ramp: int
    in_flight: int
    late_s: float


def effort(batch: int, batch_s: float) -> Effort:
    """Return the effort for batches that are expected to take `batch_s`."""
    if batch_s <= SLOW_S:
        return Effort(RAMP_BATCHES, in_flight(batch), LATE_S)
    # One batch runs, one waits: the client has all its time to send the next.
    batches = 1 + least_batches(batch_s) + 2
    return Effort(1, 2 * batch, max(LATE_S, _PATIENCE * batches * batch_s))


def least_batches(batch_s: float) -> int:
    """Return how many batches are measured at least, where one takes `batch_s`."""
    if batch_s <= SLOW_S:
        return LEAST_BATCHES
    return min(LEAST_BATCHES, max(FEWEST_BATCHES, math.ceil(_ENOUGH_S / batch_s)))


@dataclass(frozen=True, slots=True)
class Pace:
    """What batches are expected to take on a whole device.

    `single_s` is one inference's time, `top_s` that of `top_batch` together; None before it is measured: n
    inferences take at most n times as long.
    """

    single_s: float = 0.0
    top_s: float | None = None
    top_batch: int = 1

    @staticmethod
    def of(points: Sequence[Measurement]) -> Pace:
        """The pace of measured points."""
        most = max((p.percent for p in points), default=0.0)
        whole = {p.batch: p.execution_ms / 1000.0 * p.percent / 100.0 for p in points if p.percent == most}
        if not whole:
            return Pace()
        low, high = min(whole), max(whole)
        return Pace(whole[low] / low, whole[high], high)

    @property
    def slow(self) -> bool:
        """Whether already one inference is slow."""
        return self.single_s > SLOW_S

    def batch_s(self, point: Point) -> float:
        """Return the time of a point's batch, at most."""
        more_s = self.single_s
        if self.top_s is not None and self.top_batch > 1:
            more_s = max(0.0, self.top_s - self.single_s) / (self.top_batch - 1)
        return (self.single_s + (point.batch - 1) * more_s) * 100.0 / point.percent

    def point_s(self, point: Point, seconds: float) -> float:
        """Return the time of a point that is watched for `seconds` at least."""
        batch_s = self.batch_s(point)
        # At the end the requests under way are waited for: two batches.
        batches = effort(point.batch, batch_s).ramp + least_batches(batch_s) + 2
        return max(seconds / _WATCHED, batches * batch_s)

    def alone_s(self, top: Point, seconds: float) -> float:
        """Return the time of what is measured of the largest point before its batches, without the start."""
        cost_s = 0.0 if self.slow else max(2.0 * seconds, _COST_BATCHES * self.batch_s(top))
        return max(seconds / _WATCHED, (2 + FEWEST_BATCHES) * self.single_s) + cost_s


def needed_s(points: Sequence[Point], starts: int, seconds: float, pace: Pace | None = None) -> float:
    """Return the time of these points and starts. If more time is left, a point may be measured again."""
    pace = pace or Pace()
    return starts * _START_S + sum(pace.point_s(p, seconds) for p in points)


def fits(points: Sequence[Point], starts: int, seconds: float, pace: Pace, budget_s: float) -> bool:
    """Return whether a model of this pace can be measured at these points within about its budget.

    The largest point is measured alone first, on a server of its own; of long batches that takes longest.
    """
    alone_s = pace.alone_s(max(points, key=lambda p: (p.percent, p.batch)), seconds)
    return needed_s(points, 1 + starts, seconds, pace) + alone_s <= _OVER_BUDGET * budget_s
