"""What is seen of the running fleet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Health(StrEnum):
    """What a real inference, not a readiness flag, says of a server."""

    READY = "ready"
    STARTING = "starting"
    UNLOADED = "unloaded"
    """A warm shadow: the server is up, its models are not loaded."""
    IMPAIRED = "impaired"
    """It runs, and a process of one of its models died: some or all of what it is sent will be refused."""
    FAILING = "failing"
    """It runs, and inferences fail or are not answered in time."""
    GONE = "gone"


class Answer(NamedTuple):
    """One request that ended: when (monotonic clock), how long after it arrived at the gateway, by whom.

    `failed`: the server's fault, not the client's (a bad input is an answer). `server` is empty where none
    that is known took it: nobody was there, or who did is stopped by now.
    """

    ended_s: float
    latency_ms: float
    failed: bool
    endpoint: str
    server: str


class News(NamedTuple):
    """What an engine told without being asked: these servers are lost, and why.

    One death names one server; a fault of a GPU (`device`, its UUID) names every server on it. `impaired`: it
    runs on, and only a process of one of its models died.
    """

    servers: tuple[str, ...]
    reason: str
    device: str | None = None
    impaired: bool = False


@dataclass(frozen=True, slots=True)
class ServerSeen:
    """One server at one moment: its health and the requests it still owes an answer to.

    `queue_ms` and `compute_ms` are Triton's means over the last moments, None where not asked or idle.
    `inferences`: how many a request carried, by the endpoint that bears the model; without those not asked.
    """

    health: Health
    in_flight: int = 0
    queue_ms: float | None = None
    compute_ms: float | None = None
    reason: str = ""
    inferences: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostSeen:
    """How far the host holds up what runs under no quota of ours, over the last moments; all are fractions.

    `waiting`: of the time that the gateway was ready to run, what it waited for a core. `steal`: of the
    cores' time, what the hypervisor gave to others. `throttled`: of the time, what the gateway's cgroup was
    held at its own limit.
    """

    waiting: float
    steal: float = 0.0
    throttled: float = 0.0


@dataclass(frozen=True, slots=True)
class FleetSeen:
    """The fleet at one moment: what ended since the moment before, in order, and every server by name.

    A server that is not named is gone. `host` is None where it is not read: nothing is under suspicion.
    """

    now_s: float
    answers: tuple[Answer, ...]
    servers: Mapping[str, ServerSeen]
    host: HostSeen | None = None


@dataclass(frozen=True, slots=True)
class Guarding:
    """How the controller guards one partition; times are seconds since the epoch.

    `standby` is the server's name, ready or not; None where nothing stands by. `failed_starts` failed in a
    row; with the breaker open nothing is started before `retry_at_s`.
    """

    partition: str
    phase: str
    since_s: float
    standby: str | None
    standby_ready: bool
    failed_starts: int
    breaker_open: bool
    retry_at_s: float | None


@dataclass(frozen=True, slots=True)
class LatencyWindow:
    """Requests of one endpoint that ended within the last `seconds`; latencies are None where none ended.

    `seconds` is what was asked for, or less where the first request came later: a rate is of that time.
    """

    endpoint: str
    seconds: float
    requests: int
    errors: int
    p50_ms: float | None
    p99_ms: float | None


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """Triton's cumulative counters for one batch size: executions and their total times."""

    executions: int
    compute_input_ns: int
    compute_infer_ns: int
    compute_output_ns: int


@dataclass(frozen=True, slots=True)
class ModelStatistics:
    """Triton's cumulative counters for one model (GET /v2/models/M/stats)."""

    model: str
    inferences: int
    executions: int
    successes: int
    failures: int
    queue_ns: int
    success_ns: int
    batches: Mapping[int, BatchStatistics]
