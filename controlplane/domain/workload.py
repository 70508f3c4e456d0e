"""A workload: a model, its rate, its SLO and its shadow."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from controlplane.domain import units
from controlplane.domain.errors import InputError


class Arrivals(StrEnum):
    """The arrival process under which a plan must keep the P99."""

    POISSON = "poisson"
    CONSTANT = "constant"


MAX_DISPERSION = 64.0
"""Beyond that a queue's P99 needs longer simulations than a planner has time for."""


class ShadowPolicy(StrEnum):
    """The kind of shadow of a partition."""

    HOT = "hot"
    """The model is loaded and tested."""
    WARM = "warm"
    """The server is up, the model unloaded."""
    NONE = "none"


class ShadowPlace(StrEnum):
    """The place of the shadow."""

    SAME_GPU = "same-gpu"
    """Covers a wrong prediction."""
    OTHER_GPU = "other-gpu"
    """Covers a fault of the GPU too."""
    OTHER_NODE = "other-node"
    """Covers the loss of the GPU's node too."""


@dataclass(frozen=True, slots=True)
class ShadowWish:
    """The shadow that a workload needs."""

    policy: ShadowPolicy = ShadowPolicy.HOT
    place: ShadowPlace = ShadowPlace.SAME_GPU


@dataclass(frozen=True, slots=True)
class Workload:
    """One line of a spec. The SLO is the P99 of a request, from its arrival at the gateway to its last byte.

    Rates count inferences. `endpoint` is the name that clients call. `client_batch` is the batch they send.
    `dispersion`: the variance of the arrivals in a time over their mean, 1 for Poisson arrivals; larger ones
    have gaps of a gamma distribution. `longest_ms` is how long a rare request may take. An `isolated`
    workload shares its queue with no other. Raises InputError, naming the field, for a value out of range.
    """

    name: str
    model: str
    slo_ms: float
    rate_rps: float
    endpoint: str
    arrivals: Arrivals = Arrivals.POISSON
    shadow: ShadowWish = field(default_factory=ShadowWish)
    memory_mb: float | None = None
    client_batch: int = 1
    isolated: bool = False
    dispersion: float = 1.0
    longest_ms: float | None = None

    def __post_init__(self) -> None:
        units.safe_name(self.name, "name")
        units.safe_name(self.model, "model")
        units.safe_name(self.endpoint, "endpoint")
        units.positive(self.slo_ms, "slo_ms")
        units.positive(self.rate_rps, "rate_rps")
        if self.memory_mb is not None:
            units.positive(self.memory_mb, "memory_mb")
        if self.longest_ms is not None:
            units.positive(self.longest_ms, "longest_ms")
        units.at_least_one(self.client_batch, "client_batch")
        check_dispersion(self.dispersion, self.arrivals)


def check_dispersion(dispersion: float, arrivals: Arrivals) -> None:
    """Raise InputError, naming the field, unless arrivals can have this dispersion."""
    if not 1.0 <= dispersion <= MAX_DISPERSION:
        raise InputError(f"must be 1 (Poisson) to {MAX_DISPERSION:g}, not {dispersion:g}", field="dispersion")
    if dispersion > 1.0 and arrivals is Arrivals.CONSTANT:
        raise InputError("belongs to arrivals: poisson; constant arrivals have no bursts", field="dispersion")
