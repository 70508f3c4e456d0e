"""The GPUs of one type as arrays: one row a GPU, one column for each model that a partition serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from controlplane.domain.plan import Partition, Placement, PlannedGpu, ServedModel
from controlplane.domain.workload import Arrivals
from controlplane.latency.protocol import BoolArray, FloatArray, IntArray, Slots
from controlplane.planning.protocol import Device

TURNAROUND_MS = 1.0
"""From the end of a request to the begin of the next one that waited at the gateway: an answer and a request
through HAProxy. Measured: docs/results/gateway.md."""


@dataclass(frozen=True, slots=True)
class ServedQueue:
    """One model of a partition and the workloads that share its queue.

    `index` is the partition's on its GPU.
    """

    index: int
    partition: Partition
    served: ServedModel
    workloads: tuple[Placement, ...]


def _dispersion(workloads: Sequence[Placement]) -> float:
    """The dispersion of the arrivals at one queue: independent streams add up in variance and in mean.

    Several constant streams together are not constant; they count as Poisson ones.
    """
    if len(workloads) == 1 and workloads[0].arrivals is Arrivals.CONSTANT:
        return 0.0
    total = sum(w.rate_rps for w in workloads)
    return sum(w.dispersion * w.rate_rps for w in workloads) / total if total > 0.0 else 1.0


@dataclass(frozen=True, slots=True)
class Layout:
    """Arrays of shape (GPUs, columns); a column is one of a GPU's `queues`, `mask` False where there is none.

    `partition` is the index of a column's partition on its GPU. `rate` (inferences per second) and `slo_ms`
    are the sum and the strictest of a queue's workloads, `dispersion` that of its arrivals. `client_batch`:
    inferences in each request, of which a batch holds whole ones. `frontend_ms`: time outside the queue.
    `turnaround_ms`: what a request of a partition with an order takes beyond its execution. `jitter`:
    relative deviation of a batch's time. `slower`: its times over those that the latency model predicts.
    """

    gpus: tuple[PlannedGpu, ...]
    queues: tuple[list[ServedQueue], ...]
    mask: BoolArray
    partition: IntArray
    model: IntArray
    batch: FloatArray
    percent: FloatArray
    rate: FloatArray
    slo_ms: FloatArray
    dispersion: FloatArray
    client_batch: IntArray
    frontend_ms: FloatArray
    turnaround_ms: FloatArray
    jitter: FloatArray
    slower: FloatArray

    @staticmethod
    def of(gpus: Sequence[PlannedGpu], device: Device) -> Layout:
        """Raises KeyError for a model the device has no profile of: check before."""
        queues = tuple(
            [
                ServedQueue(n, p, served, tuple(w for w in p.workloads if w.model == served.model))
                for n, p in enumerate(gpu.partitions)
                for served in p.models
            ]
            for gpu in gpus
        )
        shape = (len(gpus), max([1, *map(len, queues)]))
        number = {name: i for i, name in enumerate(device.latency.models)}
        found = Layout(
            tuple(gpus),
            queues,
            mask=np.zeros(shape, dtype=np.bool_),
            partition=np.zeros(shape, dtype=np.int64),
            model=np.zeros(shape, dtype=np.int64),
            batch=np.ones(shape),
            percent=np.full(shape, 100.0),
            rate=np.zeros(shape),
            slo_ms=np.full(shape, np.inf),
            dispersion=np.ones(shape),
            client_batch=np.ones(shape, dtype=np.int64),
            frontend_ms=np.zeros(shape),
            turnaround_ms=np.zeros(shape),
            jitter=np.zeros(shape),
            slower=np.ones(shape),
        )
        for at, queue in found.columns():
            workloads, profile = queue.workloads, device.profiles[queue.served.model]
            found.mask[at], found.partition[at] = True, queue.index
            found.model[at], found.batch[at] = number[queue.served.model], queue.served.batch
            found.percent[at] = queue.partition.percent
            found.rate[at] = sum(w.rate_rps for w in workloads)
            found.slo_ms[at] = min((w.slo_ms for w in workloads), default=np.inf)
            found.dispersion[at] = _dispersion(workloads)
            found.client_batch[at] = max((w.client_batch for w in workloads), default=1)
            found.turnaround_ms[at] = TURNAROUND_MS if queue.partition.ordered else 0.0
            found.frontend_ms[at], found.jitter[at] = profile.frontend_ms or 0.0, profile.jitter or 0.0
        return found

    def columns(self) -> list[tuple[tuple[int, int], ServedQueue]]:
        """Every queue with its row and column."""
        return [((i, j), queue) for i, own in enumerate(self.queues) for j, queue in enumerate(own)]

    @property
    def all_busy(self) -> Slots:
        """The question to a latency model in which every queue of a GPU is busy: the worst case."""
        slots = Slots.of(self.model, self.batch, self.percent, self.mask)
        return replace(slots, requests=np.maximum(slots.batch // self.client_batch, 1.0))

    @property
    def same_partition(self) -> BoolArray:
        """Whether two columns of a GPU are models of one partition: (GPUs, columns, columns)."""
        same = self.partition[:, :, None] == self.partition[:, None, :]
        return np.asarray(same & self.mask[:, :, None] & self.mask[:, None, :])

    def requests(self, row: int, column: int) -> int:
        """How many requests fill a batch of that queue."""
        return max(int(self.batch[row, column]) // int(self.client_batch[row, column]), 1)

    def take(self, rows: IntArray) -> Layout:
        """These rows, in this order, repeated where named twice; arrays are copies."""
        arrays = {f.name: getattr(self, f.name)[rows] for f in fields(self)[2:]}
        some = rows.tolist()
        gpus, queues = (tuple(a[i] for i in some) for a in (self.gpus, self.queues))
        return replace(self, gpus=gpus, queues=queues, **arrays)

    def resized(self, rows: IntArray, partitions: IntArray, percents: FloatArray) -> Layout:
        """GPU `rows[n]` with its partition number `partitions[n]` at `percents[n]`, for each n."""
        changed = self.take(rows)
        own = changed.mask & (changed.partition == partitions[:, None])
        np.copyto(changed.percent, np.minimum(percents, 100.0)[:, None], where=own)
        return changed
