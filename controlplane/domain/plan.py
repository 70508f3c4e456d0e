"""A plan: the partitions of each GPU, their workloads, and the predictions.

These types hold any plan that a file can contain. `planners.verify` decides whether a plan is right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from controlplane.domain.server_options import NO_OPTIONS, ServerOptions
from controlplane.domain.workload import Arrivals, ShadowPolicy

MOST_SERVERS = 8
"""The limit of servers in one pool, which is that of a gateway's slot."""


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
    the execution time, on which the others rest.
    """

    execution_ms: float | None = None
    mean_ms: float | None = None
    p99_ms: float | None = None
    capacity_rps: float | None = None
    utilisation: float | None = None
    source: Source | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """A workload in one partition, or its part there if a pool serves it.

    Workloads of one model in a partition share a queue; an `isolated` workload has its own.
    """

    name: str
    endpoint: str
    model: str
    rate_rps: float
    slo_ms: float
    arrivals: Arrivals = Arrivals.POISSON
    predicted: Prediction = Prediction()
    client_batch: int = 1
    isolated: bool = False
    dispersion: float = 1.0
    longest_ms: float | None = None

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

    model: str
    batch: int
    instances: int = 1
    max_queue_delay_us: int = 0
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Shadow:
    """The shadow of a partition, on GPU `gpu`: percent = active percent + extra percent.

    With `other_node`, that GPU must be on another node than the partition's.
    """

    policy: ShadowPolicy
    gpu: str
    extra_percent: float
    percent: float
    memory_mb: float | None = None
    other_node: bool = False


@dataclass(frozen=True, slots=True)
class Partition:
    """One Triton: a share of a GPU, the models in it and the workloads they serve.

    `memory_mb` is what one server takes, as measured or specified, for placing it. `memory_limit_mb` is the
    limit that it and its shadow are held to: only where the user set one.
    """

    id: str
    percent: float
    models: tuple[ServedModel, ...]
    workloads: tuple[Placement, ...]
    memory_mb: float | None = None
    shadow: Shadow | None = None
    memory_limit_mb: float | None = None

    @property
    def turns(self) -> bool:
        """Whether several models share the partition, of which one executes at a time."""
        return len(self.models) > 1

    @property
    def ordered(self) -> bool:
        """Whether the plan relies on the order in which requests leave the gateway."""
        return any(served.rank is not None for served in self.models)

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
    """One GPU of a plan, on a node with the labels of `node_selector`."""

    id: str
    type: str
    partitions: tuple[Partition, ...]
    price_per_hour: float = 0.0
    memory_mb: float | None = None
    node_selector: tuple[tuple[str, str], ...] = ()

    @property
    def percent(self) -> float:
        """The sum of the active shares."""
        return sum(p.percent for p in self.partitions)


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
    """The totals of a plan; `phases_ms` has the parts of `planning_ms`, if the strategy measures them."""

    gpus: int
    percent: float
    cost_per_hour: float
    lower_bound_cost_per_hour: float | None = None
    lower_bound_gpus: int | None = None
    planning_ms: float | None = None
    stopped_by: str | None = None
    phases_ms: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The result of `ctl plan` and the input of `ctl apply`."""

    strategy: str
    rule: Rule
    latency_model: str
    gpus: tuple[PlannedGpu, ...]
    quantile: float | None = None
    seed: int | None = None
    verified: bool = False
    violations: tuple[Violation, ...] = ()
    spec_sha256: str | None = None
    profiles: tuple[ProfileUse, ...] = ()
    infeasible: tuple[Infeasible, ...] = ()
    totals: Totals | None = None
    options: ServerOptions = NO_OPTIONS
    """For every server, from the spec."""

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
