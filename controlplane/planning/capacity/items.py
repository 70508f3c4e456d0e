"""What one partition serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.domain.workload import Arrivals, Workload
from controlplane.latency.protocol import BoolArray, FloatArray, IntArray
from controlplane.planning.capacity.gpu_types import GpuType
from controlplane.planning.judge.placements import memory_of, memory_with_shadow
from controlplane.planning.judge.queues import JITTER_P99
from controlplane.planning.protocol import Device

_LONGEST_NAME = 120
"""Leaves room for a server's number."""


@dataclass(frozen=True, slots=True)
class Item:
    """One server to be placed: its workloads share one queue, held to the strictest SLO.

    `servers` is the size of its pool. `batch`: the batch at every share, None for the best at each share.
    """

    workloads: tuple[Workload, ...]
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

    def memory_mb(self, device: Device) -> float | None:
        """As specified, else as measured, else unknown; workloads that share a queue have one memory."""
        return memory_of(self.workloads[0], device)

    def memory_with_shadow_mb(self, device: Device) -> float:
        """Memory on its GPU, with a hot shadow beside it; 0 where unknown."""
        return memory_with_shadow(self.workloads[0], device)


@dataclass(frozen=True, slots=True)
class ItemArrays:
    """Items as arrays (items,).

    `model` is -1 for a model without a profile. `rate` is per server. `queue_slo_ms` is the SLO without the
    time a request spends outside the queue. `jitter`: what the spread of a batch's time adds to its P99,
    relative to the batch's time.
    """

    model: IntArray
    rate: FloatArray
    slo_ms: FloatArray
    queue_slo_ms: FloatArray
    servers: IntArray
    jitter: FloatArray
    constant: BoolArray

    @staticmethod
    def of(items: Sequence[Item], gpu_type: GpuType) -> ItemArrays:
        """Of any models."""
        profiles = [gpu_type.device.profiles.get(i.model) for i in items]
        slo = np.array([i.slo_ms for i in items], dtype=np.float64)
        outside = np.array([(p.frontend_ms or 0.0) if p else 0.0 for p in profiles])
        return ItemArrays(
            np.array([gpu_type.number_of(i.model) for i in items], dtype=np.int64),
            np.array([i.rate_rps for i in items], dtype=np.float64),
            slo,
            np.maximum(slo - outside, 0.0),
            np.array([i.servers for i in items], dtype=np.int64),
            JITTER_P99 * np.array([(p.jitter or 0.0) if p else 0.0 for p in profiles]),
            np.array([i.constant for i in items], dtype=np.bool_),
        )

    @staticmethod
    def of_pools(
        gpu_type: GpuType, model: str, rate: FloatArray, slo_ms: FloatArray, servers: IntArray
    ) -> ItemArrays:
        """Pools of one model with Poisson arrivals; `rate` is per server."""
        profile = gpu_type.device.profiles[model]
        return ItemArrays(
            np.full(rate.size, gpu_type.number_of(model)),
            rate,
            slo_ms,
            np.maximum(slo_ms - (profile.frontend_ms or 0.0), 0.0),
            servers,
            np.full(rate.size, JITTER_P99 * (profile.jitter or 0.0)),
            np.zeros(rate.size, dtype=np.bool_),
        )

    def take(self, rows: IntArray) -> ItemArrays:
        """These items."""
        return ItemArrays(*(getattr(self, name)[rows] for name in ItemArrays.__slots__))
