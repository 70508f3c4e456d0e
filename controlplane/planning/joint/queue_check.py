"""The exact queue's word on partitions where they stand, and how it corrects the tables of a search.

GPUs that did not change are not asked about again, and no queue is solved twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from controlplane.domain.units import MILLIS_PER_SECOND
from controlplane.latency.protocol import BoolArray, FloatArray, IntArray
from controlplane.planning.capacity.items import Item, ItemArrays
from controlplane.planning.capacity.p99_table import BATCHES, tolerated_slowdown
from controlplane.planning.capacity.sizing import SizedGpu, padded, slots_of
from controlplane.planning.capacity.tolerance import ToleranceTable
from controlplane.planning.joint.packing import Packing
from controlplane.planning.judge.estimates import LARGEST_BATCH, ask, service_curves
from controlplane.planning.judge.evaluate import SLACK
from controlplane.planning.judge.queues import QueueCache, sojourn_times

_CARE = 0.999
"""Times what the exact queue says an item tolerates: neighbours may still change a little."""
_OVERLOADED = 0.97
"""The same where the queue does not settle and gives no P99."""
_BARELY = 1.005
"""An item slowed by less stands alone: what differs from the table is the table's own error."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the exact queue says.

    `late`: items whose promise breaks. `late_pools` (items,): these and all servers of their pools. `scale`
    (items,): times the slowdown that the table says an item tolerates.
    """

    late: frozenset[int]
    late_pools: BoolArray
    scale: FloatArray


@dataclass(frozen=True, slots=True)
class _Standing:
    """Each item where it stood when last asked about: (items,), `curve` (items, batches).

    `items` as on the GPU type there. `full_ms` and `first_ms` are t(b) and t(1) alone, `execution_ms` t(b)
    beside all neighbours.
    """

    items: ItemArrays
    batch: IntArray
    full_ms: FloatArray
    first_ms: FloatArray
    execution_ms: FloatArray
    capacity_rps: FloatArray
    curve: FloatArray

    @staticmethod
    def nowhere(items: ItemArrays) -> _Standing:
        """Before anything was asked."""
        count = items.rate.size
        full, first, execution, capacity = np.zeros((4, count))
        batch, curve = np.ones(count, dtype=np.int64), np.ones((count, LARGEST_BATCH))
        own = items.take(np.arange(count))
        return _Standing(own, batch, full, first, execution, capacity, curve)


@dataclass(slots=True)
class QueueCheck:
    """All that was asked so far.

    `pool` (items,) numbers queues: servers of one pool have the same number. `known` holds the GPUs that
    `standing` describes.
    """

    tables: Mapping[str, ToleranceTable]
    queues: QueueCache
    pool: IntArray
    standing: _Standing
    known: dict[str, set[SizedGpu]] = field(default_factory=dict)

    @staticmethod
    def of(items: Sequence[Item], tables: Mapping[str, ToleranceTable], queues: QueueCache) -> QueueCheck:
        """Before anything was asked."""
        number: dict[int, int] = {}
        pool = np.array([number.setdefault(id(i), len(number)) for i in items], dtype=np.int64)
        return QueueCheck(tables, queues, pool, _Standing.nowhere(next(iter(tables.values())).items))

    def ask(self, packings: Mapping[str, Packing], scale: FloatArray) -> Verdict:
        """Judge every item where it stands, with the arithmetic that judges plans."""
        for name, packing in packings.items():
            self._update(name, packing)
        placed = (i for packing in packings.values() for gpu in packing.gpus for i in gpu.items)
        item = np.array(sorted(placed), dtype=np.int64)
        here = self.standing
        asked, p99 = here.items.take(item), self._p99(item)
        kept = asked.rate <= here.capacity_rps[item] * (1.0 + SLACK)
        kept &= p99 <= asked.slo_ms * (1.0 + SLACK)
        corrected = scale.copy()
        corrected[item] = self._corrected(item, asked, p99, scale[item])
        # What holds of one server is extended to all of its pool.
        least = np.full(int(self.pool.max(initial=0)) + 1, np.inf)
        np.minimum.at(least, self.pool[item], corrected[item])
        corrected[item] = least[self.pool[item]]
        late = item[~kept]
        return Verdict(frozenset(late.tolist()), np.isin(self.pool, self.pool[late]), corrected)

    def _update(self, name: str, packing: Packing) -> None:
        """Ask the latency model about the GPUs of a type that have changed."""
        changed = [gpu for gpu in packing.gpus if gpu not in self.known.get(name, ())]
        self.known[name] = set(packing.gpus)
        if not changed:
            return
        # In the order in which a plan lists them: sums of floats depend on it.
        pairs = [
            sorted(zip(gpu.items, gpu.shares, strict=True), key=lambda p: (-p[1], p[0])) for gpu in changed
        ]
        item, share = padded([[i for i, _ in p] for p in pairs]), padded([[s for _, s in p] for p in pairs])
        table, present, here = self.tables[name], item >= 0, self.standing
        latency, quantile = table.gpu_type.device.latency, table.gpu_type.quantile
        slots = slots_of(table, item, share, present)
        execution, cycle = ask(latency, slots, quantile)
        rows, columns = np.nonzero(present)
        own, at = item[rows, columns], share[rows, columns]
        model, batch = slots.model[rows, columns], slots.batch[rows, columns].astype(np.int64)
        here.items.set(own, table.items.take(own))
        here.batch[own] = batch
        here.full_ms[own] = table.gpu_type.alone.execution[model, batch - 1, at]
        here.first_ms[own] = table.gpu_type.alone.execution[model, 0, at]
        here.execution_ms[own] = execution[rows, columns]
        here.capacity_rps[own] = MILLIS_PER_SECOND * batch / cycle[rows, columns]
        curves = service_curves(latency, slots, rows, columns, quantile)
        here.curve[own] = curves[:, -1:]
        here.curve[own, : curves.shape[1]] = curves

    def _p99(self, item: IntArray) -> FloatArray:
        """Of each of these items; a pool of unequal servers counts as one of as many of the slowest."""
        here = self.standing
        key = self.pool[item] * (LARGEST_BATCH + 1) + here.batch[item]
        _, one, queue, count = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
        slowest = np.zeros((one.size, LARGEST_BATCH))
        np.maximum.at(slowest, queue, here.curve[item])
        lead = here.items.take(item[one])
        dispersion = np.where(lead.constant, 0.0, 1.0)
        pools = lead.rate * count, slowest, here.batch[item[one]], count, dispersion
        p99: FloatArray = sojourn_times(*pools, lead.outside_ms, lead.jitter, self.queues).p99_ms[queue]
        return p99

    def _corrected(self, item: IntArray, asked: ItemArrays, p99: FloatArray, scale: FloatArray) -> FloatArray:
        """The scale of these items, where they stand alone by their exact P99."""
        here, settled = self.standing, np.isfinite(p99)
        full, first = here.full_ms[item], here.first_ms[item]
        # The slowdown at which the table gives that P99.
        at_p99 = replace(asked, slo_ms=np.where(settled, p99, asked.outside_ms + 1.0))
        batch_index = np.searchsorted(BATCHES, here.batch[item])
        by_table = tolerated_slowdown(at_p99, full[:, None], first[:, None], batch_index)[:, 0]
        slowdown = here.execution_ms[item] / full
        alone = np.where(slowdown < _BARELY, _CARE * slowdown / by_table, scale)
        return np.where(settled, alone, scale * _OVERLOADED)
