"""The catalogue of Trisect's metrics, and a page of them in Prometheus' text format.

The page is written by hand: `prometheus_client` takes several microseconds for a sample, and a page of a
thousand endpoints has tens of thousands.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Kind(StrEnum):
    """The type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, eq=False)  # a key of many lookups
class Family:
    """One metric: its name as Prometheus stores it, its type, help, labels, and the process it comes from."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    source: str = "monitor"


def _controller(name: str, kind: Kind, text: str, *labels: str) -> Family:
    return Family(name, kind, text, labels, "controller")


_WHERE = ("endpoint", "partition", "role")

BUILD = Family("trisect_build_info", Kind.GAUGE, "1, with the version of Trisect.", ("version",))
PLAN = Family(
    "trisect_plan_info", Kind.GAUGE, "1, with how the plan was made.", ("strategy", "rule", "latency_model")
)
PLANNED_GPUS = Family("trisect_planned_gpus", Kind.GAUGE, "GPUs (or cores) of the plan.", ("type",))
SLO = Family("trisect_slo_seconds", Kind.GAUGE, "The strictest SLO of an endpoint: its P99.", ("endpoint",))
PROMISED = Family("trisect_planned_rps", Kind.GAUGE, "Requests a second that are planned for.", ("endpoint",))
SEEN = Family("trisect_request_rps", Kind.GAUGE, "Requests a second, last minute.", ("endpoint",))
P50 = Family("trisect_request_p50_seconds", Kind.GAUGE, "Median duration, last minute.", ("endpoint",))
P99 = Family("trisect_request_p99_seconds", Kind.GAUGE, "P99 of the durations, last minute.", ("endpoint",))
ROUTE = Family("trisect_route_info", Kind.GAUGE, "1 where requests of an endpoint go.", _WHERE)
REQUESTS = Family(
    "trisect_requests_total", Kind.COUNTER, "Inferences that ended, by status.", (*_WHERE, "protocol", "code")
)
SIZE = Family("trisect_request_bytes_total", Kind.COUNTER, "Bytes of inferences.", (*_WHERE, "direction"))
LATE = Family(
    "trisect_late_requests_total",
    Kind.COUNTER,
    "Inferences that failed or were later than the SLO.",
    ("endpoint",),
)
OVERLOADED = Family(
    "trisect_refused_requests_total",
    Kind.COUNTER,
    "Requests refused in overload: by the gateway, or by the queue policy of the model (`drop_after_ms`).",
    ("endpoint",),
)
MEASURED = Family(
    "trisect_slo_requests_total", Kind.COUNTER, "Inferences of an endpoint with an SLO.", ("endpoint",)
)
DURATION = Family(
    "trisect_request_duration_seconds",
    Kind.HISTOGRAM,
    "From arrival at the gateway to the last byte of the answer; one edge is the SLO.",
    ("endpoint",),
)
LINES = Family("trisect_telemetry_lines_total", Kind.COUNTER, "Lines of the gateway's log.")
LOST = Family("trisect_telemetry_lines_lost_total", Kind.COUNTER, "Lines of the log that never came.")
CONTROLLER_UP = Family("trisect_controller_up", Kind.GAUGE, "1 where the fleet's controller answers.")

SLOT = Family(
    "trisect_gateway_slot_info",
    Kind.GAUGE,
    "1, with the endpoints of each of HAProxy's backends in use, joined by commas.",
    ("proxy", "endpoint"),
)

EVENTS = _controller("trisect_events_total", Kind.COUNTER, "Events of the controller.", "kind", "level")
REDIRECTS = _controller("trisect_redirects_total", Kind.COUNTER, "Redirects by the controller.", "partition")
UNWRITTEN = _controller("trisect_unwritten_total", Kind.COUNTER, "Writes that the disk refused.")
BUSY = _controller(
    "trisect_controller_busy_seconds_total", Kind.COUNTER, "Time that the deciding thread spent."
)
GATEWAY_UP = _controller(
    "trisect_gateway_up", Kind.GAUGE, "1 where this process of the gateway runs.", "process"
)
PHASE = _controller(
    "trisect_partition_phase", Kind.GAUGE, "1 for the present phase of a partition.", "partition", "phase"
)
SHARE = _controller(
    "trisect_partition_share_ratio", Kind.GAUGE, "The active share; 1 is a whole GPU.", "partition", "gpu"
)
BREAKER = _controller(
    "trisect_breaker_open", Kind.GAUGE, "1 where starts fail so often that they are paused.", "partition"
)
STANDBY = _controller("trisect_standby_ready", Kind.GAUGE, "1 where a shadow stands by.", "partition")
ARRIVALS = _controller(
    "trisect_rate_rps", Kind.GAUGE, "Arrivals of the endpoint's queue, moving mean.", "partition", "endpoint"
)
QUEUE_PLANNED = _controller(
    "trisect_queue_planned_rps", Kind.GAUGE, "Planned arrivals of its queue.", "partition", "endpoint"
)
EVIDENCE = _controller(
    "trisect_evidence_ratio", Kind.GAUGE, "Of late answers; 1 is a broken promise.", "partition", "endpoint"
)
GPUS = _controller("trisect_gpus", Kind.GAUGE, "GPUs of this host.", "type", "state")
FORECAST = _controller(
    "trisect_forecast_rps", Kind.GAUGE, "The upper bound of a workload's forecast rate.", "workload"
)

CATALOGUE: tuple[Family, ...] = tuple(value for value in list(vars().values()) if isinstance(value, Family))


class Page:
    """Samples by metric, in the order in which the metrics were first given."""

    def __init__(self) -> None:
        self._lines: dict[Family, list[str]] = {}

    def add(self, family: Family, value: float, *labels: str) -> None:
        """Add one sample; `labels` are the values of the family's labels."""
        lines = self._lines.setdefault(family, [])
        lines.append(_sample(family.name, family.labels) % (*map(_escaped, labels), number(value)))

    def add_histogram(
        self, family: Family, edges: Sequence[float], counts: Sequence[int], total: float, *labels: str
    ) -> None:
        """Add one histogram: `counts`: a bin below each edge and one above all; `total`: the sum."""
        lines = self._lines.setdefault(family, [])
        own = tuple(map(_escaped, labels))
        bucket = _sample(f"{family.name}_bucket", (*family.labels, "le"))
        so_far = 0
        for edge, count in zip((*edges, math.inf), counts, strict=True):
            so_far += count
            lines.append(bucket % (*own, number(edge), so_far))
        lines.append(_sample(f"{family.name}_sum", family.labels) % (*own, number(total)))
        lines.append(_sample(f"{family.name}_count", family.labels) % (*own, so_far))

    def text(self) -> str:
        """Return the page."""
        parts = []
        for family, lines in self._lines.items():
            parts.append(f"# HELP {family.name} {family.help}")
            parts.append(f"# TYPE {family.name} {family.kind}")
            parts += lines
        return "\n".join((*parts, ""))


@functools.lru_cache(maxsize=4096)
def number(value: float) -> str:
    """Format a value as Prometheus reads it."""
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if float(value).is_integer() else repr(float(value))


@functools.cache
def _sample(name: str, labels: tuple[str, ...]) -> str:
    """Return the template of a line, for the labels' values and the number."""
    inside = ",".join(f'{label}="%s"' for label in labels)
    return f"{name}{{{inside}}} %s" if labels else f"{name} %s"


@functools.lru_cache(maxsize=65536)
def _escaped(value: str) -> str:
    return value if value.isalnum() else value.translate(_ESCAPES)
