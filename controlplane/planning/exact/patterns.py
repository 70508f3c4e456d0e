"""Patterns: every set of services that fits one GPU, with the smallest share of each.

Adding a service slows the others and never speeds them up, so a set fits only where all its subsets do: sets
grow one by one from those that fit.
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
from controlplane.latency.protocol import BoolArray, FloatArray, IntArray
from controlplane.planning.capacity.gpu_types import GpuType
from controlplane.planning.capacity.items import Group, Item, families
from controlplane.planning.capacity.lower_bound import calibration_spread
from controlplane.planning.capacity.sizing import slots_of, smallest_shares
from controlplane.planning.capacity.tolerance import ToleranceTable
from controlplane.planning.judge.estimates import service_curves
from controlplane.planning.judge.evaluate import SLACK
from controlplane.planning.judge.queues import QueueCache, sojourn_times

_TABLE_ERROR = 0.03
"""The P99 table and its care for pools are within this of the queue itself."""
_FEW_WORKLOADS = 4
"""Any of so few may share a queue, and in pools of more sizes; of more only runs by SLO."""
_POOLS_OF_FEW, _POOLS_OF_MORE = 4, 2
"""Sizes of a pool that are tried, from the smallest that holds its workloads on."""


@dataclass(frozen=True, slots=True)
class Service:
    """Some workloads served by `item.servers` partitions; `owners` are their numbers, as bits.

    `gpu_type` is the one they must be on, None for any mix: servers that share a queue are of one type.
    """

    item: Item
    owners: int
    gpu_type: str | None


@dataclass(frozen=True, slots=True)
class Services:
    """All ways to serve all workloads, numbered.

    `tables` are by GPU type, `optimistic` the same with every error of the P99 table taken in the services'
    favour: what it refuses, the exact queue refuses.
    """

    services: tuple[Service, ...]
    workloads: int
    tables: Mapping[str, ToleranceTable]
    optimistic: Mapping[str, ToleranceTable]

    @staticmethod
    def of(workloads: Sequence[Workload], gpu_types: Mapping[str, GpuType]) -> Services:
        """Every group and, of each, the smallest pools that hold it."""
        few = len(workloads) <= _FEW_WORKLOADS
        any_type = next(iter(gpu_types.values()))
        number = {w.name: n for n, w in enumerate(workloads)}
        groups = [g for family in families(workloads, any_type.rule) for g in _groups(family, few)]
        at = [(g, servers) for g in range(len(groups)) for servers in range(1, MOST_SERVERS + 1)]
        items = [Item(groups[g], servers) for g, servers in at]
        tables = {n: ToleranceTable.of(items, gpu_type) for n, gpu_type in gpu_types.items()}
        hold = {n: np.isfinite(_optimistic(table).smallest_percent) for n, table in tables.items()}
        # Under P99 a pool is on one type; else its partitions need not know of each other.
        types: list[str | None] = [None] if any_type.quantile is None else [*gpu_types]
        chosen: set[tuple[int, str | None]] = set()
        for name in types:
            holds = np.any(list(hold.values()), axis=0) if name is None else hold[name]
            left = [_POOLS_OF_FEW if few else _POOLS_OF_MORE] * len(groups)
            for i, (g, servers) in enumerate(at):
                # One partition is on whatever type it is on.
                if holds[i] and left[g]:
                    left[g] -= 1
                    chosen.add((i, None if servers == 1 else name))
        ordered = sorted(chosen, key=lambda service: (service[0], service[1] or ""))
        rows = np.array([i for i, _ in ordered], dtype=np.int64)
        services = tuple(
            Service(items[i], sum(1 << number[w.name] for w in items[i].workloads), name)
            for i, name in ordered
        )
        taken = {n: table.take(rows) for n, table in tables.items()}
        return Services(
            services, len(workloads), taken, {n: _optimistic(table) for n, table in taken.items()}
        )


def _groups(family: Group, few: bool) -> list[Group]:
    """Which workloads of a family may share a queue."""
    size = len(family)
    if few:
        return [g for n in range(1, size + 1) for g in itertools.combinations(family, n)]
    return [family[i:j] for i in range(size) for j in range(i + 1, size + 1)]


def _optimistic(table: ToleranceTable) -> ToleranceTable:
    """With every error of the P99 table taken in the services' favour."""
    error = 0.0 if table.gpu_type.quantile is None else _TABLE_ERROR
    scale = calibration_spread(table.gpu_type.device.latency) / (1.0 - error)
    own = table.tolerance
    return replace(table, tolerance=replace(own, execution=own.execution * scale, cycle=own.cycle * scale))


@dataclass(frozen=True, slots=True)
class Patterns:
    """Sets of services that fit one GPU: their numbers and the index of each one's share, -1 where empty.

    Both have the shape (patterns, slots). A pattern's services are in rising order.
    """

    service: IntArray
    share: IntArray

    @staticmethod
    def joined(parts: Sequence[Patterns]) -> Patterns:
        """All of these."""
        width = max((part.service.shape[1] for part in parts), default=1)

        def wide(arrays: list[IntArray]) -> IntArray:
            padded = [np.pad(a, ((0, 0), (0, width - a.shape[1])), constant_values=-1) for a in arrays]
            return np.concatenate([np.empty((0, width), dtype=np.int64), *padded])

        return Patterns(wide([part.service for part in parts]), wide([part.share for part in parts]))


def patterns_of(services: Services, gpu_type: str, most: int) -> Patterns | None:
    """All patterns that fit a GPU of this type by its optimistic table; None for more than `most`.

    A pattern serves a workload in one way at most, and holds no more of a pool than it has servers.
    """
    here = [service.gpu_type in (None, gpu_type) for service in services.services]
    size = np.where(here, services.optimistic[gpu_type].smallest_percent, np.inf)
    level = [[i] for i in np.flatnonzero(np.isfinite(size)).tolist()]
    found: list[Patterns] = []
    count = 0
    while level:
        rows = np.array(level, dtype=np.int64)
        sized = smallest_shares(services.optimistic[gpu_type], rows)
        found.append(Patterns(rows[sized.fits], sized.share[sized.fits]))
        count += int(sized.fits.sum())
        if count > most:
            return None
        level = _larger(rows[sized.fits], size, services.services)
        if len(level) > most:
            return None
    return Patterns.joined(found)


def _larger(fitting: IntArray, size: FloatArray, services: Sequence[Service]) -> list[list[int]]:
    """Each pattern with one service more, in their order, where plain sizes leave room."""
    level = []
    for row, room in zip(fitting.tolist(), (100.0 - size[fitting].sum(axis=1)).tolist(), strict=True):
        owners = functools.reduce(operator.or_, (services[i].owners for i in row))
        for i in range(row[-1], len(services)):
            if size[i] > room + 1e-9:
                continue
            if not services[i].owners & owners or (i == row[-1] and row.count(i) < services[i].item.servers):
                level.append([*row, i])
    return level


def settle(table: ToleranceTable, queues: QueueCache, asked: Patterns) -> tuple[BoolArray, IntArray]:
    """Which of these patterns hold by the exact queue, and the smallest shares at which they do.

    The shares of `asked` are right or too small: they rise where a P99 is missed. A pool's servers are each
    asked as if all were like it.
    """
    percents, last = table.gpu_type.percents, table.gpu_type.percents.size - 1
    present = asked.service >= 0
    service, share = np.where(present, asked.service, 0), np.where(present, asked.share, 0)
    fits = np.ones(service.shape[0], dtype=np.bool_)
    live = np.arange(service.shape[0])
    while live.size:
        slots = slots_of(table, service[live], share[live], present[live])
        rows, columns = np.nonzero(slots.mask)
        curves = service_curves(table.gpu_type.device.latency, slots, rows, columns, table.gpu_type.quantile)
        items, batch = table.items.take(service[live][rows, columns]), slots.batch[rows, columns]
        dispersion = np.where(items.constant, 0.0, 1.0)
        pools = items.rate * items.servers, curves, batch.astype(np.int64), items.servers, dispersion
        p99 = sojourn_times(*pools, items.outside_ms, items.jitter, queues).p99_ms
        late = p99 > items.slo_ms * (1.0 + SLACK)
        rows, columns = live[rows[late]], columns[late]
        fits[rows[share[rows, columns] == last]] = False
        share[rows, columns] = np.minimum(share[rows, columns] + 1, last)
        fits &= np.where(present, percents[share], 0.0).sum(axis=1) <= 100.0 + 1e-9
        changed = np.unique(rows)
        live = changed[fits[changed]]
    return fits, np.where(present, share, -1)
