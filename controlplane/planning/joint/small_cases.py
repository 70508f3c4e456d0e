"""Few workloads: every partition of each family into runs by SLO, with pools of every size, weighed by sizes.

Parts of a GPU count here as what they take, since what stands beside what is seen at once. The cheapest ways
to serve each family are packed in all combinations, as plain sizes; the most promising combinations once more
with their true neighbours.
"""

from __future__ import annotations

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


_Way = tuple[float, tuple[ServingOption, ...]]
"""What pools for a whole family cost by their shares, and the pools."""


def combinations(
    workloads: Sequence[Workload], gpu_types: Mapping[str, GpuType], effort: int = 1
) -> list[Combination]:
    """The cheapest first; none where a workload fits nowhere or there are many families.

    `effort`: how many times as much to try.
    """
    effort = min(effort, _MOST_EFFORT)
    kin = families(workloads, next(iter(gpu_types.values())).rule)
    if len(kin) > _MOST_FAMILIES:
        return []
    items = [Item(g, n) for family in kin for g in _runs(family) for n in range(1, MOST_SERVERS + 1)]
    tables = {name: ToleranceTable.of(items, gpu_type) for name, gpu_type in gpu_types.items()}
    case = _Case(kin, items, {id(item): n for n, item in enumerate(items)}, tables, effort)
    found = [c for by in (_SLOWDOWNS if effort == 1 else _MORE_SLOWDOWNS) for c in case.at(by)]
    return sorted(found, key=lambda c: (c.cost, c.share))


def _runs(family: Group) -> list[Group]:
    size = len(family)
    return [family[i:j] for i in range(size) for j in range(i + 1, min(size, i + MOST_TOGETHER) + 1)]


@dataclass(frozen=True, slots=True)
class _Case:
    """All runs of all families with pools of all sizes (`items`); `row` is an item's place by its id."""

    families: Sequence[Group]
    items: Sequence[Item]
    row: Mapping[int, int]
    tables: Mapping[str, ToleranceTable]
    effort: int

    def at(self, slowdown: float) -> list[Combination]:
        """The most promising combinations where neighbours slow every partition so much."""
        pools = self._pools(slowdown)
        each = int((self.effort * _COMBINATIONS) ** (1.0 / len(self.families)) + 1e-9)
        ways = [_ways(family, pools, min(_MOST_WAYS, max(1, each))) for family in self.families]
        if not all(ways):
            return []
        flat = [way for own in ways for way in own]
        size, home, item = self._arrays(flat)
        first = np.cumsum([0, *(len(own) for own in ways)])
        chosen = np.indices([len(own) for own in ways]).reshape(len(ways), -1).T + first[:-1]
        share = np.array([cost for cost, _ in flat])[chosen].sum(axis=1)
        price = np.array([table.gpu_type.price for table in self.tables.values()])
        least = _Packed.of(size[chosen], home[chosen]).gpus_of_types(price.size) @ price
        likely = np.lexsort((share, least))[: self.effort * _GROWN]
        chosen, share, least = chosen[likely], share[likely], least[likely]
        packed = _Packed.of(size[chosen], home[chosen])
        stand = packed.items(item[chosen])
        cost = least.copy()
        for d, table in enumerate(self.tables.values()):
            # One that is too full with its true neighbours likely takes a GPU more.
            here = [(n, gpu) for n, own in enumerate(stand) for type_, gpu in own if type_ == d]
            full = ~smallest_shares(table, padded([gpu for _, gpu in here])).fits
            owner = np.array([n for n, _ in here], dtype=np.int64)
            cost += price[d] * np.bincount(owner[full], minlength=likely.size)
        found = []
        for n in np.lexsort((share, cost))[: self.effort * _MOST_RETURNED]:
            options = tuple(o for w in chosen[n].tolist() for o in flat[w][1])
            pool = {self.row[id(o.item)]: p for p, o in enumerate(options)}
            gpus = {
                name: tuple(tuple(pool[i] for i in gpu) for type_, gpu in stand[n] if type_ == d)
                for d, name in enumerate(self.tables)
            }
            found.append(Combination(options, gpus, float(cost[n]), float(least[n]), float(share[n])))
        return found

    def _arrays(self, ways: Sequence[_Way]) -> tuple[FloatArray, IntArray, IntArray]:
        """The partitions of each way (ways, slots): percent, number of the GPU type, number of the item."""
        number = {name: d for d, name in enumerate(self.tables)}
        shape = len(ways), max(sum(o.item.servers for o in own) for _, own in ways)
        size, home, item = np.zeros(shape), np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        for n, (_, own) in enumerate(ways):
            servers = [
                (o.expected_percent, number[o.gpu_type], self.row[id(o.item)])
                for o in own
                for _ in range(o.item.servers)
            ]
            size[n, : len(servers)], home[n, : len(servers)], item[n, : len(servers)] = zip(
                *servers, strict=True
            )
        return size, home, item

    def _pools(self, slowdown: float) -> dict[Group, list[_Way]]:
        """The cheapest pools of each run."""
        found: dict[Group, list[_Way]] = {}
        for name, table in self.tables.items():
            percents = table.percent_beside(slowdown).tolist()
            for item, percent in zip(self.items, percents, strict=True):
                if np.isfinite(percent):
                    cost = table.gpu_type.price * item.servers * percent / 100.0
                    option = ServingOption(item, name, percent, percent)
                    found.setdefault(item.workloads, []).append((cost, (option,)))
        return {
            group: sorted(own, key=lambda way: (way[0], way[1][0].item.servers))[:_POOL_SIZES_OF_RUN]
            for group, own in found.items()
        }


def _ways(family: Group, pools: Mapping[Group, Sequence[_Way]], most: int) -> list[_Way]:
    """The cheapest ways to serve a family; between equals those with fewer together first."""
    best: list[list[_Way]] = [[(0.0, ())]]
    for end in range(1, len(family) + 1):
        found = [
            (spent + cost, (*before, *pool))
            for begin in range(end - 1, max(-1, end - 1 - MOST_TOGETHER), -1)
            for spent, before in best[begin]
            for cost, pool in pools.get(family[begin:end], ())
        ]
        best.append(sorted(found, key=lambda way: way[0])[:most])
    return best[-1]


@dataclass(frozen=True, slots=True)
class _Packed:
    """Partitions of many combinations packed best fit decreasing, as plain sizes.

    `order` (combinations, partitions) are the partitions, largest first; `gpu` the number of each one's GPU,
    -1 where a combination has fewer partitions. `type_` (combinations, GPUs): -1 where it has fewer GPUs.
    """

    order: IntArray
    gpu: IntArray
    type_: IntArray

    @staticmethod
    def of(size: FloatArray, home: IntArray) -> _Packed:
        """Of partitions (combinations, families, slots): percent, 0 for none, and the GPU type's number."""
        count = size.shape[0]
        size, home = size.reshape(count, -1), home.reshape(count, -1)
        order = np.argsort(-size, axis=1, kind="stable")
        size, home = np.take_along_axis(size, order, axis=1), np.take_along_axis(home, order, axis=1)
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
        return _Packed(order, gpu, type_)

    def gpus_of_types(self, types: int) -> IntArray:
        """How many GPUs of each type: (combinations, types)."""
        return np.stack([(self.type_ == t).sum(axis=1) for t in range(types)], axis=1)

    def items(self, item: IntArray) -> list[list[tuple[int, list[int]]]]:
        """The GPUs of each combination: type and items; `item` (combinations, families, slots)."""
        item = np.take_along_axis(item.reshape(self.order.shape), self.order, axis=1)
        found = []
        for types, gpus, items in zip(self.type_.tolist(), self.gpu.tolist(), item.tolist(), strict=True):
            own: list[tuple[int, list[int]]] = [(t, []) for t in types if t >= 0]
            for g, i in zip(gpus, items, strict=True):
                if g >= 0:
                    own[g][1].append(i)
            found.append(own)
        return found
