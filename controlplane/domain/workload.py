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
"""What one takes to a loaded shadow, from the death: 0.08 to 0.26 s were measured (docs/results/guard.md)."""


def redirect_s(policy: ShadowPolicy, load_s: float | None) -> float | None:
    """Return the seconds from a death to the shadow's answers, None where that is unknown or never."""
    if policy in LOADED:
        return REDIRECT_S
    return None if load_s is None or policy is ShadowPolicy.NONE else REDIRECT_S + load_s


@dataclass(frozen=True, slots=True)
class ShadowWish(Checked):
    """The shadow that a workload needs. Raises InputError, naming the field, for a value out of range."""

    policy: ShadowPolicy = ShadowPolicy.AUTO
    """hot: loaded and tested. shared: one server with the models of several partitions of its GPU, which
    replaces one of them at a time. warm: not loaded, takes no memory. auto: hot where that costs no GPU more,
    else shared or warm."""
    place: ShadowPlace = ShadowPlace.SAME_GPU
    """same-gpu: for a dead or slow server. other-gpu: for a lost GPU too. other-node: for a cluster's
    node, or `ctl apply` refuses."""
    covers: Annotated[float, Ge(1), Le(LARGEST_COVER)] | None = None
    """Every server of the model may be so many times slower than planned, at more GPUs if needed. Without
    it as much as costs no GPU more."""
    within_s: Positive | None = None
    """How long a redirect may take (0.2 s, and the load of a warm shadow's models), at more GPUs if needed.
    Without it 1 s if that costs no GPU more."""

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
    """One line of a spec. Raises InputError, naming the field, for a value out of range."""

    name: Name
    """Its name in tables and events."""
    model: Name
    """Its folder in the model repository; it needs a profile on one of the GPU types."""
    slo_ms: Amount
    """The longest P99, from a request's arrival at the gateway to the last byte of the answer."""
    rate_rps: Amount
    """The expected inferences a second; a request with a batch of 4 is 4."""
    endpoint: Name | None = None
    """What clients call; without it the model's name, or the workload's where others have the model."""
    arrivals: Arrivals = Arrivals.POISSON
    """At random, or evenly spaced (which shares no queue under the rule `p99`)."""
    shadow: ShadowWish = field(default_factory=ShadowWish)
    """The second server, which can replace the first."""
    memory_mb: Positive | None = None
    """The memory of one server with its waiting requests, instead of the profile's. Also a limit: on a GPU of
    each process (Triton, each instance of a Python model), on `cpu` of containers."""
    client_batch: Count = 1
    """Inferences in one request, at most the model's `max_batch_size`. Only equal values share a queue."""
    isolated: bool = False
    """A queue and a server of its own."""
    dispersion: Dispersion = 1.0
    """The variance of a second's arrivals over their mean, as in `ctl status`; 1 is Poisson. Not for constant
    arrivals."""
    longest_ms: Positive | None = None
    """How long a rare request may take before its server counts as hung. Without it learned, at least 60
    s."""
    drop_after_ms: Positive | None = None
    """Triton refuses (503, UNAVAILABLE) a request that has waited so long when the next batch starts. Only
    equal values share a queue. Not for ensembles, sequences, and models with another queue policy."""

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
    """The GPUs of one type that a plan may use."""

    type: Name
    """A device type with profiles; `cpu`: cores of this host."""
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
