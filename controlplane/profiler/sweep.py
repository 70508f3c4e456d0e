"""The choice of a model's points, and the detection of disturbed measurements. Pure.

iGniter's Eq 11, t(b, r) = (k1 b² + k2 b + k3) / (r + k4) + k5, has five coefficients. Three shares (both ends
and one between them) determine its hyperbola in r, four batch sizes its parabola in b. A running server's
share cannot change, so fewer shares need fewer starts. Fitted on eleven such points of V100 measurements, the
mean error on the other points is 2.3 %, the same as with eleven points spread over five shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.domain.device import ShareGrid
from controlplane.domain.errors import InputError

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


def chosen_points(
    grid: ShareGrid, max_batch: int, percents: Sequence[float] | None, batches: Sequence[int] | None
) -> tuple[Point, ...]:
    """Return the default points, or all combinations if the user chose percents, batches or both.

    Raises InputError for a share that is not on the grid and for a batch above the model's limit.
    """
    if percents is None and batches is None:
        return default_points(grid, max_batch)
    for percent in percents or ():
        if not any(abs(percent - p) < 1e-9 for p in grid.percents()):
            raise InputError(
                f"{percent:g} is not on this device's grid: {grid.minimum_percent:g} to 100 in steps of "
                f"{grid.step_percent:g}",
                field="--percents",
            )
    for batch in batches or ():
        if not 1 <= batch <= max_batch:
            raise InputError(f"{batch} is not between 1 and the model's {max_batch}", field="--batches")
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


def needed_s(points: int, starts: int, seconds: float) -> float:
    """Return the time of so many points and starts. If more time is left, a point may be measured again."""
    return starts * _START_S + points * seconds / _WATCHED
