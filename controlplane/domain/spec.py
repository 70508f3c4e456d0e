"""A spec: workloads, and the GPUs that a plan may use."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.domain import units
from controlplane.domain.server_options import NO_OPTIONS, ServerOptions
from controlplane.domain.workload import Workload


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """The GPUs of one type that a plan may use; None: any number, at the type's own price.

    In a cluster they are on nodes with the labels of `node_selector`.
    """

    type: str
    count: int | None = None
    price_per_hour: float | None = None
    node_selector: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        units.safe_name(self.type, "type")
        if self.count is not None:
            units.at_least_one(self.count, "count")
        if self.price_per_hour is not None:
            units.non_negative(self.price_per_hour, "price_per_hour")


@dataclass(frozen=True, slots=True)
class Spec:
    """The input of `ctl plan`. `options` are for every server of the fleet."""

    gpus: tuple[GpuRequest, ...]
    workloads: tuple[Workload, ...]
    options: ServerOptions = NO_OPTIONS
