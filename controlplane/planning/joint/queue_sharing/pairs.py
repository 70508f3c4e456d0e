"""Pairs of families that are served by fewer GPUs side by side than each on GPUs of its own.

What a part of a GPU carries beside a full batch of another model is read off the waiting-time table; a linear
program says which pairs of parts, and whole GPUs, serve all families on the fewest GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.latency.protocol import FloatArray, IntArray, Slots
from controlplane.planning.capacity import waiting_times
from controlplane.planning.capacity.gpu_types import AloneTimes, GpuType
from controlplane.planning.capacity.largest_rate import usual_rate

_MOST_FAMILIES = 6
"""With more there are too many pairs to look at."""
_LEAST_PERCENT, _MOST_SHARES = 25.0, 11
"""Shares that are looked at: none smaller, and about so many."""
_LARGEST_BATCHES = (4, 8, 16, 32)
_SPAN = 4
"""A side serves batches from its largest one down to so many times less; its neighbour is sized for them
all."""
_USUAL_SERVERS = 6
"""Pool size at which sides are compared, ..."""
_SOME_SLOS = (0.05, 0.35, 0.65, 0.95)
"""... within these quantiles of a family's SLOs."""
_WORTHWHILE = 1.01
"""Pairs that serve as much as fewer whole GPUs are not looked at, ..."""
_LEAST_USED = 0.5
"""... nor those of which the linear program uses fewer."""


@dataclass(frozen=True, slots=True)
class Side:
    """One part of a GPU, beside a part that serves another family; the two have the same `pair` number.

    `column` is the share's index. `execution` and `cycle` (batches,) in ms are beside the worst batch that
    the other side may serve; `batches` are those that this one may. `cost`: its part of a GPU's price.
    """

    pair: int
    column: int
    execution: FloatArray
    cycle: FloatArray
    batches: IntArray
    cost: float


@dataclass(frozen=True, slots=True)
class Demand:
    """What a family asks of GPUs of one type; `slo_ms` (SLOs,)."""

    model: str
    slo_ms: FloatArray
    rate_rps: float


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two sides: their families, the indices of their shares, their largest batches, their worth in GPUs."""

    family: tuple[int, int]
    column: tuple[int, int]
    largest: tuple[int, int]
    worth: tuple[float, float]


def pair_sides(gpu_type: GpuType, families: Sequence[Demand]) -> tuple[list[list[Side]], list[float]]:
    """The sides of each family, and what serving a whole GPU's load of it costs in GPUs: at most 1.

    No sides where no pair pays.
    """
    from scipy.optimize import linprog

    count = len(families)
    sides: list[list[Side]] = [[] for _ in families]
    if not count or count > _MOST_FAMILIES:
        return sides, [1.0] * count
    table = _PairTable.of(gpu_type, families)
    pairs = table.pairs()
    served = np.column_stack([np.eye(count), np.zeros((count, len(pairs)))])
    for n, pair in enumerate(pairs, count):
        for family, worth in zip(pair.family, pair.worth, strict=True):
            served[family, n] += worth
    found = linprog(np.ones(served.shape[1]), A_ub=-served, b_ub=-table.gpus)
    if found.status != 0:
        return sides, [1.0] * count
    price = -found.ineqlin.marginals
    for number, n in enumerate(np.flatnonzero(found.x[count:] >= _LEAST_USED).tolist()):
        for one in (0, 1):
            family = pairs[n].family[one]
            sides[family].append(table.side(number, pairs[n], one, float(price[family])))
    return sides, price.tolist()


@dataclass(frozen=True, slots=True)
class _PairTable:
    """What sides are worth.

    `columns` (shares,) are the shares looked at by index, `rest` what they leave. `largest` (sizes,) are the
    largest batches. `gpus` (families,): whole GPUs that each family takes. `worth[a]` (own sizes, families,
    their sizes, shares): a side of family a beside the others, in whole GPUs.
    """

    gpu_type: GpuType
    model: IntArray
    columns: IntArray
    rest: IntArray
    largest: IntArray
    gpus: FloatArray
    worth: list[FloatArray]

    @staticmethod
    def of(gpu_type: GpuType, families: Sequence[Demand]) -> _PairTable:
        """Ask the latency model about every two models at these shares."""
        percents, alone = gpu_type.percents, gpu_type.alone
        some = np.flatnonzero((percents >= _LEAST_PERCENT) & (percents <= 100.0 - _LEAST_PERCENT))
        columns = some[:: max(1, some.size // _MOST_SHARES)]
        rest = np.searchsorted(percents, 100.0 - percents[columns] + 1e-9, side="right") - 1
        model = np.array([gpu_type.number_of(f.model) for f in families])
        largest = np.unique(np.minimum(_LARGEST_BATCHES, alone.execution.shape[1]))
        table = _PairTable(gpu_type, model, columns, rest, largest, np.zeros(model.size), [])
        for n, family in enumerate(families):
            slo = np.quantile(family.slo_ms, _SOME_SLOS, method="nearest")
            own = AloneTimes(alone.execution[model[n], :, -1:], alone.cycle[model[n], :, -1:])
            whole = usual_rate(gpu_type, family.model, own, slo)[:, _USUAL_SERVERS - 1]
            table.gpus[n] = family.rate_rps / max(float(whole.mean()), 1e-9)
            shape = model.size, largest.size, columns.size
            other, size, at = (i.ravel() for i in np.indices(shape))
            beside = table.times(model[n], columns[at], model[other], rest[at], largest[size])
            worth = [
                usual_rate(gpu_type, family.model, beside, slo, side_batches(most))[:, _USUAL_SERVERS - 1]
                / np.maximum(whole, 1e-9)
                for most in largest.tolist()
            ]
            table.worth.append(np.array(worth).mean(axis=1).reshape(largest.size, *shape))
        return table

    def times(
        self, model: int, column: IntArray, other: IntArray, rest: IntArray, batch: IntArray
    ) -> AloneTimes:
        """Times of every batch (batches, n) at shares beside a full batch of others; all four are (n,)."""
        known, percents = self.gpu_type.alone.execution.shape[1], self.gpu_type.percents
        profiles = self.gpu_type.device.profiles
        most = np.array([profiles[m].largest_batch for m in self.gpu_type.models])
        size = np.repeat(np.arange(1.0, known + 1), column.size)
        theirs = np.minimum(batch, most[other])
        column, other, rest, theirs = (np.tile(a, known) for a in (column, other, rest, theirs))
        models = np.column_stack([np.full(size.size, model), other])
        shares = np.column_stack([percents[column], percents[rest]])
        both = self.gpu_type.ask(Slots.of(models, np.column_stack([size, theirs]), shares))
        execution, cycle = (a[:, 0].reshape(known, -1) for a in both)
        possible = np.isfinite(self.gpu_type.alone.execution[model, :, -1:])
        # As `estimates.service_curves`: a batch is not faster for being larger.
        execution = np.maximum.accumulate(execution, axis=0)
        return AloneTimes(np.where(possible, execution, np.inf), np.where(possible, cycle, np.inf))

    def pairs(self) -> list[_Pair]:
        """For every two families and shares the largest batches that make the pair worth most."""
        found = []
        for a in range(self.model.size):
            for b in range(a + 1, self.model.size):
                for s, column in enumerate(self.columns.tolist()):
                    back = np.flatnonzero(self.columns == self.rest[s])
                    if not back.size:
                        continue
                    one, other = self.worth[a][:, b, :, s], self.worth[b][:, a, :, back[0]].T
                    i, j = np.unravel_index(int((one + other).argmax()), one.shape)
                    if one[i, j] + other[i, j] > _WORTHWHILE:
                        columns = column, int(self.rest[s])
                        largest = int(self.largest[i]), int(self.largest[j])
                        worth = float(one[i, j]), float(other[i, j])
                        found.append(_Pair((a, b), columns, largest, worth))
        return found

    def side(self, number: int, pair: _Pair, one: int, price: float) -> Side:
        """One side of a pair; `price` is the cost of a whole GPU's load."""
        theirs = side_batches(pair.largest[1 - one])
        models = self.model[list(pair.family)]
        here, there = np.full((2, theirs.size), models[[one, 1 - one], None])
        own, rest = np.full((2, theirs.size), np.array(pair.column)[[one, 1 - one], None])
        beside = self.times(int(here[0]), own, there, rest, theirs)
        execution, cycle = beside.execution.max(axis=1), beside.cycle.max(axis=1)
        batches = side_batches(pair.largest[one])
        batches = batches[np.isfinite(execution[batches - 1])]
        return Side(number, pair.column[one], execution, cycle, batches, pair.worth[one] * price)


def side_batches(largest: int) -> IntArray:
    """The batches that a side serves."""
    return np.array([b for b in waiting_times.BATCHES if b <= largest <= _SPAN * b])
