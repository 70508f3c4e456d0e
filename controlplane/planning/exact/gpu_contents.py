"""What one GPU may hold: every set of items that fits it, with the smallest share of each.

Adding an item slows the others and never speeds them up, so a set fits only where all its subsets do: sets
grow item by item from those that fit.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from controlplane.domain.plan import MOST_SERVERS
from controlplane.domain.workload import Workload
from controlplane.latency.protocol import FloatArray, IntArray
from controlplane.planning.capacity.families import Group, families
from controlplane.planning.capacity.gpu_types import GpuType
from controlplane.planning.capacity.items import Item
from controlplane.planning.capacity.lower_bound import calibration_spread
from controlplane.planning.capacity.tolerance import ToleranceTable
from controlplane.planning.joint.sizing import smallest_shares

_TABLE_ERROR = 0.03
"""The waiting-time table and its care for pools are within this of the queue itself."""
_FEW_WORKLOADS = 4
"""Any of so few may share a queue, and in pools of more sizes; of more only runs by SLO."""
_POOLS_OF_FEW, _POOLS_OF_MORE = 4, 2
"""Sizes of a pool that are tried, from the smallest that holds its workloads on."""


@dataclass(frozen=True, slots=True)
class Way:
    """Some workloads served by `item.servers` partitions; `owners` are their numbers, as bits.

    `gpu_type` is the one they must be on, None for any mix: servers that share a queue are of one type.
    """

    item: Item
    owners: int
    gpu_type: str | None

    def may_use(self, gpu_type: str) -> bool:
        """Whether its partitions may be on GPUs of this type."""
        return self.gpu_type is None or self.gpu_type == gpu_type


@dataclass(frozen=True, slots=True)
class Contents:
    """Sets of items that fit one GPU: item numbers and the index of each one's share, -1 where empty.

    Both have the shape (sets, slots). A set's items are in rising order.
    """

    item: IntArray
    share: IntArray

    def take(self, rows: IntArray) -> Contents:
        """These sets."""
        return Contents(self.item[rows], self.share[rows])


@dataclass(frozen=True, slots=True)
class Ways:
    """All ways to serve all workloads, numbered.

    `tables` are by GPU type, `hopeful` the same with every error of the waiting-time table taken in the
    ways' favour: what it refuses, the exact queue refuses.
    """

    ways: tuple[Way, ...]
    workloads: int
    tables: Mapping[str, ToleranceTable]
    hopeful: Mapping[str, ToleranceTable]

    @staticmethod
    def of(workloads: Sequence[Workload], gpu_types: Mapping[str, GpuType]) -> Ways:
        """Every group and, of each, the smallest pools that hold it."""
        few = len(workloads) <= _FEW_WORKLOADS
        under_p99 = next(iter(gpu_types.values())).quantile is not None
        number = {w.name: n for n, w in enumerate(workloads)}
        kin = families(workloads, next(iter(gpu_types.values())).rule)
        groups = [g for family in kin for g in _groups(family, few)]
        owners = [sum(1 << number[w.name] for w in group) for group in groups]
        at = [(g, servers) for g in range(len(groups)) for servers in range(1, MOST_SERVERS + 1)]
        items = [Item(groups[g], servers) for g, servers in at]
        tables = {n: ToleranceTable.of(items, gpu_type) for n, gpu_type in gpu_types.items()}
        hold = {n: np.isfinite(_hopeful(table).percent_at(1.0)) for n, table in tables.items()}
        # Under P99 a pool is on one type; else its partitions need not know of each other.
        types: list[str | None] = [*gpu_types] if under_p99 else [None]
        most = _POOLS_OF_FEW if few else _POOLS_OF_MORE
        chosen: set[tuple[int, str | None]] = set()
        for name in types:
            holds = np.any(list(hold.values()), axis=0) if name is None else hold[name]
            left = [most] * len(groups)
            for i, (g, servers) in enumerate(at):
                # One partition is on whatever type it is on.
                if holds[i] and left[g]:
                    left[g] -= 1
                    chosen.add((i, None if servers == 1 else name))
        ordered = sorted(chosen, key=lambda way: (way[0], way[1] or ""))
        rows = np.array([i for i, _ in ordered], dtype=np.int64)
        taken = {n: _taken(table, rows) for n, table in tables.items()}
        ways = tuple(Way(items[i], owners[at[i][0]], name) for i, name in ordered)
        return Ways(ways, len(workloads), taken, {n: _hopeful(table) for n, table in taken.items()})

    def alone(self, gpu_type: str) -> FloatArray:
        """The smallest percent of each way alone on a GPU of this type; infinite where it does not fit."""
        here = [way.may_use(gpu_type) for way in self.ways]
        return np.where(here, self.hopeful[gpu_type].percent_at(1.0), np.inf)


def _taken(table: ToleranceTable, rows: IntArray) -> ToleranceTable:
    """These items of a table."""
    arrays = {name: getattr(table, name)[rows] for name in ToleranceTable.__slots__ if name != "gpu_type"}
    return replace(table, **arrays)


def _groups(family: Group, few: bool) -> list[Group]:
    """Which workloads of a family may share a queue."""
    size = len(family)
    if few:
        return [g for n in range(1, size + 1) for g in itertools.combinations(family, n)]
    return [family[i:j] for i in range(size) for j in range(i + 1, size + 1)]


def _hopeful(table: ToleranceTable) -> ToleranceTable:
    """With every error of the waiting-time table taken in the ways' favour."""
    error = 0.0 if table.gpu_type.quantile is None else _TABLE_ERROR
    scale = calibration_spread(table.gpu_type.device.latency) / (1.0 - error)
    if scale == 1.0:
        return table
    cycle = replace(table, cycle_tolerance=table.cycle_tolerance * scale)
    return cycle.corrected(np.full(table.smallest.size, scale))


def contents_of(ways: Ways, gpu_type: str, most: int) -> Contents | None:
    """All sets of ways that fit a GPU of this type by its hopeful table; None for more than `most`.

    A set serves a workload in one way at most, and holds no more of a pool than it has servers.
    """
    size = ways.alone(gpu_type)
    level = [[i] for i in range(len(ways.ways)) if np.isfinite(size[i])]
    found: list[Contents] = []
    count = 0
    while level:
        rows = np.array(level, dtype=np.int64)
        sized = smallest_shares(ways.hopeful[gpu_type], rows)
        fitting = Contents(rows[sized.fits], sized.share[sized.fits])
        count += fitting.item.shape[0]
        if count > most:
            return None
        found.append(fitting)
        level = _larger(fitting.item, size, ways.ways)
        if len(level) > most:
            return None
    return _joined(found)


def _larger(fitting: IntArray, size: FloatArray, ways: Sequence[Way]) -> list[list[int]]:
    """Each set with one item more, in the order of the items, where plain sizes leave room."""
    level = []
    for row, room in zip(fitting.tolist(), (100.0 - size[fitting].sum(axis=1)).tolist(), strict=True):
        owners = functools.reduce(operator.or_, (ways[i].owners for i in row))
        for i in range(row[-1], len(ways)):
            if size[i] > room + 1e-9:
                continue
            if not ways[i].owners & owners or (i == row[-1] and row.count(i) < ways[i].item.servers):
                level.append([*row, i])
    return level


def _joined(found: Sequence[Contents]) -> Contents:
    width = max(len(found), 1)

    def joined(parts: list[IntArray]) -> IntArray:
        padded = [np.pad(p, ((0, 0), (0, width - p.shape[1])), constant_values=-1) for p in parts]
        return np.concatenate([np.empty((0, width), dtype=np.int64), *padded])

    return Contents(joined([f.item for f in found]), joined([f.share for f in found]))
