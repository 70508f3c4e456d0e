"""A client's trace: its context reaches Triton unchanged, and Triton and the gateway send spans of it."""

import gzip
import json
import os
import time
from collections.abc import Callable, Iterator

import gateway_rig as rig
import pytest
import requests
import tritonclient.grpc as tg
from background import until
from gateway_clients import floats, tensor
from http_server import Quiet, serving
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from controlplane.domain.fleet import Route
from controlplane.domain.server_options import ServerOptions

BODY = json.dumps({"inputs": [{"name": "INPUT", "shape": [1], "datatype": "FP32", "data": [1.0]}]}).encode()


class Collector:
    """An OTLP receiver that keeps what servers export."""

    def __init__(self) -> None:
        bodies: list[bytes] = []  # Triton's, which are JSON
        exported: list[ExportTraceServiceRequest] = []

        class Handler(Quiet):
            def do_POST(self) -> None:
                body = self.body()
                if self.headers["Content-Type"] == "application/json":
                    bodies.append(body)
                else:
                    body = gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body
                    exported.append(ExportTraceServiceRequest.FromString(body))
                self.answer()

        self._bodies = bodies
        self._exported = exported
        self.handler = Handler
        self.url = ""

    def has(self, trace: str, parent: str) -> bool:
        """Whether a span of this trace was exported that names this parent."""
        spans = [
            span
            for body in self._bodies
            for resource in json.loads(body)["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]
        return any((s["traceId"], s.get("parentSpanId")) == (trace, parent) for s in spans)

    def of_gateway(self, trace: str) -> list[Span]:
        """The gateway's spans in a trace."""
        scopes = [s for body in [*self._exported] for r in body.resource_spans for s in r.scope_spans]
        return [span for scope in scopes for span in scope.spans if span.trace_id.hex() == trace]


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    made = Collector()
    with serving(made.handler) as port:
        made.url = f"http://{rig.HOST}:{port}/v1/traces"
        yield made


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[rig.Ports]:
    """A gateway that begins to send spans while it runs, before a Triton that traces every request."""
    settings = (
        "mode=opentelemetry",
        "rate=1",
        "level=TIMESTAMPS",
        f"opentelemetry,url={collector.url}",
        "opentelemetry,bsp_schedule_delay=100",
    )
    # As a spec's `triton_args`, which refuse what Trisect sets itself.
    options = ServerOptions(tuple(f"--trace-config={setting}" for setting in settings))
    with (
        rig.tritons(tmp_path_factory.mktemp("tritons"), options.triton_args, one={"echo": "echo"}) as running,
        rig.a_gateway(tmp_path_factory.mktemp("gateway")) as (gateway, found),
    ):
        gateway.commit({"echo": Route((running["one"].backend,))})
        gateway.start(rig.options(found, trace_endpoint=collector.url))  # as `ctl apply` of a running fleet
        yield found


def http_routed(ports: rig.Ports, context: str) -> None:
    _post(ports, context, BODY)


def http_by_the_facade(ports: rig.Ports, context: str) -> None:
    """HAProxy cannot read the model's name in a compressed body."""
    _post(ports, context, gzip.compress(BODY), {"Content-Encoding": "gzip"})


def grpc_routed(ports: rig.Ports, context: str) -> None:
    with tg.InferenceServerClient(f"{rig.HOST}:{ports.grpc}") as client:
        client.infer("echo", tensor(tg, floats(1)), headers={"traceparent": context})


def grpc_by_the_facade(ports: rig.Ports, context: str) -> None:
    with tg.InferenceServerClient(f"{rig.HOST}:{ports.grpc}") as client:
        headers = {"traceparent": context}
        repetitive = "x" * 1000  # gRPC compresses a message only where that makes it smaller
        inputs = tensor(tg, floats(1))
        client.infer("echo", inputs, request_id=repetitive, headers=headers, compression_algorithm="gzip")


@pytest.mark.parametrize("call", [http_routed, http_by_the_facade, grpc_routed, grpc_by_the_facade])
def test_the_spans_of_server_and_gateway_belong_to_the_clients_trace(
    call: Callable[[rig.Ports, str], None], ports: rig.Ports, collector: Collector
) -> None:
    trace, parent = os.urandom(16).hex(), os.urandom(8).hex()
    began_ns = time.time_ns()
    call(ports, f"00-{trace}-{parent}-01")
    ended_ns = time.time_ns()
    until(lambda: collector.has(trace, parent))
    until(lambda: bool(collector.of_gateway(trace)))
    (span,) = collector.of_gateway(trace)
    assert span.parent_span_id.hex() == parent
    # In the log's unit. The client may have its answer before the gateway looks at the clock.
    assert began_ns // 1000 <= span.start_time_unix_nano // 1000 <= ended_ns // 1000
    assert span.start_time_unix_nano < span.end_time_unix_nano
    by_the_facade = call in (http_by_the_facade, grpc_by_the_facade)
    assert span.name == ("gateway" if by_the_facade else "gateway echo")


def test_the_gateway_sends_no_span_of_a_request_that_its_client_does_not_sample(
    ports: rig.Ports, collector: Collector
) -> None:
    left_out, sent = os.urandom(16).hex(), os.urandom(16).hex()
    http_routed(ports, f"00-{left_out}-{os.urandom(8).hex()}-00")
    http_routed(ports, f"00-{sent}-{os.urandom(8).hex()}-01")
    until(lambda: bool(collector.of_gateway(sent)))
    assert collector.of_gateway(left_out) == []


def _post(ports: rig.Ports, context: str, body: bytes, headers: dict[str, str] | None = None) -> None:
    answer = requests.post(
        f"http://{rig.HOST}:{ports.http}/v2/models/echo/infer",
        body,
        headers={"traceparent": context, "Content-Type": "application/json", **(headers or {})},
        timeout=60,
    )
    answer.raise_for_status()
