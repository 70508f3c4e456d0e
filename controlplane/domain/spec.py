"""What a user asks for: workloads, and the GPUs that may be used."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.domain import units
from controlplane.domain.workload import Workload


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """GPUs of one type a plan may take; None: as many as it takes, at the type's own price."""

    type: str
    count: int | None = None
    price_per_hour: float | None = None

    def __post_init__(self) -> None:
        units.safe_name(self.type, "type")
        if self.count is not None:
            units.at_least_one(self.count, "count")
        if self.price_per_hour is not None:
            units.non_negative(self.price_per_hour, "price_per_hour")


@dataclass(frozen=True, slots=True)
class Spec:
    """The input of `ctl plan`."""

    gpus: tuple[GpuRequest, ...]
    workloads: tuple[Workload, ...]
