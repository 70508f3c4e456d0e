"""A spec: workloads, and the GPUs that a plan may use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from annotated_types import MinLen

from controlplane.domain.server_options import ServerOptions
from controlplane.domain.serving import Serving
from controlplane.domain.units import Checked, Count, Name, NonNegative
from controlplane.domain.workload import Workload


@dataclass(frozen=True, slots=True)
class GpuRequest(Checked):
    """The GPUs of one type that a plan may use; None: any number, at the type's own price.

    In a cluster they are on nodes with the labels of `node_selector`.
    """

    type: Name
    count: Count | None = None
    price_per_hour: NonNegative | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Spec:
    """The input of `ctl plan`. `triton_args` and `env` are for every server of the fleet.

    `serve` says how `ctl apply` serves its plans; without it they are served as the fleet is now.
    """

    gpus: Annotated[tuple[GpuRequest, ...], MinLen(1)]
    workloads: Annotated[tuple[Workload, ...], MinLen(1)]
    triton_args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    serve: Serving | None = None

    def __post_init__(self) -> None:
        ServerOptions(self.triton_args, self.env)
        models = Counter(w.model for w in self.workloads)
        called = tuple(
            replace(w, endpoint=w.endpoint or (w.model if models[w.model] == 1 else w.name))
            for w in self.workloads
        )
        object.__setattr__(self, "workloads", called)
