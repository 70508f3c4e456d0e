"""A plan: the partitions of each GPU, their workloads, and the predictions.

These types hold any plan that a file can contain, with the fields in the order of the file; a `SPARSE` field
is left out there at its default. `planning.judge` decides whether a plan is right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from annotated_types import Ge, Le, Lt, MinLen, Predicate

from controlplane.domain.server_options import ServerOptions
from controlplane.domain.serving import MOST_RANKS, Serving
from controlplane.domain.units import SPARSE, Amount, Count, Name, Percent, Positive
from controlplane.domain.workload import Arrivals, Dispersion, ShadowPolicy, decided, redirect_s

MOST_SERVERS = 8
"""The limit of servers in one pool, which is that of a gateway's slot."""
_LARGEST_BATCH = 4096
"""Above any model's limit. Bounds the work: latencies are computed for every batch up to the planned one."""


class Rule(StrEnum):
    """The rule that a plan must keep."""

    P99 = "p99"
    """The P99 of a request under the workload's arrivals is at most its SLO."""
    HALF_SLO = "half-slo"
    """A full batch executes within half the SLO and the capacity is at least the rate (iGniter Eq 13, 14)."""


class Source(StrEnum):
    """Where the execution time of a prediction comes from."""

    MEASURED = "measured"
    """The profile measured this share, batch and neighbours."""
    PREDICTED = "predicted"
    """The latency model, from other points of the profile."""
    LEARNED = "learned"
    """The latency model, corrected by the times of running fleets."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predictions for a workload in its partition; None is unchecked.

    `execution_ms`: a full batch with all neighbours busy. `utilisation`: rate over capacity. `source`: of
    the execution time, on which the others rest. `batch_ms`: batches of 1, 2, ... requests, at the plan's
    quantile; of a pool, at its slowest server. Empty where models take turns and under half-SLO.
    `frontend_ms`: what a request spends outside queue and execution, a part of mean and P99.
    """

    execution_ms: float | None = None
    mean_ms: float | None = None
    p99_ms: float | None = None
    capacity_rps: float | None = None
    utilisation: float | None = None
    source: Source | None = field(default=None, metadata=SPARSE)
    batch_ms: tuple[Positive, ...] = field(default=(), metadata=SPARSE)
    frontend_ms: Positive | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class Placement:
    """A workload in one partition, or its part there if a pool serves it.

    Workloads of one model in a partition share a queue; an `isolated` workload has its own.
    """

    name: Name
    endpoint: Name
    model: str
    rate_rps: Amount
    arrivals: Arrivals = field(default=Arrivals.POISSON, kw_only=True)
    slo_ms: Amount
    client_batch: Count = 1
    isolated: bool = False
    dispersion: Dispersion = field(default=1.0, metadata=SPARSE)
    longest_ms: Positive | None = field(default=None, metadata=SPARSE)
    drop_after_ms: Positive | None = field(default=None, metadata=SPARSE)
    predicted: Prediction = Prediction()

    @property
    def requests_rps(self) -> float:
        """Requests per second, each of `client_batch` inferences."""
        return self.rate_rps / self.client_batch


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The settings with which a partition serves one model. Delay 0 is Triton's greedy batcher.

    `rank`: the model's place in the order in which requests leave the gateway, the lowest first; None where
    the plan relies on no order.
    """

    model: Name
    batch: Annotated[int, Ge(1), Le(_LARGEST_BATCH)]
    instances: Count = 1
    max_queue_delay_us: Annotated[int, Ge(0)] = 0
    rank: Annotated[int, Ge(0), Lt(MOST_RANKS)] | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class Shadow:
    """The shadow of a partition, on GPU `gpu`: percent = active percent + extra percent.

    With `other_node`, that GPU must be on another node than the partition's. `covers`: how many times slower
    than planned the partition's model may be on all its servers while every promise is kept, with all shadows
    of that model active; at most 2, and 1 where the shadow cures nothing. `load_s`: how long the models of a
    warm one take to load, None where that is unknown. A shared one is `shared` of its GPU, with the memory.
    """

    policy: Annotated[ShadowPolicy, Predicate(decided)]
    gpu: str
    extra_percent: float
    percent: Percent
    memory_mb: float | None = None
    other_node: bool = field(default=False, metadata=SPARSE)
    covers: Annotated[float, Ge(1)] | None = field(default=None, metadata=SPARSE)
    load_s: Positive | None = field(default=None, metadata=SPARSE)

    @property
    def redirect_s(self) -> float | None:
        """The seconds from a death to its answers, None where that is unknown or it is none."""
        return redirect_s(self.policy, self.load_s)


@dataclass(frozen=True, slots=True)
class SharedShadow:
    """One Triton with the models of all partitions of its GPU whose shadow is shared.

    Its share is the same whichever partition it serves. `id` is no partition's.
    """

    id: Name
    percent: Percent
    memory_mb: float | None = None


@dataclass(frozen=True, slots=True)
class Partition:
    """One Triton: a share of a GPU, the models in it and the workloads they serve.

    `memory_mb` is what one server takes, as measured or specified, for placing it. `memory_limit_mb` is the
    limit that it and its shadow are held to: only where the user set one. `survives_gpu_loss`: every promise
    is kept without the partition's GPU, by shadows on other GPUs or by the rest of its pool.
    """

    id: Name
    percent: Percent
    memory_mb: float | None = field(default=None, kw_only=True)
    memory_limit_mb: Positive | None = field(default=None, kw_only=True, metadata=SPARSE)
    shadow: Shadow | None = field(default=None, kw_only=True)
    survives_gpu_loss: bool | None = field(default=None, kw_only=True, metadata=SPARSE)
    models: Annotated[tuple[ServedModel, ...], MinLen(1)]
    workloads: Annotated[tuple[Placement, ...], MinLen(1)]

    @property
    def turns(self) -> bool:
        """Whether several models share the partition, of which one executes at a time."""
        return len(self.models) > 1

    @property
    def ordered(self) -> bool:
        """Whether the plan relies on the order in which requests leave the gateway."""
        return any(served.rank is not None for served in self.models)

    def drop_after_ms(self, model: str) -> float | None:
        """Return how long a request of a model may wait in its queue; None for any time."""
        waits = [w.drop_after_ms for w in self.workloads if w.model == model and w.drop_after_ms is not None]
        return min(waits, default=None)

    def queues(self) -> Mapping[str, tuple[Placement, ...]]:
        """Return the workloads that share a model's queue, by model, in the order of their endpoints.

        The first endpoint is the model's name in the server, the others are its aliases. The order does not
        depend on the plan's, so it is the same in every partition of a pool.
        """
        queues: dict[str, tuple[Placement, ...]] = {}
        for placement in sorted(self.workloads, key=lambda p: p.endpoint):
            queues[placement.model] = (*queues.get(placement.model, ()), placement)
        return queues


MOST_BUSY_BITS = 16
"""A simulation has a time for each set of models that can be busy at once on a GPU: 2^16 at most."""


def busy_bits(partitions: Iterable[Partition]) -> int:
    """Return how many bits tell which model of each partition is busy, of which one executes at a time."""
    return sum(len(p.models).bit_length() for p in partitions)


@dataclass(frozen=True, slots=True)
class PlannedGpu:
    """One GPU of a plan, on a node with the labels of `node_selector`; `shared` stands by for several."""

    id: Name
    type: str
    price_per_hour: float = field(default=0.0, kw_only=True)
    memory_mb: float | None = field(default=None, kw_only=True)
    # Left out where there is none: a plan that needs no cluster has the hash that it always had.
    node_selector: Mapping[str, str] = field(default_factory=dict, kw_only=True, metadata=SPARSE)
    shared: SharedShadow | None = field(default=None, kw_only=True, metadata=SPARSE)
    partitions: tuple[Partition, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "node_selector", dict(sorted(self.node_selector.items())))

    @property
    def sharers(self) -> tuple[Partition, ...]:
        """The partitions that its shared shadow stands by for."""
        return tuple(p for p in self.partitions if p.shadow and p.shadow.policy is ShadowPolicy.SHARED)

    @property
    def percent(self) -> float:
        """The sum of the active shares."""
        return sum(p.percent for p in self.partitions)


def memory_used_mb(gpus: Sequence[PlannedGpu]) -> dict[str, dict[str, float]]:
    """Return what takes memory on each GPU, where that is known: partitions, and shadows of partitions."""
    used: dict[str, dict[str, float]] = {gpu.id: {} for gpu in gpus}
    for gpu in gpus:
        for partition in gpu.partitions:
            if partition.memory_mb is not None:
                used[gpu.id][partition.id] = partition.memory_mb
            shadow = partition.shadow
            if shadow is not None and shadow.memory_mb is not None:
                used.setdefault(shadow.gpu, {})[f"the shadow of {partition.id}"] = shadow.memory_mb
        if gpu.shared is not None and gpu.shared.memory_mb is not None:
            used[gpu.id]["the shared shadow"] = gpu.shared.memory_mb
    return used


@dataclass(frozen=True, slots=True)
class Infeasible:
    """A workload that cannot be placed, the reason, and the nearest SLO and rate that would fit."""

    workload: str
    reason: str
    nearest_slo_ms: float | None = None
    nearest_rate_rps: float | None = None


@dataclass(frozen=True, slots=True)
class Violation:
    """One promise that a plan does not keep."""

    subject: str
    """The id of the workload, partition or GPU."""
    reason: str


@dataclass(frozen=True, slots=True)
class ProfileUse:
    """A profile on which a plan rests."""

    model: str
    device: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals of a plan; `phases_ms` has the parts of `planning_ms`, if the strategy measures them.

    `gpus_for_demands`: how many GPUs fewer a plan took whose shadows cover, and load within, what costs
    nothing; None where nothing was demanded.
    """

    gpus: int
    percent: float
    cost_per_hour: float
    lower_bound_cost_per_hour: float | None = None
    lower_bound_gpus: int | None = None
    planning_ms: float | None = None
    stopped_by: str | None = None
    gpus_for_demands: int | None = field(default=None, metadata=SPARSE)
    phases_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """The result of `ctl plan` and the input of `ctl apply`.

    `triton_args`, `env` and `serve` are the spec's; `spec` is its text, and `spec_sha256` that text's hash.
    """

    strategy: str
    rule: Rule
    latency_model: str
    quantile: Annotated[float, Ge(0.5), Lt(1)] | None = field(default=None, kw_only=True)
    seed: int | None = field(default=None, kw_only=True)
    verified: bool = field(default=False, kw_only=True)
    violations: tuple[Violation, ...] = field(default=(), kw_only=True)
    spec_sha256: str | None = field(default=None, kw_only=True)
    profiles: tuple[ProfileUse, ...] = field(default=(), kw_only=True)
    gpus: tuple[PlannedGpu, ...]
    infeasible: tuple[Infeasible, ...] = ()
    totals: Totals | None = None
    triton_args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    serve: Serving | None = field(default=None, metadata=SPARSE)
    spec: str | None = field(default=None, metadata=SPARSE)

    def __post_init__(self) -> None:
        ServerOptions(self.triton_args, self.env)

    @property
    def options(self) -> ServerOptions:
        """What every server gets."""
        return ServerOptions(self.triton_args, self.env)

    @property
    def ordered(self) -> bool:
        """Whether it relies on the gateway's order in a partition."""
        return any(partition.ordered for _, partition in self.partitions())

    def partitions(self) -> Iterator[tuple[PlannedGpu, Partition]]:
        """Every partition with its GPU, in the plan's order."""
        for gpu in self.gpus:
            for partition in gpu.partitions:
                yield gpu, partition

    def placements(self) -> Iterator[tuple[PlannedGpu, Partition, Placement]]:
        """Every placement with its partition and GPU."""
        for gpu, partition in self.partitions():
            for placement in partition.workloads:
                yield gpu, partition, placement
