"""Observations of a running fleet, Triton's counters as in `model_stats`, and a fleet as a cluster's object.

The counters have sums and differences. The object says what is wanted, and gets what became of it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from controlplane.domain.fleet import Delays, Server

Entry = dict[str, Any]
"""The counters of one version of a model."""
LATEST = "last_inference"
_SAME = frozenset({"name", "version", "batch_size", "type", "id"})


def combine(one: Entry, other: Entry, of: Callable[[int, int], int] = operator.add) -> Entry:
    """Return two entries as one: each counter is `of` both, where a missing one is 0.

    Times of day are the later one.
    """
    combined = dict(one)
    for key, value in other.items():
        mine = combined.get(key)
        if key in _SAME:
            combined.setdefault(key, value)
        elif key == LATEST:
            combined[key] = max(mine or 0, value)
        elif isinstance(value, dict):
            combined[key] = combine(mine or {}, value, of)
        elif key == "batch_stats":
            combined[key] = _by_batch(mine or [], value, of)
        elif isinstance(value, list):
            combined[key] = [*(mine or []), *value]
        else:
            combined[key] = of(mine or 0, value)
    return combined


def difference(one: Entry, other: Entry) -> Entry:
    """Return what `one` has more than `other`, nothing of it below 0; the time of day is that of `one`."""
    counters = {key: value for key, value in other.items() if key != LATEST}
    return combine(one, counters, lambda mine, theirs: max(0, mine - theirs))


def _by_batch(one: list[Entry], other: list[Entry], of: Callable[[int, int], int]) -> list[Entry]:
    sizes = {entry["batch_size"]: entry for entry in one}
    for entry in other:
        size = entry["batch_size"]
        sizes[size] = combine(sizes.get(size, {}), entry, of)
    return [sizes[size] for size in sorted(sizes)]


class Health(StrEnum):
    """The health of a server according to real inferences, not to a readiness flag."""

    READY = "ready"
    STARTING = "starting"
    UNLOADED = "unloaded"
    """A warm shadow: the server is up, its models are not loaded."""
    ENDING = "ending"
    """Another program ends it; it may answer until it has ended."""
    IMPAIRED = "impaired"
    """It runs, but a process of one of its models died, so it refuses some or all requests."""
    PAUSED = "paused"
    """Another program stopped it; it answers once that program lets it run again."""
    FAILING = "failing"
    """It runs, but inferences fail, or have no answer in time while no other request is open."""
    HUNG = "hung"
    """It runs, but its process answers no call at all."""
    GONE = "gone"


class Level(StrEnum):
    """The importance of an event."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a fleet's history; `at_s` is seconds since the epoch."""

    at_s: float
    level: str
    kind: str
    subject: str
    reason: str


class Answer(NamedTuple):
    """One ended request: the time (monotonic clock), the latency since its arrival, the server.

    `failed` means a fault of the server, not of the client (the refusal of a bad input is an answer).
    `refused` means that the server declined it by a policy of its model, such as a full queue: it lives.
    `server` is empty if no server was there, or if it has been stopped since. `held`: it failed, and a server
    had it; `lost`: without an answer. `client` is empty where clients need no tokens.
    """

    ended_s: float
    latency_ms: float
    failed: bool
    endpoint: str
    server: str
    refused: bool = False
    held: bool = False
    client: str = ""
    lost: bool = False

    @property
    def shows_work(self) -> bool:
        """Whether a model answered it, also with an error: a full queue refuses without its model's help."""
        return not (self.refused or self.lost)


OUT_OF_MEMORY = "out of memory"
"""In the reason of every end that the kernel brought about for lack of memory."""


def out_of_memory(server: Server) -> str:
    """Return in words that the kernel killed a process of a server for lack of memory, with its limit."""
    limit_mb = server.spec.memory_limit_mb
    limit = "" if limit_mb is None else f", which reached its memory limit of {limit_mb:g} MB (memory_mb)"
    return f"{OUT_OF_MEMORY}: the kernel killed a process of it{limit}"


class News(NamedTuple):
    """A report that the health of servers is now another, with the reason.

    A fault of a GPU (`device`, its UUID) names every server on it, other news one server. `certain`: this
    host's kernel or a cluster's API server reports it, not an engine that may be shutting down.
    """

    servers: tuple[str, ...]
    reason: str
    device: str | None = None
    health: Health = Health.GONE
    certain: bool = False


@dataclass(frozen=True, slots=True)
class ServerSeen:
    """One server at one time: its health and its requests in flight.

    `in_flight` are requests that wait for one answer each, `streaming` those on decoupled models and in
    sequences, where a pause shows nothing. `sequences` live between two requests. `progressed`: it was seen
    to work since the look before. `failing` requests of one of its queues failed in a row.
    `queue_ms` and `compute_ms` are Triton's recent means, None where they were not read or nothing ran.
    `inferences` is the mean number in one request by the model's endpoint, without those not read. `delays`
    are the recent ones of its busiest thread, None where it has no quota or they are unknown.
    """

    health: Health
    in_flight: int = 0
    queue_ms: float | None = None
    compute_ms: float | None = None
    reason: str = ""
    inferences: Mapping[str, float] = field(default_factory=dict)
    delays: Delays | None = None
    streaming: int = 0
    sequences: int = 0
    progressed: bool = False
    failing: int = 0


GONE = ServerSeen(Health.GONE)
"""One that is not seen."""


@dataclass(frozen=True, slots=True)
class HostSeen:
    """How much the host delayed the gateway recently, as fractions.

    `waiting` is the part of the time ready to run in which other work had the gateway's core. `steal` is the
    part of the cores' time that the hypervisor gave to others. `throttled` is the part of the time that the
    gateway's cgroup was at its own limit. `stood_s` is for how long the gateway has not run at all, in
    seconds, and `wait_s` for how long it waited for a core each time that it was to run, in the mean.
    """

    waiting: float
    steal: float = 0.0
    throttled: float = 0.0
    stood_s: float = 0.0
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class FleetSeen:
    """The fleet at one time: requests that ended, and every server by name.

    A server that is missing is gone. `host` is None where nothing is known yet. The requests ended since the
    observation before; those of a partition without suspicion may have ended since `since_s`.
    """

    now_s: float
    answers: tuple[Answer, ...]
    servers: Mapping[str, ServerSeen]
    host: HostSeen | None = None
    since_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Guarding:
    """The controller's state for one partition; times are seconds since the epoch.

    `standby` is the shadow's name, ready or not; None without a shadow. `failed_starts` counts failures in a
    row; with an open breaker no server is started before `retry_at_s`. `owned_gpu` and `owned_percent` are
    the partition's share, which its active server does not have while it lends it a larger one (`lent`).
    `active` is that server's label. `ending` are the labels of servers that drain or are stopped, and how
    they end.
    """

    partition: str
    phase: str
    since_s: float
    standby: str | None
    standby_ready: bool
    failed_starts: int
    breaker_open: bool
    retry_at_s: float | None
    owned_gpu: str | None = None
    owned_percent: float | None = None
    active: str = ""
    ending: Mapping[str, str] = field(default_factory=dict)
    lent: bool = False


@dataclass(frozen=True, slots=True)
class RateSeen:
    """The rate of a workload in inferences per second: planned, seen now, and what is forecast.

    Unknown figures are None. `dispersion` is the variance of a second's requests over their mean: 1 for
    Poisson arrivals. `bursty`: it is larger, beyond chance. `bursts_rps`: the part of the upper bound that is
    there for bursts, because the plan's queues are not for this dispersion.
    """

    workload: str
    planned_rps: float
    level_rps: float | None
    lower_rps: float | None
    upper_rps: float | None
    dispersion: float
    bursty: bool
    bursts_rps: float = 0.0


@dataclass(frozen=True, slots=True)
class LatencyWindow:
    """Requests of one endpoint that ended within the last `seconds`; latencies are None where none ended.

    `seconds` is the window for rates; it is shorter than requested where the first request came later.
    `refused` requests, beyond the planned rate in overload, are in no other figure.
    """

    endpoint: str
    seconds: float
    requests: int
    errors: int
    p50_ms: float | None
    p99_ms: float | None
    refused: int = 0


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """Triton's cumulative counters for one batch size: executions and their total times."""

    executions: int
    compute_input_ns: int
    compute_infer_ns: int
    compute_output_ns: int


@dataclass(frozen=True, slots=True)
class ModelStatistics:
    """Triton's cumulative counters for one model (GET /v2/models/M/stats).

    `responses` counts those of decoupled models, of which a request may have many.
    """

    model: str
    inferences: int
    executions: int
    successes: int
    failures: int
    queue_ns: int
    success_ns: int
    batches: Mapping[int, BatchStatistics]
    responses: int = 0

    @property
    def work(self) -> tuple[int, ...]:
        """The counters that move only where the model works: its queue alone may count failures."""
        return self.inferences, self.executions, self.successes, self.responses


@dataclass(frozen=True, slots=True)
class WantedFleet:
    """What an object wants. `plan` is a plan's document, `generation` counts the changes of it.

    `applied` is the hash of the plan that was applied last, `devices` maps its GPU ids, and `guarding` has
    the partitions whose share is lent or whose servers end, as an earlier controller reported them.
    `ending`: the fleet is to be destroyed. `redirects` counts those since the plan was applied.
    `followed`: the plan is the one by which a leader follows the load, made from the object's.
    """

    plan: Mapping[str, Any]
    generation: int
    allow_violations: bool = False
    ending: bool = False
    applied: str | None = None
    guarding: tuple[Guarding, ...] = ()
    devices: Mapping[str, str] = field(default_factory=dict)
    redirects: int = 0
    followed: bool = False


@dataclass(frozen=True, slots=True)
class FleetStanding:
    """How a fleet stands. `ready` of its `partitions` answer.

    `covers`: so many times slower than planned a model may be on all its servers while every promise is kept,
    at the partition where that is least. `trouble` is one word for what is not as planned.
    """

    ready: int
    partitions: int
    gpus: int
    redirects: int
    covers: float
    trouble: str | None
    message: str


@dataclass(frozen=True, slots=True)
class FleetReport:
    """What became of a generation. `reason` is one word, `message` says more; the rest only if it applied."""

    generation: int
    applied: bool
    reason: str
    message: str
    plan: str = ""
    partitions: int = 0
    devices: Mapping[str, str] = field(default_factory=dict)
