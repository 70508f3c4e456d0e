"""What is seen of the running fleet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Health(StrEnum):
    """What a real inference, not a readiness flag, says of a server."""

    READY = "ready"
    STARTING = "starting"
    FAILING = "failing"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class LatencyWindow:
    """Requests of one endpoint that ended within `seconds`; latencies are None where none ended."""

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
