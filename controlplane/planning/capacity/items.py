"""What one partition serves: workloads that share a queue."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.domain.plan import Rule
from controlplane.domain.workload import Arrivals, Workload
from controlplane.latency.protocol import BoolArray, FloatArray, IntArray
from controlplane.planning.capacity.gpu_types import GpuType

_LONGEST_NAME = 120
"""Leaves room for a server's number."""

Group = tuple[Workload, ...]
"""Workloads that share a queue, strictest SLO first."""


def by_slo(workload: Workload) -> tuple[float, float, str]:
    """Sort key of a group: the SLO, then the rate. Names decide only between equals."""
    return workload.slo_ms, workload.rate_rps, workload.name


def sharing_key(workload: Workload, rule: Rule) -> Hashable:
    """Workloads with equal keys may share a queue.

    One server serves them, so model, client batch, memory, shadow and the time after which it refuses a
    request must be the same. Poisson streams add up to a Poisson stream; constant streams add up to neither,
    and no queue model here covers the sum.
    """
    own_queue = workload.isolated or (rule is Rule.P99 and workload.arrivals is Arrivals.CONSTANT)
    shadow = workload.shadow
    server = workload.model, workload.client_batch, workload.memory_mb, shadow.policy, shadow.place
    return *server, workload.drop_after_ms, workload.arrivals, workload.name if own_queue else None


def families(workloads: Sequence[Workload], rule: Rule) -> list[Group]:
    """All workloads, grouped by which of them may share a queue; each family in `by_slo` order."""
    found: dict[Hashable, list[Workload]] = {}
    for w in sorted(workloads, key=lambda w: (w.model, *by_slo(w))):
        found.setdefault(sharing_key(w, rule), []).append(w)
    return [tuple(family) for family in found.values()]


@dataclass(frozen=True, slots=True)
class Item:
    """One server to be placed: its workloads share one queue, held to the strictest SLO.

    `servers` is the size of its pool. `batch`: the batch at every share, None for the best at each share.
    """

    workloads: Group
    servers: int = 1
    batch: int | None = None

    @property
    def model(self) -> str:
        """The one model of its workloads."""
        return self.workloads[0].model

    @property
    def rate_rps(self) -> float:
        """What arrives at this server: its part of the pool's rate."""
        return sum(w.rate_rps for w in self.workloads) / self.servers

    @property
    def slo_ms(self) -> float:
        """The strictest SLO."""
        return min(w.slo_ms for w in self.workloads)

    @property
    def constant(self) -> bool:
        """Whether arrivals are constant: several constant streams together are not."""
        return len(self.workloads) == 1 and self.workloads[0].arrivals is Arrivals.CONSTANT

    @property
    def name(self) -> str:
        """The partition's id: the shortest of its workloads' names."""
        return min((w.name for w in self.workloads), key=lambda name: (len(name), name))[:_LONGEST_NAME]


@dataclass(frozen=True, slots=True)
class ItemArrays:
    """Items as arrays (items,).

    `model` is -1 for a model without a profile. `rate` is per server. `outside_ms`: what a request spends
    outside the queue. `jitter`: the relative deviation of a batch's time.
    """

    model: IntArray
    rate: FloatArray
    slo_ms: FloatArray
    outside_ms: FloatArray
    servers: IntArray
    jitter: FloatArray
    constant: BoolArray

    @staticmethod
    def of(
        gpu_type: GpuType,
        models: Sequence[str],
        rate: FloatArray,
        slo_ms: FloatArray,
        servers: IntArray,
        constant: BoolArray,
    ) -> ItemArrays:
        """Of these models, by what is known about them on this GPU type."""
        profiles = [gpu_type.device.profiles.get(m) for m in models]
        outside = np.array([(p.frontend_ms or 0.0) if p else 0.0 for p in profiles])
        jitter = np.array([(p.jitter or 0.0) if p else 0.0 for p in profiles])
        number = np.array([gpu_type.number_of(m) for m in models], dtype=np.int64)
        return ItemArrays(number, rate, slo_ms, outside, servers, jitter, constant)

    @property
    def queue_slo_ms(self) -> FloatArray:
        """What of the SLO is left for the queue."""
        return np.maximum(self.slo_ms - self.outside_ms, 0.0)

    def take(self, rows: IntArray) -> ItemArrays:
        """These items."""
        return ItemArrays(*(getattr(self, name)[rows] for name in ItemArrays.__slots__))

    def set(self, rows: IntArray, other: ItemArrays) -> None:
        """Replace some items."""
        for name in ItemArrays.__slots__:
            getattr(self, name)[rows] = getattr(other, name)
