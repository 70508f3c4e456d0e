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
    """The GPUs of one type that a plan may use."""

    type: Name
    """A device type with profiles, built in or measured by `ctl profile`; `cpu`: cores of this host."""
    count: Count | None = None
    """How many a plan may use; without it any number, of `cpu` all cores but one."""
    price_per_hour: NonNegative | None = None
    """The price of one, in any currency; plans minimise the sum. Without it the built-in price, else 0."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """On Kubernetes: labels of their nodes, as `{pool: serving}`."""


@dataclass(frozen=True, slots=True)
class Spec:
    """The input of `ctl plan`."""

    gpus: Annotated[tuple[GpuRequest, ...], MinLen(1)]
    """The GPU types that a plan may use."""
    workloads: Annotated[tuple[Workload, ...], MinLen(1)]
    """What the fleet serves."""
    triton_args: tuple[str, ...] = ()
    """Options of every server, each `--NAME=VALUE`, as `[--log-verbose=1]`."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The environment of every server; plans and labels show it: no secrets."""
    serve: Serving | None = None
    """How `ctl apply` serves the plan; what is left out has its default."""

    def __post_init__(self) -> None:
        ServerOptions(self.triton_args, self.env)
        models = Counter(w.model for w in self.workloads)
        called = tuple(
            replace(w, endpoint=w.endpoint or (w.model if models[w.model] == 1 else w.name))
            for w in self.workloads
        )
        object.__setattr__(self, "workloads", called)
