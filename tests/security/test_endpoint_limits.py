"""Limits of an endpoint, for all its clients together: over HTTP, gRPC, compressed and streamed."""

import contextlib
import gzip
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import gateway_rig as rig
import grpc
import pytest
from background import until
from gateway_clients import SERVICE, Target, inference, served
from tritonclient.grpc import service_pb2

from controlplane.files.gateway.access import Limit
from controlplane.gateway.security.registry import LimitRegistry

GZIP = grpc.Compression.Gzip
Code = grpc.StatusCode


@dataclass(frozen=True)
class Limited:
    target: Target
    limits: LimitRegistry
    triton: rig.Triton

    def http(
        self, path: str, body: bytes | None, headers: dict[str, str] | None = None, **how: Any
    ) -> tuple[int, dict[str, str]]:
        method = "GET" if body is None else "POST"
        status, _, told = self.target.raw(method, path, body, headers, **how)
        return status, told

    def infer(self, endpoint: str, value: float = 5.0) -> tuple[int, dict[str, str]]:
        return self.http(f"/v2/models/{endpoint}/infer", body(value))

    def channel(self) -> grpc.Channel:
        return grpc.insecure_channel(self.target.grpc)

    def grpc(self, message: bytes, compression: Any = None) -> tuple[Code, dict[str, str]]:
        with self.channel() as channel:
            try:
                channel.unary_unary(f"{SERVICE}ModelInfer")(message, timeout=60, compression=compression)
            except grpc.RpcError as refusal:
                call = cast(Any, refusal)
                return call.code(), dict(
                    [*(call.initial_metadata() or ()), *(call.trailing_metadata() or ())]
                )
        return Code.OK, {}

    def streamed(self, *messages: bytes) -> list[str]:
        """The error of each answer, empty for an inference."""
        with self.channel() as channel:
            talk = channel.stream_stream(f"{SERVICE}ModelStreamInfer")(iter(messages), timeout=60)
            return [service_pb2.ModelStreamInferResponse.FromString(answer).error_message for answer in talk]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Limited]:
    here = tmp_path_factory.mktemp("limited")
    models = {"echo": "echo", "other": "echo", "slow": "slow"}
    with served(here, models) as made:
        yield Limited(made.target, LimitRegistry(made.places.state), made.triton)


@pytest.fixture
def limited(running: Limited) -> Iterator[Limited]:
    yield running
    for endpoint in tuple(running.limits.held().limits):
        running.limits.remove(endpoint)


def body(value: float = 5.0, count: int = 1) -> bytes:
    tensor = {"name": "INPUT", "datatype": "FP32", "shape": [count], "data": [value] * count}
    return json.dumps({"inputs": [tensor]}).encode()


@pytest.mark.parametrize("accused_before", [False, True])
def test_requests_at_once_are_limited_for_all_clients_together(
    limited: Limited, accused_before: bool
) -> None:
    limited.limits.set("slow", Limit(max_requests=1))
    if accused_before:  # a limit's own answer says nothing of a refusal that has ended
        limited.limits.refuse("slow", "", time.time() - 100.0)
    with limited.channel() as channel:
        with rig.held(limited.triton):
            begun = rig.noted(limited.triton.slow, "begun")
            first = channel.unary_unary(f"{SERVICE}ModelInfer").future(
                inference("slow", rig.HELD), timeout=60
            )
            until(lambda: rig.noted(limited.triton.slow, "begun") > begun)
            status, headers = limited.infer("slow")
            assert (status, headers["retry-after"]) == (429, "1")
            code, metadata = limited.grpc(inference("slow"))
            assert (code, metadata["retry-after"]) == (Code.RESOURCE_EXHAUSTED, "1")
            assert limited.http("/v2/models/slow/ready", None)[0] == 200, "a question is no inference"
            assert limited.infer("echo")[0] == 200, "another endpoint"
        assert first.result()
    until(lambda: limited.infer("slow", value=0.0)[0] == 200)


def test_the_limit_is_reached_by_as_many_requests_as_it_says(limited: Limited) -> None:
    limited.limits.set("slow", Limit(max_requests=2))
    assert limited.infer("slow", value=0.0)[0] == 200, "the endpoint is counted from now on"
    with limited.channel() as channel:
        call = channel.unary_unary(f"{SERVICE}ModelInfer")
        with rig.held(limited.triton):
            calls = [call.future(inference("slow", rig.HELD), timeout=60) for _ in range(3)]
            until(lambda: any(one.done() for one in calls))
        codes = [one.code() for one in calls]
    assert sorted(codes, key=str) == [Code.OK, Code.OK, Code.RESOURCE_EXHAUSTED]


def test_the_rate_is_limited_and_refused_requests_count_for_nothing(limited: Limited) -> None:
    limited.limits.set("echo", Limit(max_rate_rps=5))
    with limited.channel() as channel:
        call = channel.unary_unary(f"{SERVICE}ModelInfer")
        statuses = []
        # A client that never pauses is served at the rate, not kept out by its own refused requests.
        while statuses.count(200) < 12:
            statuses.append(limited.infer("echo")[0])
            with contextlib.suppress(grpc.RpcError):
                call(inference("echo"), timeout=60)
                statuses.append(200)
    assert set(statuses) == {200, 429}
    assert limited.infer("other")[0] == 200


def test_the_size_of_a_body_is_limited_however_it_is_sent(limited: Limited) -> None:
    limited.limits.set("echo", Limit(max_body_bytes=1000))
    large, path = body(count=500), "/v2/models/echo/infer"
    parts = (large[at : at + 100] for at in range(0, len(large), 100))
    refused = [
        limited.http(path, large)[0],
        limited.http(path, cast(Any, parts), encode_chunked=True)[0],
        limited.http(path, gzip.compress(large), {"Content-Encoding": "gzip"})[0],
    ]
    assert refused == [413, 413, 413]
    assert limited.grpc(inference("echo", count=500))[0] is Code.RESOURCE_EXHAUSTED
    assert limited.grpc(inference("echo", count=500), GZIP)[0] is Code.RESOURCE_EXHAUSTED
    answers = limited.streamed(inference("echo"), inference("echo", count=500), inference("echo"))
    assert [bool(error) for error in answers] == [False, True, False]
    assert "larger than this endpoint's limit" in answers[1]
    assert limited.infer("echo")[0] == 200
    assert limited.grpc(inference("echo"), GZIP)[0] is Code.OK


def test_compressed_calls_and_streamed_messages_have_a_limit_too(limited: Limited) -> None:
    limited.limits.set("echo", Limit(max_rate_rps=2))
    answers = limited.streamed(*(inference("echo") for _ in range(20)))
    assert {error for error in answers if error} == {"this endpoint has reached its limit of requests"}
    outcomes = [limited.grpc(inference("echo"), GZIP) for _ in range(20)]
    assert {code for code, _ in outcomes} <= {Code.OK, Code.RESOURCE_EXHAUSTED}
    refused = [metadata for code, metadata in outcomes if code is Code.RESOURCE_EXHAUSTED]
    assert refused
    assert all(metadata["retry-after"] == "1" for metadata in refused)


def test_a_limit_that_is_removed_holds_no_longer(limited: Limited) -> None:
    limited.limits.set("echo", Limit(max_body_bytes=10))
    assert limited.infer("echo")[0] == 413
    limited.limits.remove("echo")
    assert limited.infer("echo")[0] == 200
