"""Measurements of one model on one device, and factors that correct predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import linear_regression
from typing import Annotated

from annotated_types import Ge, MinLen

from controlplane.domain.device import ShareKind
from controlplane.domain.errors import InputError
from controlplane.domain.server_options import NO_OPTIONS, ServerOptions
from controlplane.domain.units import Checked, Count, Fraction, Name, NonNegative, Percent, Positive


class Tool(StrEnum):
    """What wrote the files of measurements from elsewhere."""

    PERF_ANALYZER = "perf-analyzer"
    MODEL_ANALYZER = "model-analyzer"
    AIPERF = "aiperf"
    NSYS = "nsys"
    NCU = "ncu"


@dataclass(frozen=True, slots=True)
class Measurement(Checked):
    """One point: the model alone at (percent, batch).

    `execution_ms` is the mean of a batch from its data loading to its result, `std_ms` its deviation over
    `n` batches. `capacity_rps` is the throughput at saturation. `throttled` is the share of quota periods
    that hit the quota, `host_busy` the busy share of the host outside the partition, `power_w` and
    `clock_mhz` the GPU's means meanwhile; None where unknown.
    """

    percent: Percent
    batch: Count
    execution_ms: Positive
    concurrency: Count = 1
    std_ms: NonNegative | None = None
    n: Count | None = None
    capacity_rps: Positive | None = None
    throttled: Fraction | None = None
    host_busy: Fraction | None = None
    power_w: NonNegative | None = None
    clock_mhz: Positive | None = None


@dataclass(frozen=True, slots=True)
class Neighbour:
    """What ran beside a co-location point, back to back."""

    model: str
    percent: float
    batch: int


@dataclass(frozen=True, slots=True)
class ColocationPoint(Checked):
    """One point with neighbours on the same GPU, all of them busy."""

    percent: Percent
    batch: Count
    neighbours: Annotated[tuple[Neighbour, ...], MinLen(1)]
    execution_ms: Positive


@dataclass(frozen=True, slots=True)
class Repeat(Checked):
    """One point, alone, measured in two sessions."""

    percent: Percent
    batch: Count
    first_ms: Positive
    second_ms: Positive


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
    idle_w: NonNegative | None = None
    tool: str | None = None


@dataclass(frozen=True, slots=True)
class RequestSet:
    """The requests that a profile was measured with; `file` is where they came from, None if generated.

    Equal hashes are equal requests, in name, type, shape and content.
    """

    file: str | None = field(default=None, kw_only=True)
    requests: Count
    sha256: str


@dataclass(frozen=True, slots=True)
class AnswerTimes:
    """The mean latencies of the first and the last answer to a request that is alone on its server."""

    first_ms: NonNegative
    last_ms: NonNegative


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
class Profile(Checked):
    """Everything a latency model may be fitted on for one model on one device.

    `fits` maps a latency model's name to its coefficients for this model (for `igniter` those of the
    paper: d_load, d_feedback, n_k, k_sch, k1..k5, alpha_cache, alpha_power, ...). `holdout_error` maps it
    to the mean relative error on points left out of the fit (0.05 is 5 %). `jitter` is the coefficient of
    variation of a batch's service time, `frontend_ms` the time a request spends outside queue and
    execution, `request_ms` the processor time of handling one request (None: unknown, or not within a share),
    `memory_mb` what a server took after its largest batch, `memory_by_batch` the same after other ones too,
    `max_batch` the largest batch the model serves, `load_s` how long a server took from its start until it
    served the model, which a load alone does not exceed. `inputs` are the requests it was measured with, None
    where that is unknown. `repeats` are points of earlier sessions beside later ones. `answers`: of
    a decoupled model. `options` are the user's, with which its servers ran. `executes` has the models that it
    executes itself, with the largest batch of each; `stubs` the processes of Python models that may use a
    GPU, by the model, its own and those that it executes; None where a profile does not say.
    """

    model: Name
    device: Name
    share_kind: ShareKind
    environment: Environment = Environment()
    points: tuple[Measurement, ...] = ()
    colocation: tuple[ColocationPoint, ...] = ()
    fits: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    holdout_error: Mapping[str, float] = field(default_factory=dict)
    jitter: NonNegative | None = None
    frontend_ms: NonNegative | None = None
    request_ms: NonNegative | None = None
    memory_mb: Positive | None = None
    max_batch: Annotated[int, Ge(0)] | None = None
    inputs: RequestSet | None = None
    repeats: tuple[Repeat, ...] = ()
    answers: AnswerTimes | None = None
    options: ServerOptions = NO_OPTIONS
    load_s: Positive | None = None
    memory_by_batch: Mapping[int, float] = field(default_factory=dict)
    executes: Mapping[str, Count] = field(default_factory=dict)
    stubs: Mapping[str, Count] | None = None

    @property
    def only_percent(self) -> float | None:
        """The one share that the points know; None where they know several, or there is no point."""
        first = self.points[0].percent if self.points else None
        return first if all(p.percent == first for p in self.points) else None

    @property
    def largest_batch(self) -> int:
        """The largest batch this profile can speak for."""
        measured = max((p.batch for p in self.points), default=1)
        return measured if self.max_batch is None else min(measured, max(self.max_batch, 1))

    @property
    def memory_law(self) -> tuple[float, float] | None:
        """MB of a server whatever its batch, and for each inference of its largest one; None where unknown.

        A line that no measurement is above; of one batch alone its memory counts for all.
        """
        if len(self.memory_by_batch) < 2:
            return None if self.memory_mb is None else (self.memory_mb, 0.0)
        slope = max(linear_regression(*zip(*self.memory_by_batch.items(), strict=True)).slope, 0.0)
        return max(mb - slope * batch for batch, mb in self.memory_by_batch.items()), slope


@dataclass(frozen=True, slots=True)
class Factor(Checked):
    """Observed over predicted execution time of `model` on `device` beside `neighbours`."""

    model: str
    device: str
    neighbours: tuple[str, ...]
    factor: Positive
    batches: Count
    at_s: float

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        if tuple(sorted(self.neighbours)) != self.neighbours:
            raise InputError("must be sorted", field="neighbours")

    @property
    def key(self) -> tuple[str, str, tuple[str, ...]]:
        """The key; there is one factor a key."""
        return self.model, self.device, self.neighbours
