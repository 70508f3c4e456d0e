"""Families that are worth more side by side on a GPU than each on GPUs of its own.

What parts of a GPU carry beside a full batch of another model is read off the waiting table; a linear program
says which pairs of parts, and whole GPUs, serve all families on the fewest GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.domain.plan import Rule
from controlplane.latency.protocol import FloatArray, IntArray, Slots
from controlplane.planners import waiting
from controlplane.planners.board import ask
from controlplane.planners.carrying import carried
from controlplane.planners.menu import Alone
from controlplane.planners.protocol import Device

MOST_FAMILIES = 6
"""With more there are too many pairs to look at."""
LEAST_PERCENT, MOST_SHARES = 25.0, 11
"""Shares that are looked at: none smaller, and about so many."""
LARGEST_BATCHES = (4, 8, 16, 32)
"""Each part serves batches up to one of these, from ..."""
SPAN = 4
"""... so many times less: its neighbour is prepared for all of them."""
USUAL_SERVERS = 6
"""Of the pools that parts are compared in, ..."""
SOME_SLOS = (0.05, 0.35, 0.65, 0.95)
"""... within these quantiles of a family's SLOs."""
WORTHWHILE = 1.01
"""Pairs worth fewer whole GPUs are not looked at, ..."""
LEAST_USED = 0.5
"""... nor those of which so few are of use."""


@dataclass(frozen=True, slots=True)
class Side:
    """A part of a GPU beside a part that another family has: their `pair` is numbered.

    `column`: the share's index. `execution` and `cycle` (batches,) in ms are beside the worst batch that the
    other may serve; `batches` are those that this one may. `cost`: its part of a GPU's price.
    """

    pair: int
    column: int
    execution: FloatArray
    cycle: FloatArray
    batches: IntArray
    cost: float


@dataclass(frozen=True, slots=True)
class Demand:
    """A family: what it asks for on GPUs of one type. `slo_ms` (SLOs,)."""

    model: str
    slo_ms: FloatArray
    rate_rps: float


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two parts: whose they are, their shares' indices, their largest batches, their worth in whole GPUs."""

    family: tuple[int, int]
    column: tuple[int, int]
    largest: tuple[int, int]
    worth: tuple[float, float]


def sides_of(
    device: Device, alone: Alone, families: Sequence[Demand], rule: Rule, quantile: float | None
) -> tuple[list[list[Side]], list[float]]:
    """The sides of each family, and what a whole GPU's load of it is worth: less is easier served in pairs.

    Nothing where no pair pays.
    """
    from scipy.optimize import linprog

    count = len(families)
    if not count or count > MOST_FAMILIES:
        return [[] for _ in families], [1.0] * count
    table = _Parts.of(device, alone, families, rule, quantile)
    pairs = table.pairs()
    served = np.column_stack([np.eye(count), np.zeros((count, len(pairs)))])
    for n, pair in enumerate(pairs, count):
        for family, worth in zip(pair.family, pair.worth, strict=True):
            served[family, n] += worth
    found = linprog(np.ones(served.shape[1]), A_ub=-served, b_ub=-table.gpus)
    if found.status != 0:
        return [[] for _ in families], [1.0] * count
    paid = -found.ineqlin.marginals
    sides: list[list[Side]] = [[] for _ in families]
    for number, n in enumerate(np.flatnonzero(found.x[count:] >= LEAST_USED).tolist()):
        for one, other in ((0, 1), (1, 0)):
            side = table.side(number, pairs[n], one, other, float(paid[pairs[n].family[one]]))
            sides[pairs[n].family[one]].append(side)
    return sides, paid.tolist()


@dataclass(frozen=True, slots=True)
class _Parts:
    """What parts are worth.

    `columns` (shares,) are indices of the shares that are looked at, `rest` of what they leave. `largest`
    (caps,) are the largest batches. `gpus` (families,): whole ones that each family takes. `worth[a]`
    (caps, families, their caps, shares): of family a's parts beside others', in whole GPUs.
    """

    device: Device
    alone: Alone
    model: IntArray
    percents: FloatArray
    columns: IntArray
    rest: IntArray
    largest: IntArray
    quantile: float | None
    gpus: FloatArray
    worth: list[FloatArray]

    @staticmethod
    def of(
        device: Device, alone: Alone, families: Sequence[Demand], rule: Rule, quantile: float | None
    ) -> _Parts:
        """Asks the latency model about every two models at these shares."""
        percents = np.array(device.pool.device.grid.percents())
        some = np.flatnonzero((percents >= LEAST_PERCENT) & (percents <= 100.0 - LEAST_PERCENT))
        columns = some[:: max(1, some.size // MOST_SHARES)]
        rest = np.searchsorted(percents, 100.0 - percents[columns] + 1e-9, side="right") - 1
        model = np.array([device.latency.models.index(f.model) for f in families])
        known = alone.execution.shape[1]
        largest = np.unique(np.minimum(LARGEST_BATCHES, known))
        parts = _Parts(
            device, alone, model, percents, columns, rest, largest, quantile, np.zeros(model.size), []
        )
        for n, family in enumerate(families):
            slo = np.quantile(family.slo_ms, SOME_SLOS, method="nearest")
            own = alone.execution[model[n], :, -1:], alone.cycle[model[n], :, -1:]
            whole = carried(device, family.model, *own, slo, rule)[:, USUAL_SERVERS - 1]
            parts.gpus[n] = family.rate_rps / max(float(whole.mean()), 1e-9)
            shape = model.size, largest.size, columns.size
            other, cap, at = (i.ravel() for i in np.indices(shape))
            beside = parts.times(model[n], columns[at], model[other], rest[at], largest[cap])
            worth = [
                carried(device, family.model, *beside, slo, rule, served(size))[:, USUAL_SERVERS - 1]
                / np.maximum(whole, 1e-9)
                for size in largest.tolist()
            ]
            parts.worth.append(np.array(worth).mean(axis=1).reshape(largest.size, *shape))
        return parts

    def times(
        self, model: int, column: IntArray, other: IntArray, rest: IntArray, batch: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """Execution and cycle of every batch (batches, n) at shares beside a full batch of others (n,)."""
        known = self.alone.execution.shape[1]
        size = np.repeat(np.arange(1.0, known + 1), column.size)
        most = np.array([self.device.profiles[m].largest_batch for m in self.device.latency.models])
        theirs = np.minimum(batch, most[other])
        column, other, rest, theirs = (np.tile(a, known) for a in (column, other, rest, theirs))
        slots = Slots.of(
            np.column_stack([np.full(size.size, model), other]), np.column_stack([size, theirs]),
            np.column_stack([self.percents[column], self.percents[rest]]),
        )  # fmt: skip
        execution, cycle = (
            a[:, 0].reshape(known, -1) for a in ask(self.device.latency, slots, self.quantile)
        )
        offered = np.isfinite(self.alone.execution[model, :, -1:])
        # As `board.service_curves`: a batch is not faster for being larger.
        execution = np.maximum.accumulate(execution, axis=0)
        return np.where(offered, execution, np.inf), np.where(offered, cycle, np.inf)

    def pairs(self) -> list[_Pair]:
        """For every two families and shares the batches that make them worth most."""
        found = []
        for a in range(self.model.size):
            for b in range(a + 1, self.model.size):
                for s, column in enumerate(self.columns.tolist()):
                    back = np.flatnonzero(self.columns == self.rest[s])
                    if not back.size:
                        continue
                    one, other = self.worth[a][:, b, :, s], self.worth[b][:, a, :, back[0]].T
                    i, j = np.unravel_index(int((one + other).argmax()), one.shape)
                    if one[i, j] + other[i, j] > WORTHWHILE:
                        found.append(
                            _Pair(
                                (a, b), (column, int(self.rest[s])),
                                (int(self.largest[i]), int(self.largest[j])),
                                (float(one[i, j]), float(other[i, j])),
                            )
                        )  # fmt: skip
        return found

    def side(self, number: int, pair: _Pair, one: int, other: int, paid: float) -> Side:
        """One of its sides; `paid` is what a whole GPU's load is worth."""
        theirs = served(pair.largest[other])
        here, there = self.model[pair.family[one]], np.full(theirs.size, self.model[pair.family[other]])
        column, rest = (np.full(theirs.size, pair.column[n]) for n in (one, other))
        execution, cycle = (a.max(axis=1) for a in self.times(int(here), column, there, rest, theirs))
        own = served(pair.largest[one])
        own = own[np.isfinite(execution[own - 1])]
        return Side(number, pair.column[one], execution, cycle, own, pair.worth[one] * paid)


def served(largest: int) -> IntArray:
    """The batches of a part."""
    return np.array([b for b in waiting.BATCHES if b <= largest <= SPAN * b])
