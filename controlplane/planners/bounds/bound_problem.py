"""The question that the lower bound answers: families as classes of SLOs, and what servers carry of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.domain.device import ShareGrid
from controlplane.domain.plan import Rule
from controlplane.domain.workload import Arrivals, Workload
from controlplane.latency.protocol import BoolArray, FloatArray, IntArray
from controlplane.planners.bounds.fastest_times import FEW_MODELS, NEIGHBOURS, FastestTimes
from controlplane.planners.bounds.interference import MutualRates
from controlplane.planners.serving.families import Group, families
from controlplane.planners.serving.gpu_types import GpuType
from controlplane.planners.serving.lower_bound import bound_pool_sizes, bound_rate

_MOST_CLASSES = 100
"""SLOs distinguished, of all families together: the workloads between two are all as loose as the looser."""
_MANY_WORKLOADS, _FEWER_CLASSES = 400, 64
"""From so many workloads on fewer classes, or programs take longer than the plan."""
FEW_WORKLOADS = 20
"""Up to so many neighbours are taken for harmless: the little that they gain takes longer than the plan."""
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class BoundFamily:
    """Workloads that may share queues, as classes of rising SLO.

    `rate` (classes,) is per second; `rates` holds for each GPU type (classes, pool sizes, neighbours,
    shares), see `serving.lower_bound`. `whole`: it is one workload, which a pool serves or does not.
    """

    rate: FloatArray
    rates: tuple[FloatArray, ...]
    whole: bool

    @property
    def edges(self) -> FloatArray:
        """Where classes begin and end, by rate: (classes + 1,)."""
        return np.concatenate([[0.0], np.cumsum(self.rate)])


@dataclass(frozen=True, slots=True)
class BoundProblem:
    """All families; `first` (families + 1,) is the number of each one's first class.

    For each GPU type: its price, and how many units of room each of its shares takes (see `_units`), out
    of `steps`. `pools` (pool sizes, 2) are the fewest and most servers of each size. `mutual`: what
    neighbours do to each other, None where only the least harmful are known. Of all classes (classes,): its
    `rate`, the `end` of its family and whether it is one workload as a `whole`.
    """

    families: tuple[BoundFamily, ...]
    first: IntArray
    price: tuple[float, ...]
    weight: tuple[IntArray, ...]
    steps: tuple[int, ...]
    pools: IntArray
    mutual: tuple[MutualRates | None, ...]
    rate: FloatArray
    end: IntArray
    whole: BoolArray

    @staticmethod
    def of(workloads: Sequence[Workload], gpu_types: Mapping[str, GpuType]) -> BoundProblem:
        """Of workloads each of which fits some GPU."""
        types = list(gpu_types.values())
        kin = families(workloads, types[0].rule)
        classes = _MOST_CLASSES if len(workloads) < _MANY_WORKLOADS else _FEWER_CLASSES
        runs = [_classes(family, max(1, classes // len(kin))) for family in kin]
        slos = [
            np.array([family[int(run[-1])].slo_ms for run in own])
            for family, own in zip(kin, runs, strict=True)
        ]
        limits = [_limits(kin, gpu_type) for gpu_type in types]
        several = len(workloads) > FEW_WORKLOADS
        mutual = [
            MutualRates.of(gpu_type, limit, kin, slos)
            if several and len(kin) <= _MOST_CLASSES and 0 < len(limit) <= FEW_MODELS
            else None
            for gpu_type, limit in zip(types, limits, strict=True)
        ]
        neighbours = NEIGHBOURS if several else 0
        fastest = [FastestTimes.of(t, limit, neighbours) for t, limit in zip(types, limits, strict=True)]
        found = []
        for family, own, slo in zip(kin, runs, slos, strict=True):
            rate = np.array([sum(family[i].rate_rps for i in run) for run in own])
            rates = tuple(_rates(family, slo, t, times) for t, times in zip(types, fastest, strict=True))
            found.append(BoundFamily(rate, rates, len(family) == 1))
        sizes = [f.rate.size for f in found]
        first = np.cumsum([0, *sizes])
        grids = [t.device.pool.device.grid for t in types]
        return BoundProblem(
            tuple(found),
            first,
            tuple(t.price for t in types),
            tuple(_units(np.array(g.percents()), g) for g in grids),
            tuple(int(_units(np.array([100.0]), g)[0]) for g in grids),
            np.array(bound_pool_sizes(types[0].rule), dtype=np.int64),
            tuple(mutual),
            np.concatenate([f.rate for f in found]),
            np.repeat(first[1:], sizes),
            np.repeat([f.whole for f in found], sizes),
        )

    def dearest(self, family: int) -> list[float]:
        """All that each class of a family can pay: by then a GPU that serves it alone earns its price."""
        own = self.families[family]
        found = []
        for number, rate in enumerate(own.rate.tolist()):
            most = [float(rates[number, 0, 0].max(initial=0.0)) for rates in own.rates]
            costs = [p * max(1.0, rate / m) for m, p in zip(most, self.price, strict=True) if m > 0.0]
            found.append(min(costs, default=0.0))
        return found

    def falling(self, family: int) -> list[FloatArray]:
        """Rows by which no class of a family pays more for a request than the one before it."""
        begin, end = self.first[family : family + 2].tolist()
        every = np.eye(int(self.first[-1]))
        return [every[at + 1] - every[at] for at in range(begin, end - 1)]

    def run(self, number: int, size: int, rate: float) -> FloatArray:
        """How much of each class a server of a pool of this size serves, whose run begins at this class."""
        served = np.zeros(self.rate.size)
        fewest = float(self.pools[size, 0])
        if rate <= 0.0:
            return served
        if self.whole[number]:
            servers = max(fewest, math.ceil(self.rate[number] / rate - _ROUNDING))
            served[number] = self.rate[number] / servers
            return served
        edges = np.append(0.0, np.cumsum(self.rate))
        until = min(edges[number] + rate * fewest, edges[self.end[number]])
        covered = np.minimum(edges[1:], until) - np.maximum(edges[:-1], edges[number])
        answer: FloatArray = np.maximum(covered, 0.0) / fewest
        return answer


def _limits(kin: Sequence[Group], gpu_type: GpuType) -> dict[int, float]:
    """The models that a GPU type serves, by number, with the longest time of a batch."""
    # Under half-SLO no batch may take longer than half of it.
    part = math.inf if gpu_type.rule is Rule.P99 else 0.5 + _ROUNDING
    found: dict[int, float] = {}
    for family in kin:
        model = gpu_type.number_of(family[0].model)
        if model >= 0:
            found[model] = max(found.get(model, 0.0), family[-1].slo_ms * part)
    return found


def _rates(family: Group, slo_ms: FloatArray, gpu_type: GpuType, fastest: FastestTimes) -> FloatArray:
    model = gpu_type.number_of(family[0].model)
    if model < 0:
        return np.zeros((slo_ms.size, len(bound_pool_sizes(gpu_type.rule)), 1, gpu_type.percents.size))
    constant = family[0].arrivals is Arrivals.CONSTANT
    return bound_rate(gpu_type, family[0].model, fastest.of_model(model), slo_ms, constant)


def _classes(family: Sequence[Workload], most: int) -> list[IntArray]:
    """Its workloads by number, those of a class together.

    What a server carries falls about as 1 / SLO rises, so a class loses its rate times its spread of that: at
    the best cuts the root of both, summed along the family, is the same for each.
    """
    if len(family) <= most:
        return list(np.arange(len(family))[:, None])
    rate = np.array([w.rate_rps for w in family])
    strictness = np.array([1.0 / w.slo_ms for w in family])
    along = np.append(0.0, np.cumsum(np.sqrt(rate[1:] * -np.diff(strictness))))
    part = along / along[-1] if along[-1] > 0.0 else along
    number = np.minimum(np.floor(part * most), most - 1)
    return [np.flatnonzero(number == n) for n in np.unique(number)]


def _units(percents: FloatArray, grid: ShareGrid) -> IntArray:
    """Shares in whole units, rounded down: what fits a GPU in percent fits it in units too.

    No share of the grid is below one unit, for a GPU has room for any number of weightless shares.
    """
    unit = min(grid.minimum_percent, grid.step_percent)
    units: IntArray = np.floor(percents / unit + _ROUNDING).astype(np.int64)
    return units
