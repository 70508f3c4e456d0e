"""Which items fit one GPU together, the smallest shares that hold them, and such GPUs as parts of a plan.

Shares start where each item holds its SLO alone and rise where neighbours slow it by more than its share
tolerates (iGniter's Alg 2, in jumps instead of steps, and for any number of GPUs at once). A larger share
slows neighbours more, never less, so the first point where nothing rises is the smallest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.domain.plan import PlannedGpu
from controlplane.latency.protocol import BoolArray, FloatArray, IntArray, Slots
from controlplane.planning.capacity.items import Item
from controlplane.planning.capacity.tolerance import ToleranceTable
from controlplane.planning.judge.placements import gpu_of, memory_of, partition_of

_FULL = 100.0 + 1e-9


@dataclass(frozen=True, slots=True)
class Sized:
    """One row a GPU: whether its items fit, each one's share by index, their sum, each one's slowdown."""

    fits: BoolArray
    share: IntArray
    total: FloatArray
    slowdown: FloatArray


@dataclass(frozen=True, slots=True)
class SizedGpu:
    """The items of one GPU by number, the index of each one's share, and the sum of the shares in percent."""

    items: tuple[int, ...]
    shares: tuple[int, ...]
    total: float


def padded(groups: Sequence[Sequence[int]]) -> IntArray:
    """Item numbers as (GPUs, slots), -1 where empty."""
    width = max((len(g) for g in groups), default=1)
    rows = np.full((len(groups), max(width, 1)), -1, dtype=np.int64)
    for i, group in enumerate(groups):
        rows[i, : len(group)] = group
    return rows


def smallest_shares(table: ToleranceTable, groups: IntArray) -> Sized:
    """Smallest shares for each row of item numbers (GPUs, slots), -1 where empty."""
    gpu_type, percents, here = table.gpu_type, table.gpu_type.percents, groups >= 0
    last = percents.size - 1
    memory_mb = gpu_type.device.pool.device.memory_mb
    smallest = np.where(here, table.smallest[groups], 0)
    share, slowdown = np.minimum(smallest, last), np.ones(groups.shape)
    total = np.where(here, percents[share], 0.0).sum(axis=1)
    fits = (smallest <= last).all(axis=1) & (total <= _FULL)
    if memory_mb is not None:
        fits &= np.where(here, table.memory_mb.min(axis=1)[groups], 0.0).sum(axis=1) <= memory_mb
    live = np.flatnonzero(fits)
    while live.size:
        item, at, mask = groups[live], share[live], here[live]
        execution, cycle = _slowdowns(table, item, at, mask)
        slowdown[live] = np.maximum(execution, cycle)
        # A share that no longer suffices rises to the first one that does; `last` + 1 where none does.
        suffices = (table.tolerance.execution[item] >= execution[..., None]) & (
            table.tolerance.cycle[item] >= cycle[..., None]
        )
        suffices &= np.arange(last + 1) >= at[..., None]
        larger = np.where(suffices.any(axis=2), suffices.argmax(axis=2), last + 1)
        larger = np.where(mask, larger, at)
        share[live] = np.minimum(larger, last)
        total[live] = np.where(mask, percents[share[live]], 0.0).sum(axis=1)
        fits[live] = (larger <= last).all(axis=1) & (total[live] <= _FULL)
        live = live[(larger > at).any(axis=1) & fits[live]]
    if memory_mb is not None:
        fits &= np.where(here, table.memory_mb[groups, share], 0.0).sum(axis=1) <= memory_mb
    return Sized(fits, share, total, slowdown)


def slots_of(table: ToleranceTable, item: IntArray, share: IntArray, here: BoolArray) -> Slots:
    """Items (GPUs, slots) at these shares, by index, as the latency model is asked about them."""
    return Slots(
        np.where(here, table.items.model[item], 0),
        np.where(here, table.tolerance.batch[item, share], 1).astype(np.float64),
        np.where(here, table.gpu_type.percents[share], 100.0),
        here,
    )


def _slowdowns(
    table: ToleranceTable, item: IntArray, share: IntArray, here: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """How much neighbours slow each item's execution and cycle: (GPUs, slots), 1 where empty."""
    alone, slots = table.gpu_type.alone, slots_of(table, item, share, here)
    batch = slots.batch.astype(np.int64)
    own = (times[slots.model, batch - 1, share] for times in (alone.execution, alone.cycle))
    # Rounding may not raise a share.
    execution, cycle = (
        np.where(here, now / before * (1.0 - 1e-9), 1.0)
        for now, before in zip(table.gpu_type.ask(slots), own, strict=True)
    )
    return execution, cycle


def planned_gpus(
    gpus: Mapping[str, Sequence[SizedGpu]], items: Sequence[Item], tables: Mapping[str, ToleranceTable]
) -> tuple[PlannedGpu, ...]:
    """GPUs of all types, in order, as the values of a plan; servers of a pool are numbered."""
    number = Counter[int]()
    found = []
    for name, sized in gpus.items():
        table, device = tables[name], tables[name].gpu_type.device
        for n, gpu in enumerate(sized):
            partitions = []
            for i, share in sorted(zip(gpu.items, gpu.shares, strict=True), key=lambda p: (-p[1], p[0])):
                item = items[i]
                number[id(item)] += 1
                suffix = f"-{number[id(item)]}" if item.servers > 1 else ""
                percent, batch = float(table.gpu_type.percents[share]), int(table.tolerance.batch[i, share])
                memory_mb, part = memory_of(item.workloads[0], device, batch), 1.0 / item.servers
                partitions.append(
                    partition_of(item.name + suffix, item.workloads, percent, batch, memory_mb, part)
                )
            found.append(gpu_of(n, device, partitions))
    return tuple(found)
