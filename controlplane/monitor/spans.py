"""The gateway's spans in its clients' traces, from the lines of the log, sent to an OpenTelemetry collector.

HAProxy writes the `traceparent` of a request that its client samples behind the fields of the line; the other
requests have `-` there. (HAProxy 2.6 cannot send spans itself.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from controlplane.domain.fleet import name_of
from controlplane.monitor.records import FIELDS, SERVER_FAULTS_GRPC, grpc_status, protocol_of, server_of

SERVICE = "trisect-gateway"
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_CONTEXT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f][13579bdf]")
_EXPORT_TIMEOUT_S = 5.0
_MOST_WAITING = 2048
"""Spans that wait for the collector. Of more, the oldest are dropped, so that a collector that is away costs
no memory and no request."""
_BATCH_MS = 1000.0


class Request(NamedTuple):
    """A sampled request. `endpoint` is empty for one of the facade, `server`, a name, without a server."""

    trace_id: int
    parent_id: int
    protocol: str
    endpoint: str
    server: str
    http: int | None
    grpc: int | None
    begin_us: int
    end_us: int

    @property
    def failed(self) -> bool:
        """Whether the fleet failed."""
        return (self.http or 0) >= 500 or self.grpc in SERVER_FAULTS_GRPC


def sampled(line: bytes) -> Request | None:
    """Return the request of a line; None where its client does not sample it, or the line has no context."""
    words = line.decode(errors="replace").split()
    context = _CONTEXT.fullmatch(words[FIELDS]) if len(words) > FIELDS else None
    if context is None:
        return None
    trace_id, parent_id = (int(part, 16) for part in context.groups())
    sender, _, endpoint, server, backend, http, grpc, *_ = words
    begin_us, end_us = words[FIELDS - 2 : FIELDS]
    if not (trace_id and parent_id and begin_us.isdigit() and end_us.isdigit()):
        return None
    return Request(
        trace_id,
        parent_id,
        protocol_of(sender),
        "" if endpoint == "-" else endpoint,
        name_of(server_of(server, backend)),
        int(http) if http.isdigit() else None,
        grpc_status(sender, grpc),
        int(begin_us),
        int(end_us),
    )


class Spans:
    """Sends a span for each sampled request, in a thread of its own."""

    def __init__(self, collector: str) -> None:
        resource = Resource.create({SERVICE_NAME: SERVICE})
        # What a client samples is sent, whatever OTEL_TRACES_SAMPLER says.
        self._provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=collector, timeout=_EXPORT_TIMEOUT_S)
        self._provider.add_span_processor(
            BatchSpanProcessor(exporter, max_queue_size=_MOST_WAITING, schedule_delay_millis=_BATCH_MS)
        )
        self._tracer = self._provider.get_tracer("trisect")

    def take(self, lines: Sequence[bytes]) -> None:
        """Send a span for each line of a sampled request, later: this never waits for the collector."""
        for line in lines:
            if (request := sampled(line)) is not None:
                self._send(request)

    def close(self) -> None:
        """Send what waits, and end the thread."""
        self._provider.shutdown()

    def _send(self, request: Request) -> None:
        parent = SpanContext(request.trace_id, request.parent_id, is_remote=True, trace_flags=_SAMPLED)
        span = self._tracer.start_span(
            f"gateway {request.endpoint}".rstrip(),
            context=set_span_in_context(NonRecordingSpan(parent)),
            kind=SpanKind.SERVER,
            attributes=_attributes(request),
            start_time=request.begin_us * 1000,
        )
        if request.failed:
            span.set_status(Status(StatusCode.ERROR))
        span.end(end_time=max(request.begin_us, request.end_us) * 1000)


def _attributes(request: Request) -> dict[str, str | int]:
    """Return a span's attributes, by OpenTelemetry's conventions where there is one."""
    own = {"trisect.endpoint": request.endpoint, "trisect.server": request.server}
    found: dict[str, str | int] = {key: value for key, value in own.items() if value}
    if request.protocol == "grpc":
        return {**found, "rpc.system": "grpc", "rpc.grpc.status_code": request.grpc or 0}
    return found if request.http is None else {**found, "http.response.status_code": request.http}
