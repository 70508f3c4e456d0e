"""What shadows are for: models that are slower than planned, and plans with shadows active."""

from collections.abc import Container
from dataclasses import dataclass, replace

import numpy as np

from controlplane.domain.plan import Plan
from controlplane.latency.adjusted import Adjusted, Change
from controlplane.latency.protocol import Slots

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Slower(Adjusted):
    """A latency model by which one model takes `factor` times as long on every server."""

    slow: str
    factor: float

    def change(self, slots: Slots) -> Change:
        own = slots.mask & (slots.model == self.models.index(self.slow))
        return lambda time_ms: np.where(own, time_ms * self.factor, time_ms)


def served_by(plan: Plan, model: str) -> set[str]:
    """The ids of the partitions that serve a model."""
    return {p.id for _, p in plan.partitions() if any(served.model == model for served in p.models)}


def redirected(plan: Plan, moved: Container[str]) -> Plan:
    """The plan with the shadows that stand beside these partitions active, as many as have room."""
    gpus = []
    for gpu in plan.gpus:
        room, partitions = 100.0 - gpu.percent, []
        for p in gpu.partitions:
            extra = p.shadow.extra_percent if p.shadow is not None and p.id in moved else 0.0
            extra = extra if extra <= room + _ROUNDING else 0.0
            room -= extra
            partitions.append(replace(p, percent=min(p.percent + extra, 100.0)))
        gpus.append(replace(gpu, partitions=tuple(partitions)))
    return replace(plan, gpus=tuple(gpus))
