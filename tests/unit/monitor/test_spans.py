"""The gateway's spans, from the lines of its log."""

import threading

import pytest
from http_server import Quiet, serving
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from controlplane.monitor.audit import entry
from controlplane.monitor.spans import Request, Spans, sampled

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
LINE = "grpc:h1 7 rank one:abc g_3 200 0 -- 10 20 1000000 1002500"
AUDITED = "cn=a 10.0.0.1 r1 POST /inference.GRPCInferenceService/ModelInfer"


def line(context: str, fixed: str = LINE) -> bytes:
    return f"{fixed} {context}".encode()


def test_a_sampled_request_is_read_with_its_parent_and_times() -> None:
    expected = Request(int(TRACE, 16), int(PARENT, 16), "grpc", "rank", "one", 200, 0, 1000000, 1002500)
    assert sampled(line(f"00-{TRACE}-{PARENT}-01")) == expected
    assert sampled(line(f"00-{TRACE}-{PARENT}-03 {AUDITED}")) == expected, "flags beside sampled"


@pytest.mark.parametrize(
    "context",
    [
        "-",
        f"00-{TRACE}-{PARENT}-00",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{PARENT}",
        AUDITED,
    ],
)
def test_a_request_without_a_sampled_context_has_no_span(context: str) -> None:
    assert sampled(line(context)) is None
    assert sampled(LINE.encode()) is None


@pytest.mark.parametrize(
    ("words", "endpoint", "failed"),
    [
        ("rank one:abc g_3 200 0", "rank", False),
        ("rank one:abc g_3 200 14", "rank", True),
        ("rank one:abc g_3 503 -", "rank", True),
        ("rank one:abc g_3 404 -", "rank", False),
        ("- one:abc g_3 200 0", "", False),  # a request of the facade
    ],
)
def test_a_failure_of_the_fleet_is_an_error(words: str, endpoint: str, failed: bool) -> None:
    found = sampled(line(f"00-{TRACE}-{PARENT}-01", LINE.replace("rank one:abc g_3 200 0", words)))
    assert found is not None
    assert (found.endpoint, found.failed) == (endpoint, failed)


def test_the_audit_log_says_the_same_of_a_traced_line() -> None:
    plain = entry(line(AUDITED))
    assert plain is not None
    assert entry(line(f"00-{TRACE}-{PARENT}-01 {AUDITED}")) == plain
    assert entry(line(f"- {AUDITED}")) == plain
    assert entry(line("-")) is None


class Collector(Quiet):
    """Answers once it may, and counts spans."""

    may_answer = threading.Event()
    spans = 0

    def do_POST(self) -> None:
        body = self.body()
        self.may_answer.wait(60)
        request = ExportTraceServiceRequest.FromString(body)
        Collector.spans += sum(len(s.spans) for r in request.resource_spans for s in r.scope_spans)
        self.answer()


def test_a_collector_that_does_not_answer_costs_spans_and_no_time() -> None:
    with serving(Collector) as port:
        spans = Spans(f"http://127.0.0.1:{port}/v1/traces")
        spans.take([line(f"00-{TRACE}-{PARENT}-01")] * 5000)
        Collector.may_answer.set()
        spans.close()
    assert 2048 <= Collector.spans <= 2048 + 512, "what waits, and the batch that was on its way"
