"""A spec: workloads, each a model with its rate, its SLO and its shadow, and the GPUs that a plan may use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated

from annotated_types import Ge, Le, MinLen

from controlplane.domain.errors import InputError
from controlplane.domain.server_options import ServerOptions
from controlplane.domain.serving import Serving
from controlplane.domain.units import Amount, Checked, Count, Name, NonNegative, Positive


class Arrivals(StrEnum):
    """The arrival process under which a plan must keep the P99."""

    POISSON = "poisson"
    CONSTANT = "constant"


MAX_DISPERSION = 64.0
"""Beyond that a queue's P99 needs longer simulations than a planner has time for."""

Dispersion = Annotated[float, Ge(1), Le(MAX_DISPERSION)]
"""1 for Poisson arrivals."""


class ShadowPolicy(StrEnum):
    """The kind of shadow of a partition."""

    HOT = "hot"
    """The model is loaded and tested."""
    SHARED = "shared"
    """One server for several partitions of a GPU holds their models, loaded and tested."""
    WARM = "warm"
    """The server is up, the model unloaded."""
    NONE = "none"
    AUTO = "auto"
    """Of a spec: hot where that costs no GPU more, else shared or warm."""


LOADED = (ShadowPolicy.HOT, ShadowPolicy.SHARED)
"""The policies whose models are in memory."""


def decided(policy: ShadowPolicy) -> ShadowPolicy:
    """Return `policy`. Raises InputError where a plan does not say what stands by."""
    if policy is ShadowPolicy.AUTO:
        raise InputError("must be hot, shared, warm or none in a plan")
    return policy


class ShadowPlace(StrEnum):
    """The place of the shadow."""

    SAME_GPU = "same-gpu"
    """Covers a wrong prediction."""
    OTHER_GPU = "other-gpu"
    """Covers a fault of the GPU too."""
    OTHER_NODE = "other-node"
    """Covers the loss of the GPU's node too."""


LARGEST_COVER = 2.0
"""A shadow that covers more is said to cover so much."""
WITHIN_S = 1.0
"""What a redirect should take at most where nothing is demanded: kept where that costs no GPU more."""
REDIRECT_S = 0.2
"""What one takes to a loaded shadow, from the death: 0.16 to 0.24 s were measured (docs/results/guard.md)."""


def redirect_s(policy: ShadowPolicy, load_s: float | None) -> float | None:
    """Return the seconds from a death to the shadow's answers, None where that is unknown or never."""
    if policy in LOADED:
        return REDIRECT_S
    return None if load_s is None or policy is ShadowPolicy.NONE else REDIRECT_S + load_s


@dataclass(frozen=True, slots=True)
class ShadowWish(Checked):
    """The shadow that a workload needs; `covers`: at least so much, None for what costs no GPU more.

    `within_s`: how long a redirect may take, None for `WITHIN_S` where that costs no GPU more. Raises
    InputError, naming the field, for a value out of range.
    """

    policy: ShadowPolicy = ShadowPolicy.AUTO
    place: ShadowPlace = ShadowPlace.SAME_GPU
    covers: Annotated[float, Ge(1), Le(LARGEST_COVER)] | None = None
    within_s: Positive | None = None

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        for field_, demand in (("covers", self.covers), ("within_s", self.within_s)):
            if demand is not None and self.policy is ShadowPolicy.NONE:
                raise InputError("needs a shadow, and its policy is none", field=field_)
        if self.policy is ShadowPolicy.SHARED and self.place is not ShadowPlace.SAME_GPU:
            raise InputError("must be same-gpu: a shared shadow stands beside its partitions", field="place")

    def policy_for(self, load_s: float | None) -> ShadowPolicy:
        """Return the policy where models take `load_s` to load: hot too where a demand leaves no other."""
        late = self.within_s is not None and not self.in_time(load_s)
        return ShadowPolicy.HOT if self.policy is ShadowPolicy.AUTO and late else self.policy

    def in_time(self, load_s: float | None) -> bool:
        """Return whether a redirect to models that load for `load_s` is as fast as demanded, or should be."""
        return load_s is not None and REDIRECT_S + load_s <= (self.within_s or WITHIN_S)


@dataclass(frozen=True, slots=True)
class Workload(Checked):
    """One line of a spec. The SLO is the P99 of a request, from its arrival at the gateway to its last byte.

    Rates count inferences. `endpoint` is the name that clients call; a spec fills it in: the model's name, or
    the workload's own where others have the model too. `client_batch` is the batch they send. `dispersion`:
    the variance of the arrivals in a time over their mean, 1 for Poisson arrivals; larger ones have gaps of a
    gamma distribution. `longest_ms` is how long a rare request may take. A server refuses a request that has
    waited `drop_after_ms` in its queue. An `isolated` workload shares its queue with no other. Raises
    InputError, naming the field, for a value out of range.
    """

    name: Name
    model: Name
    slo_ms: Amount
    rate_rps: Amount
    endpoint: Name | None = None
    arrivals: Arrivals = Arrivals.POISSON
    shadow: ShadowWish = field(default_factory=ShadowWish)
    memory_mb: Positive | None = None
    client_batch: Count = 1
    isolated: bool = False
    dispersion: Dispersion = 1.0
    longest_ms: Positive | None = None
    drop_after_ms: Positive | None = None

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        if self.dispersion > 1.0 and self.arrivals is Arrivals.CONSTANT:
            problem = "belongs to arrivals: poisson; constant arrivals have no bursts"
            raise InputError(problem, field="dispersion")


def with_covers_demanded(workloads: Sequence[Workload], covers: float) -> tuple[Workload, ...]:
    """Return the workloads, each shadow without a demand of its own with this one."""

    def demanding(wish: ShadowWish) -> ShadowWish:
        left = wish.policy is ShadowPolicy.NONE or wish.covers is not None
        return wish if left else replace(wish, covers=covers)

    return tuple(replace(w, shadow=demanding(w.shadow)) for w in workloads)


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
