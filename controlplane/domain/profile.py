"""Measurements of one model on one device, and factors that correct predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controlplane.domain import units
from controlplane.domain.device import ShareKind
from controlplane.domain.errors import InputError
from controlplane.domain.server_options import NO_OPTIONS, ServerOptions


@dataclass(frozen=True, slots=True)
class Measurement:
    """One point: the model alone at (percent, batch).

    `execution_ms` is the mean of a batch from its data loading to its result, `std_ms` its deviation over
    `n` batches. `capacity_rps` is the throughput at saturation. `throttled` is the share of quota periods
    that hit the quota, `host_busy` the busy share of the host outside the partition, `power_w` and
    `clock_mhz` the GPU's means meanwhile; None where unknown.
    """

    percent: float
    batch: int
    execution_ms: float
    concurrency: int = 1
    std_ms: float | None = None
    n: int | None = None
    capacity_rps: float | None = None
    throttled: float | None = None
    host_busy: float | None = None
    power_w: float | None = None
    clock_mhz: float | None = None

    def __post_init__(self) -> None:
        units.percent(self.percent, "percent")
        units.at_least_one(self.batch, "batch")
        units.at_least_one(self.concurrency, "concurrency")
        units.positive(self.execution_ms, "execution_ms")
        if self.capacity_rps is not None:
            units.positive(self.capacity_rps, "capacity_rps")


@dataclass(frozen=True, slots=True)
class Neighbour:
    """What ran beside a co-location point, back to back."""

    model: str
    percent: float
    batch: int


@dataclass(frozen=True, slots=True)
class ColocationPoint:
    """One point with neighbours on the same GPU, all of them busy."""

    percent: float
    batch: int
    neighbours: tuple[Neighbour, ...]
    execution_ms: float

    def __post_init__(self) -> None:
        units.percent(self.percent, "percent")
        units.at_least_one(self.batch, "batch")
        units.positive(self.execution_ms, "execution_ms")


@dataclass(frozen=True, slots=True)
class Repeat:
    """One point, alone, measured in two sessions."""

    percent: float
    batch: int
    first_ms: float
    second_ms: float

    def __post_init__(self) -> None:
        units.percent(self.percent, "percent")
        units.at_least_one(self.batch, "batch")
        units.positive(self.first_ms, "first_ms")
        units.positive(self.second_ms, "second_ms")


@dataclass(frozen=True, slots=True)
class Environment:
    """Where and when a profile was measured, and the GPU's power before; None where it does not apply.

    `tool`: the program that measured, where it was not `ctl profile`.
    """

    gpu: str | None = None
    driver: str | None = None
    triton: str | None = None
    backend: str | None = None
    host: str | None = None
    date: str | None = None
    idle_w: float | None = None
    tool: str | None = None


@dataclass(frozen=True, slots=True)
class RequestSet:
    """The requests that a profile was measured with; `file` is where they came from, None if generated.

    Equal hashes are equal requests, in name, type, shape and content.
    """

    file: str | None
    requests: int
    sha256: str


@dataclass(frozen=True, slots=True)
class AnswerTimes:
    """The mean latencies of the first and the last answer to a request that is alone on its server."""

    first_ms: float
    last_ms: float


@dataclass(frozen=True, slots=True)
class KernelTrace:
    """What one execution of a batch makes a GPU do, alone, by Nsight Systems.

    `kernels` are launched; on average each starts `gap_ms` after the one before ended. `loaded_bytes` and
    `fed_back_bytes` are copied to and from the GPU for each item.
    """

    kernels: float
    gap_ms: float
    loaded_bytes: float
    fed_back_bytes: float


@dataclass(frozen=True, slots=True)
class Counters:
    """Measurements by NVIDIA's profilers: a model's kernels, and its use of the L2 cache (%) by batch."""

    trace: KernelTrace | None = None
    cache_percent: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Profile:
    """Everything a latency model may be fitted on for one model on one device.

    `fits` maps a latency model's name to its coefficients for this model (for `igniter` those of the
    paper: d_load, d_feedback, n_k, k_sch, k1..k5, alpha_cache, alpha_power, ...). `holdout_error` maps it
    to the mean relative error on points left out of the fit (0.05 is 5 %). `jitter` is the coefficient of
    variation of a batch's service time, `frontend_ms` the time a request spends outside queue and
    execution, `request_ms` the processor time of handling one request (None: unknown, or not within a share),
    `max_batch` the largest batch the model serves. `inputs` are the requests it was measured with, None where
    that is unknown. `repeats` are points of earlier sessions beside those of later ones. `answers`: of a
    decoupled model. `options` are the user's, with which its servers ran.
    """

    model: str
    device: str
    share_kind: ShareKind
    environment: Environment
    points: tuple[Measurement, ...]
    colocation: tuple[ColocationPoint, ...] = ()
    fits: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    holdout_error: Mapping[str, float] = field(default_factory=dict)
    jitter: float | None = None
    frontend_ms: float | None = None
    request_ms: float | None = None
    memory_mb: float | None = None
    max_batch: int | None = None
    inputs: RequestSet | None = None
    repeats: tuple[Repeat, ...] = ()
    answers: AnswerTimes | None = None
    options: ServerOptions = NO_OPTIONS

    def __post_init__(self) -> None:
        units.safe_name(self.model, "model")
        units.safe_name(self.device, "device")

    @property
    def only_percent(self) -> float | None:
        """The one share that the points know; None where they know several, or there is no point."""
        percents = {p.percent for p in self.points}
        return percents.pop() if len(percents) == 1 else None

    @property
    def largest_batch(self) -> int:
        """The largest batch this profile can speak for."""
        measured = max((p.batch for p in self.points), default=1)
        return measured if self.max_batch is None else min(measured, max(self.max_batch, 1))


@dataclass(frozen=True, slots=True)
class Factor:
    """Observed over predicted execution time of `model` on `device` beside `neighbours`."""

    model: str
    device: str
    neighbours: tuple[str, ...]
    factor: float
    batches: int
    at_s: float

    def __post_init__(self) -> None:
        units.positive(self.factor, "factor")
        units.at_least_one(self.batches, "batches")
        if tuple(sorted(self.neighbours)) != self.neighbours:
            raise InputError("must be sorted", field="neighbours")

    @property
    def key(self) -> tuple[str, str, tuple[str, ...]]:
        """The key; there is one factor a key."""
        return self.model, self.device, self.neighbours
