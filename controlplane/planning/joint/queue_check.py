"""The exact queue's word on partitions where they stand, and how it corrects the tables of a search.

GPUs that did not change are not asked about again, and no queue is solved twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from controlplane.latency.protocol import BoolArray, FloatArray, IntArray, Slots
from controlplane.planning.capacity import waiting_times
from controlplane.planning.capacity.items import Item
from controlplane.planning.capacity.tolerance import POOL_CARE, ToleranceTable
from controlplane.planning.joint.packing import Packing
from controlplane.planning.joint.sizing import padded
from controlplane.planning.judge.estimates import LARGEST_BATCH, service_curves, times
from controlplane.planning.judge.evaluate import SLACK
from controlplane.planning.judge.queues import JITTER_P99, Queues, waits

_CARE = 0.999
"""Times what the exact queue says an item tolerates: neighbours may still change a little."""
_OVERLOADED = 0.97
"""The same where the queue does not settle and gives no P99."""
_BARELY = 1.005
"""An item slowed by less stands alone: what differs from the table is the table's own error."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the exact queue says: (items,).

    `late`: items whose promise breaks. `late_pools` (items,): these and all servers of their pools. `scale`
    (items,): times the slowdown that the table says an item tolerates.
    """

    late: frozenset[int]
    late_pools: BoolArray
    scale: FloatArray


@dataclass(slots=True)
class QueueCheck:
    """All that was asked so far; arrays have one entry per item, where it stood when last asked about.

    `pool` numbers queues: servers of one pool have the same number. `known` holds the GPUs, as (items,
    shares), that the arrays describe.
    """

    tables: Mapping[str, ToleranceTable]
    queues: Queues
    pool: IntArray
    rate: FloatArray
    slo_ms: FloatArray
    servers: IntArray
    dispersion: FloatArray
    model: IntArray
    share: IntArray
    batch: IntArray
    execution: FloatArray
    capacity: FloatArray
    curve: FloatArray
    known: dict[str, set[tuple[tuple[int, ...], tuple[int, ...]]]] = field(default_factory=dict)

    @staticmethod
    def of(items: Sequence[Item], tables: Mapping[str, ToleranceTable], queues: Queues) -> QueueCheck:
        """Before anything was asked."""
        number: dict[int, int] = {}
        count = len(items)
        return QueueCheck(
            tables,
            queues,
            pool=np.array([number.setdefault(id(i), len(number)) for i in items], dtype=np.int64),
            rate=np.array([i.rate_rps for i in items], dtype=np.float64),
            slo_ms=np.array([i.slo_ms for i in items], dtype=np.float64),
            servers=np.array([i.servers for i in items], dtype=np.int64),
            dispersion=np.array([0.0 if i.constant else 1.0 for i in items]),
            model=np.zeros(count, dtype=np.int64),
            share=np.zeros(count, dtype=np.int64),
            batch=np.ones(count, dtype=np.int64),
            execution=np.zeros(count),
            capacity=np.zeros(count),
            curve=np.ones((count, LARGEST_BATCH)),
        )

    def ask(self, packings: Mapping[str, Packing], scale: FloatArray) -> Verdict:
        """Judge every item where it stands, with the arithmetic that judges plans."""
        full, first, outside, jitter = (np.zeros(self.rate.size) for _ in range(4))
        placed: list[int] = []
        for name, packing in packings.items():
            now = np.array([i for group in packing.groups for i in group], dtype=np.int64)
            if not now.size:
                continue
            placed += now.tolist()
            self._update(name, packing)
            gpu_type = self.tables[name].gpu_type
            profiles = [gpu_type.device.profiles[m] for m in gpu_type.models]
            alone = gpu_type.alone.execution
            full[now] = alone[self.model[now], self.batch[now] - 1, self.share[now]]
            first[now] = alone[self.model[now], 0, self.share[now]]
            outside[now] = np.array([p.frontend_ms or 0.0 for p in profiles])[self.model[now]]
            jitter[now] = np.array([p.jitter or 0.0 for p in profiles])[self.model[now]]
        item = np.array(sorted(placed), dtype=np.int64)
        p99 = self._p99(item, outside, jitter)
        kept = self.rate[item] <= self.capacity[item] * (1.0 + SLACK)
        kept &= p99 <= self.slo_ms[item] * (1.0 + SLACK)
        by_table = waiting_times.tolerated_slowdown(
            self.rate[item],
            np.where(np.isfinite(p99), p99 - outside[item], 1.0),
            full[item, None],
            first[item, None],
            self.servers[item],
            np.searchsorted(waiting_times.BATCHES, self.batch[item]),
            JITTER_P99 * jitter[item],
        )[:, 0]
        by_table *= np.where(self.servers[item] > 1, POOL_CARE, 1.0)
        corrected = _corrected(scale, item, p99, self.execution[item] / full[item], by_table)
        return self._by_pool(item[~kept], item, corrected)

    def _update(self, name: str, packing: Packing) -> None:
        """Ask the latency model about the GPUs of a type that have changed."""
        gpus = zip(packing.groups, packing.shares, strict=True)
        keys = {(tuple(g), tuple(s)): n for n, (g, s) in enumerate(gpus)}
        changed = [n for key, n in keys.items() if key not in self.known.get(name, ())]
        self.known[name] = set(keys)
        if not changed:
            return
        # In the order in which a plan lists them: sums of floats depend on it.
        pairs = [
            sorted(zip(packing.groups[n], packing.shares[n], strict=True), key=lambda p: (-p[1], p[0]))
            for n in changed
        ]
        item, share = padded([[i for i, _ in p] for p in pairs]), padded([[s for _, s in p] for p in pairs])
        table, here = self.tables[name], item >= 0
        latency, quantile = table.gpu_type.device.latency, table.gpu_type.quantile
        slots = Slots(
            np.where(here, table.model[item], 0),
            np.where(here, table.batch[item, share], 1).astype(np.float64),
            np.where(here, table.gpu_type.percents[share], 100.0),
            here,
        )
        expected = times(latency, slots, quantile)
        rows, columns = np.nonzero(here)
        own = item[rows, columns]
        self.model[own], self.share[own] = slots.model[rows, columns], share[rows, columns]
        self.batch[own] = slots.batch[rows, columns].astype(np.int64)
        self.execution[own] = expected.execution_ms[rows, columns]
        self.capacity[own] = expected.capacity_rps[rows, columns]
        curves = service_curves(latency, slots, rows, columns, quantile)
        self.curve[own] = curves[:, -1:]
        self.curve[own, : curves.shape[1]] = curves

    def _p99(self, item: IntArray, outside: FloatArray, jitter: FloatArray) -> FloatArray:
        """Of each of these items; a pool of unequal servers counts as one of as many of the slowest."""
        key = self.pool[item] * (LARGEST_BATCH + 1) + self.batch[item]
        _, one, queue, count = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
        slowest = np.zeros((one.size, LARGEST_BATCH))
        np.maximum.at(slowest, queue, self.curve[item])
        lead = item[one]
        pool = self.rate[lead] * count, slowest, self.batch[lead], count, self.dispersion[lead]
        p99: FloatArray = waits(*pool, outside[lead], jitter[lead], self.queues).p99_ms[queue]
        return p99

    def _by_pool(self, late: IntArray, item: IntArray, scale: FloatArray) -> Verdict:
        """Extend what holds of one server to all of its pool."""
        least = np.full(int(self.pool.max(initial=0)) + 1, np.inf)
        np.minimum.at(least, self.pool[item], scale[item])
        scale[item] = least[self.pool[item]]
        return Verdict(frozenset(late.tolist()), np.isin(self.pool, self.pool[late]), scale)


def _corrected(
    scale: FloatArray, item: IntArray, p99: FloatArray, slowdown: FloatArray, by_table: FloatArray
) -> FloatArray:
    """The scale by the exact P99 of items alone; `by_table` is the slowdown at which the table gives it."""
    answer, now = scale.copy(), scale[item]
    alone = np.where(slowdown < _BARELY, _CARE * slowdown / by_table, now)
    answer[item] = np.where(np.isfinite(p99), alone, now * _OVERLOADED)
    return answer
