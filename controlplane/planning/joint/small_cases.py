"""Few workloads: every partition of each family into runs by SLO, with pools of every size, weighed by sizes.

Parts of a GPU count here as what they take, since what stands beside what is seen at once. The cheapest ways
to serve each family are packed in all combinations, as plain sizes; the most promising combinations once more
with their true neighbours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.domain.plan import MOST_SERVERS
from controlplane.domain.workload import Workload
from controlplane.latency.protocol import FloatArray, IntArray
from controlplane.planning.capacity.gpu_types import GpuType
from controlplane.planning.capacity.items import Group, Item, families
from controlplane.planning.capacity.options import ServingOption
from controlplane.planning.capacity.sizing import padded, smallest_shares
from controlplane.planning.capacity.tolerance import ToleranceTable
from controlplane.planning.joint.grouping import MOST_TOGETHER

_COMBINATIONS = 2048
"""Weighed, at most, and as many more for each further effort."""
_MOST_FAMILIES = 11
"""Beyond so many there would be one way of each."""
_MOST_WAYS = 12
"""Of a family, the cheapest."""
_POOL_SIZES_OF_RUN = 3
"""Pool sizes that are tried, the cheapest."""
_SLOWDOWNS, _MORE_SLOWDOWNS = (1.07, 1.12), (1.05, 1.07, 1.1, 1.13)
"""How neighbours slow what is weighed, one after the other; the latter for more than one effort."""
_GROWN = 192
"""Combinations of each slowdown that are sized with their true neighbours, at one effort, ..."""
_MOST_RETURNED = 5
"""... and of those that are returned."""
_MOST_EFFORT = 16
_FULL = 100.0 + 1e-6


@dataclass(frozen=True, slots=True)
class Combination:
    """Pools that serve all workloads, and where their partitions stand.

    `gpus` are, by type, numbers of `pools`, one for each partition. `cost` is what they likely cost, `least`
    what they would if no GPU was too full after all, `share` what their shares alone would.
    """

    pools: tuple[ServingOption, ...]
    gpus: Mapping[str, tuple[tuple[int, ...], ...]]
    cost: float
    least: float
    share: float


@dataclass(frozen=True, slots=True)
class _Served:
    """A family, or a run of it, served by these pools, and what they cost by their shares."""

    cost: float
    pools: tuple[ServingOption, ...]


def combinations(
    workloads: Sequence[Workload], gpu_types: Mapping[str, GpuType], effort: int = 1
) -> list[Combination]:
    """The cheapest first; none where a workload fits nowhere or there are many families.

    `effort`: how many times as much to try.
    """
    effort = min(effort, _MOST_EFFORT)
    every_family = families(workloads, next(iter(gpu_types.values())).rule)
    if len(every_family) > _MOST_FAMILIES:
        return []
    items = [Item(g, n) for family in every_family for g in _runs(family) for n in range(1, MOST_SERVERS + 1)]
    tables = {name: ToleranceTable.of(items, gpu_type) for name, gpu_type in gpu_types.items()}
    case = _Case(every_family, items, tables, effort)
    found = [c for by in (_SLOWDOWNS if effort == 1 else _MORE_SLOWDOWNS) for c in case.at(by)]
    return sorted(found, key=lambda c: (c.cost, c.share))


def _runs(family: Group) -> list[Group]:
    size = len(family)
    return [family[i:j] for i in range(size) for j in range(i + 1, min(size, i + MOST_TOGETHER) + 1)]


@dataclass(frozen=True, slots=True)
class _Case:
    """All runs of all families with pools of all sizes (`items`)."""

    families: Sequence[Group]
    items: Sequence[Item]
    tables: Mapping[str, ToleranceTable]
    effort: int

    def at(self, slowdown: float) -> list[Combination]:
        """The most promising combinations where neighbours slow every partition so much."""
        runs = self._runs(slowdown)
        each = int((self.effort * _COMBINATIONS) ** (1.0 / len(self.families)) + 1e-9)
        served = [_served(family, runs, min(_MOST_WAYS, max(1, each))) for family in self.families]
        if not all(served):
            return []
        flat = [one for own in served for one in own]
        first = np.cumsum([0, *(len(own) for own in served)])
        chosen = np.indices([len(own) for own in served]).reshape(len(served), -1).T + first[:-1]
        share = np.array([one.cost for one in flat])[chosen].sum(axis=1)
        size, home, item = self._partitions(flat)
        packed = _Packed.of(size[chosen], home[chosen], item[chosen])
        price = np.array([table.gpu_type.price for table in self.tables.values()])
        least = np.stack([(packed.type_ == t).sum(axis=1) for t in range(price.size)], axis=1) @ price
        likely = np.lexsort((share, least))[: self.effort * _GROWN]
        gpus = [packed.gpus_of(row) for row in likely.tolist()]
        cost = least[likely]
        for t, table in enumerate(self.tables.values()):
            # One that is too full with its true neighbours likely takes a GPU more.
            here = [(n, items) for n, by_type in enumerate(gpus) for items in by_type[t]]
            full = ~smallest_shares(table, padded([items for _, items in here])).fits
            owner = np.array([n for n, _ in here], dtype=np.int64)
            cost += price[t] * np.bincount(owner[full], minlength=likely.size)
        found = []
        for n in np.lexsort((share[likely], cost))[: self.effort * _MOST_RETURNED].tolist():
            row = likely[n]
            pools = tuple(pool for one in chosen[row].tolist() for pool in flat[one].pools)
            number = {id(pool.item): p for p, pool in enumerate(pools)}
            stand = {
                name: tuple(tuple(number[id(self.items[i])] for i in own) for own in gpus[n][t])
                for t, name in enumerate(self.tables)
            }
            found.append(Combination(pools, stand, float(cost[n]), float(least[row]), float(share[row])))
        return found

    def _partitions(self, served: Sequence[_Served]) -> tuple[FloatArray, IntArray, IntArray]:
        """Those of each (served, slots): percent, 0 for none, number of the GPU type, number of the item."""
        type_ = {name: t for t, name in enumerate(self.tables)}
        row = {id(item): n for n, item in enumerate(self.items)}
        pools = [[pool for pool in one.pools for _ in range(pool.item.servers)] for one in served]
        shape = len(served), max(len(own) for own in pools)
        size, home, item = np.zeros(shape), np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        for n, own in enumerate(pools):
            size[n, : len(own)] = [pool.expected_percent for pool in own]
            home[n, : len(own)] = [type_[pool.gpu_type] for pool in own]
            item[n, : len(own)] = [row[id(pool.item)] for pool in own]
        return size, home, item

    def _runs(self, slowdown: float) -> dict[Group, list[_Served]]:
        """The cheapest pools of each run."""
        found: dict[Group, list[_Served]] = {}
        for name, table in self.tables.items():
            percents = table.percent_beside(slowdown).tolist()
            for item, percent in zip(self.items, percents, strict=True):
                if np.isfinite(percent):
                    cost = table.gpu_type.price * item.servers * percent / 100.0
                    pool = ServingOption(item, name, percent, percent)
                    found.setdefault(item.workloads, []).append(_Served(cost, (pool,)))
        return {
            run: sorted(own, key=lambda one: (one.cost, one.pools[0].item.servers))[:_POOL_SIZES_OF_RUN]
            for run, own in found.items()
        }


def _served(family: Group, runs: Mapping[Group, Sequence[_Served]], most: int) -> list[_Served]:
    """The cheapest ways to serve a family; between equals those with fewer together first."""
    best = [[_Served(0.0, ())]]
    for end in range(1, len(family) + 1):
        found = [
            _Served(before.cost + last.cost, (*before.pools, *last.pools))
            for begin in range(end - 1, max(-1, end - 1 - MOST_TOGETHER), -1)
            for before in best[begin]
            for last in runs.get(family[begin:end], ())
        ]
        best.append(sorted(found, key=lambda one: one.cost)[:most])
    return best[-1]


@dataclass(frozen=True, slots=True)
class _Packed:
    """Partitions of many combinations packed best fit decreasing, as plain sizes.

    `item` (combinations, partitions) are the partitions, largest first; `gpu` the number of each one's GPU,
    -1 where a combination has fewer partitions. `type_` (combinations, GPUs): -1 where it has fewer GPUs.
    """

    item: IntArray
    gpu: IntArray
    type_: IntArray

    @staticmethod
    def of(size: FloatArray, home: IntArray, item: IntArray) -> _Packed:
        """Of partitions (combinations, families, slots): percent, 0 for none, GPU type and item by number."""
        count = size.shape[0]
        order = np.argsort(-size.reshape(count, -1), axis=1, kind="stable")
        size = np.take_along_axis(size.reshape(count, -1), order, axis=1)
        home, item = (np.take_along_axis(a.reshape(count, -1), order, axis=1) for a in (home, item))
        gpu, type_ = np.full(size.shape, -1), np.full(size.shape, -1)
        room, opened = np.zeros(size.shape), np.zeros(count, dtype=np.int64)
        for i in range(size.shape[1]):
            row = np.flatnonzero(size[:, i] > 0.0)
            need, kind = size[row, i], home[row, i]
            fits = (type_[row] == kind[:, None]) & (room[row] >= need[:, None])
            best = np.where(fits, room[row], np.inf).argmin(axis=1)
            new = ~fits.any(axis=1)
            best[new] = opened[row[new]]
            opened[row[new]] += 1
            room[row[new], best[new]], type_[row[new], best[new]] = _FULL, kind[new]
            room[row, best] -= need
            gpu[row, i] = best
        return _Packed(item, gpu, type_)

    def gpus_of(self, row: int) -> dict[int, list[list[int]]]:
        """The items of each GPU of one combination, by GPU type."""
        own: list[list[int]] = [[] for type_ in self.type_[row] if type_ >= 0]
        for gpu, item in zip(self.gpu[row].tolist(), self.item[row].tolist(), strict=True):
            if gpu >= 0:
                own[gpu].append(item)
        found = defaultdict[int, list[list[int]]](list)
        for type_, items in zip(self.type_[row].tolist(), own, strict=False):
            found[type_].append(items)
        return found
