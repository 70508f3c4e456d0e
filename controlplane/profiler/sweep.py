"""Which points of a model to measure, and whether what was measured can be trusted. Pure.

iGniter's Eq 11, t(b, r) = (k1 b² + k2 b + k3) / (r + k4) + k5, has five coefficients: the two ends and one
share between them give its hyperbola in r, four batch sizes an even look at its parabola in b. A share
cannot change in a running server, so few shares are few starts. Fitted on V100 measurements, eleven such
points err 2.3 % on average elsewhere, as much as eleven spread over five shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.domain.device import ShareGrid
from controlplane.domain.errors import InputError

POINTS = 11
_LOWEST_PERCENT = 10.0
"""Below it a GPU has a few SMs, and few models' large batches are worth the time."""
_SHARES_FOR_BATCHES = {1: 6, 2: 5, 3: 4, 4: 3}
_LEAST_RECEIVED = 0.9
"""A saturated partition that got less of its share than this was disturbed."""
_LEAST_FORMED = 0.7
"""Triton counts each batch size apart, so some batches of another size do no harm."""

_START_S = 3.5
"""A start, at the smallest share the longest."""
_WATCHED = 0.6
"""The part of a point's time that is measured; the rest is warming up and slow batches."""
_PLANNED = 0.85
"""Of the budget; the rest is for repetitions."""
_SHORTEST_S, _LONGEST_S = 0.3, 3.0


@dataclass(frozen=True, slots=True)
class Point:
    """What to measure: one batch size at one share."""

    percent: float
    batch: int


def default_points(grid: ShareGrid, max_batch: int) -> tuple[Point, ...]:
    """The eleven points for a model whose largest batch is `max_batch`; fewer where that is below 8."""
    batches = default_batches(max_batch)
    percents = default_percents(grid, _SHARES_FOR_BATCHES[len(batches)])
    every = [Point(p, b) for p in percents for b in batches]
    if len(every) > POINTS:
        # The one that tells least: two others stand beside it on both axes.
        every.remove(Point(percents[-1], batches[1]))
    return tuple(every)


def chosen_points(
    grid: ShareGrid, max_batch: int, percents: Sequence[float] | None, batches: Sequence[int] | None
) -> tuple[Point, ...]:
    """The default points, or every pair where a user names percents, batches or both.

    Raises InputError for a share off the grid and a batch the model does not serve.
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
    """Up to four sizes from 1 to `max_batch`, evenly on a logarithmic scale."""
    if max_batch < 2:
        return (1,)
    count = 4 if max_batch >= 8 else 3 if max_batch >= 4 else 2
    return tuple(round(max_batch ** (i / (count - 1))) for i in range(count))


def default_percents(grid: ShareGrid, count: int) -> tuple[float, ...]:
    """`count` shares of the grid, evenly from its lowest useful one to 100."""
    low = max(grid.minimum_percent, _LOWEST_PERCENT)
    wanted = [low + (100.0 - low) * i / (count - 1) for i in range(count)]
    return tuple(sorted({min(grid.percents(), key=lambda p: (abs(p - w), p)) for w in wanted}))


def in_flight(batch: int) -> int:
    """Requests of one inference to keep in the server, so that batches of `batch` run back to back.

    One batch runs, one waits, one is on its way; of small ones more, as a client is not always prompt.
    """
    return max(3 * batch, 8)


@dataclass(frozen=True, slots=True)
class Trust:
    """How far a measured point can be trusted.

    `received` is the processor time the partition got, over its share of the time that passed (None:
    unknown); `formed` the part of all batches that had the wanted size.
    """

    received: float | None
    formed: float

    @property
    def disturbed(self) -> bool:
        """Whether the point is to be measured again."""
        starved = self.received is not None and self.received < _LEAST_RECEIVED
        return starved or self.formed < _LEAST_FORMED

    @property
    def order(self) -> float:
        """Of several attempts the one with the largest counts."""
        return self.formed * min(1.0, 1.0 if self.received is None else self.received)


def point_seconds(budget_s: float, points: int, starts: int) -> float:
    """How long to watch each point so that a whole model takes about `budget_s`."""
    left_s = _PLANNED * budget_s - starts * _START_S
    return min(_LONGEST_S, max(_SHORTEST_S, left_s / max(points, 1) * _WATCHED))


def needed_s(points: int, starts: int, seconds: float) -> float:
    """What so many points and starts take. Where more than that is left, a point may be measured again."""
    return starts * _START_S + points * seconds / _WATCHED
