"""Pairs of families that are served by fewer GPUs side by side than each on GPUs of its own.

What a part of a GPU carries beside a full batch of another model is read off the waiting-time table; a linear
program says which pairs of parts, and whole GPUs, serve all families on the fewest GPUs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.latency.protocol import FloatArray, IntArray, Slots
from controlplane.planning.capacity.gpu_types import BatchTimes, GpuType
from controlplane.planning.capacity.items import Group
from controlplane.planning.capacity.p99_table import BATCHES, usual_rate

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

    `column` is the share's index. `times` (batches, 1) are beside the worst batch that the other side may
    serve; `batches` are those that this one may. `cost`: its part of a GPU's price.
    """

    pair: int
    column: int
    times: BatchTimes
    batches: IntArray
    cost: float


@dataclass(frozen=True, slots=True)
class _Half:
    """Half of a pair: its family, the index of its share, its largest batch, its worth in whole GPUs."""

    family: int
    column: int
    largest: int
    worth: float


def pair_sides(gpu_type: GpuType, families: Sequence[Group]) -> tuple[list[list[Side]], list[float]]:
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
        for half in pair:
            served[half.family, n] += half.worth
    found = linprog(np.ones(served.shape[1]), A_ub=-served, b_ub=-table.gpus)
    if found.status != 0:
        return sides, [1.0] * count
    price = -found.ineqlin.marginals
    for number, n in enumerate(np.flatnonzero(found.x[count:] >= _LEAST_USED).tolist()):
        for own, other in (pairs[n], pairs[n][::-1]):
            sides[own.family].append(table.side(number, own, other, float(price[own.family])))
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
    def of(gpu_type: GpuType, families: Sequence[Group]) -> _PairTable:
        """Ask the latency model about every two models at these shares."""
        percents, alone = gpu_type.percents, gpu_type.alone
        some = np.flatnonzero((percents >= _LEAST_PERCENT) & (percents <= 100.0 - _LEAST_PERCENT))
        columns = some[:: max(1, some.size // _MOST_SHARES)]
        rest = gpu_type.floor(100.0 - percents[columns] + 1e-9)
        model = np.array([gpu_type.number_of(family[0].model) for family in families])
        largest = np.unique(np.minimum(_LARGEST_BATCHES, alone.execution.shape[1]))
        table = _PairTable(gpu_type, model, columns, rest, largest, np.zeros(model.size), [])
        other, size, at = (i.ravel() for i in np.indices((model.size, largest.size, columns.size)))
        for n, family in enumerate(families):
            whole = _usual_rate(gpu_type, family, alone.of_model(model[n], np.array([percents.size - 1])))
            table.gpus[n] = sum(w.rate_rps for w in family) / max(float(whole.mean()), 1e-9)
            beside = table.times(model[n], columns[at], model[other], rest[at], largest[size])
            worth = [
                _usual_rate(gpu_type, family, beside, side_batches(most)) / np.maximum(whole, 1e-9)
                for most in largest.tolist()
            ]
            shape = largest.size, model.size, largest.size, columns.size
            table.worth.append(np.array(worth).mean(axis=1).reshape(shape))
        return table

    def times(
        self, model: int, column: IntArray, other: IntArray, rest: IntArray, batch: IntArray
    ) -> BatchTimes:
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
        return BatchTimes(np.where(possible, execution, np.inf), np.where(possible, cycle, np.inf))

    def pairs(self) -> list[tuple[_Half, _Half]]:
        """For every two families and shares the largest batches that make the pair worth most."""
        found = []
        for a, b in itertools.combinations(range(self.model.size), 2):
            for s, column in enumerate(self.columns.tolist()):
                back = np.flatnonzero(self.columns == self.rest[s])
                if not back.size:
                    continue
                one, other = self.worth[a][:, b, :, s], self.worth[b][:, a, :, back[0]].T
                i, j = np.unravel_index(int((one + other).argmax()), one.shape)
                if one[i, j] + other[i, j] > _WORTHWHILE:
                    first = _Half(a, column, int(self.largest[i]), float(one[i, j]))
                    second = _Half(b, int(self.rest[s]), int(self.largest[j]), float(other[i, j]))
                    found.append((first, second))
        return found

    def side(self, number: int, own: _Half, other: _Half, price: float) -> Side:
        """One side of a pair; `price` is the cost of a whole GPU's load."""
        theirs = side_batches(other.largest)
        model, beside = int(self.model[own.family]), int(self.model[other.family])
        column, other_model, rest = (np.full(theirs.size, of) for of in (own.column, beside, other.column))
        times = self.times(model, column, other_model, rest, theirs)
        worst = BatchTimes(times.execution.max(axis=1, keepdims=True), times.cycle.max(axis=1, keepdims=True))
        batches = side_batches(own.largest)
        batches = batches[np.isfinite(worst.execution[batches - 1, 0])]
        return Side(number, own.column, worst, batches, own.worth * price)


def _usual_rate(
    gpu_type: GpuType, family: Group, times: BatchTimes, batches: IntArray | None = None
) -> FloatArray:
    """What one of the usual number of servers carries within some of a family's SLOs: (SLOs, columns)."""
    slo_ms = np.quantile([w.slo_ms for w in family], _SOME_SLOS, method="nearest")
    return usual_rate(gpu_type, family[0].model, times, slo_ms, batches)[:, _USUAL_SERVERS - 1]


def side_batches(largest: int) -> IntArray:
    """The batches that a side serves."""
    return np.array([b for b in BATCHES if b <= largest <= _SPAN * b])
