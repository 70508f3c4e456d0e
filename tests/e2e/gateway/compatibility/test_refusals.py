from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as tg
from gateway_clients import CLIENTS, Target, floats, refusal, tensor

pytestmark = pytest.mark.e2e


def test_unknown_model(client: Any, kind: str) -> None:
    status, words = refusal(lambda: client.infer("nope", tensor(CLIENTS[kind], floats(1))))
    assert status == ("404" if kind == "http" else "StatusCode.NOT_FOUND")
    assert words == "Request for unknown model: 'nope' is not found"
    assert not client.is_model_ready("nope")
    assert refusal(lambda: client.get_model_config("nope"))[0] == status
    assert refusal(lambda: client.get_model_metadata("nope"))[1] == words


def test_statistics_of_an_unknown_model(client: Any, kind: str) -> None:
    assert refusal(lambda: client.get_inference_statistics("nope")) == (
        "400" if kind == "http" else "StatusCode.INVALID_ARGUMENT",
        "requested model 'nope' is not available",
    )


def test_unknown_version(client: Any, kind: str) -> None:
    _, words = refusal(lambda: client.infer("echo", tensor(CLIENTS[kind], floats(1)), model_version="3"))
    assert words == "Request for unknown model: 'echo' version 3 is not found"


def test_wrong_type(client: Any, kind: str) -> None:
    inputs = tensor(CLIENTS[kind], np.array([1], dtype=np.int32), "INT32")
    status, words = refusal(lambda: client.infer("echo", inputs))
    assert status == ("400" if kind == "http" else "StatusCode.INVALID_ARGUMENT")
    assert "data-type" in words


def test_wrong_shape(client: Any, kind: str) -> None:
    inputs = tensor(CLIENTS[kind], np.ones((2, 2), dtype=np.float32))
    assert "unexpected shape" in refusal(lambda: client.infer("echo", inputs))[1]


def test_wrong_input_name(client: Any, kind: str) -> None:
    wrong = CLIENTS[kind].InferInput("WRONG", [1], "FP32")
    wrong.set_data_from_numpy(floats(1))
    assert "WRONG" in refusal(lambda: client.infer("echo", [wrong]))[1]


def test_empty_body(target: Target) -> None:
    # Without an input for a model of variable length a Triton runs it with none of its values.
    assert target.raw("POST", "/v2/models/total/infer", b"")[0] == 400


def test_broken_json(target: Target) -> None:
    status, answer, _ = target.raw("POST", "/v2/models/echo/infer", b"{bad")
    assert status == 500
    assert b"JSON" in answer


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/models/echo/infer", 405),
        ("POST", "/v2/models/echo/ready", 405),
        ("POST", "/v2/health/live", 405),
        ("GET", "/v2/repository/index", 405),
        ("GET", "/v2/nothing", 404),
        ("GET", "/", 404),
        ("GET", "/v2/models", 404),
        ("GET", "/v2/models/echo/versions/x", 404),
        ("GET", "/v2/models/nope/ready", 400),
        ("GET", "/v2/models/nope/versions/2/config", 404),
    ],
)
def test_paths_and_methods(target: Target, method: str, path: str, status: int) -> None:
    assert target.raw(method, path)[0] == status


def test_unary_grpc_to_a_decoupled_model(target: Target) -> None:
    with tg.InferenceServerClient(target.grpc) as client:
        status, _ = refusal(lambda: client.infer("repeat", tensor(tg, floats(1))))
    assert status == "StatusCode.UNIMPLEMENTED"


def test_an_unknown_method(target: Target) -> None:
    with grpc.insecure_channel(target.grpc) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/inference.GRPCInferenceService/Nothing")(b"", timeout=5)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def until_noted(note: Path, before: int) -> None:
    deadline = time.monotonic() + 10
    while (len(note.read_text()) if note.exists() else 0) <= before:
        assert time.monotonic() < deadline, "the model was never told"
        time.sleep(0.02)


def noted(target: Target) -> int:
    return len(target.slow.read_text()) if target.slow.exists() else 0


def test_a_deadline_reaches_the_model(target: Target) -> None:
    before = noted(target)
    with tg.InferenceServerClient(target.grpc) as client:
        status, _ = refusal(lambda: client.infer("slow", tensor(tg, floats(8)), client_timeout=0.3))
    assert status == "StatusCode.DEADLINE_EXCEEDED"
    until_noted(target.slow, before)


def test_a_cancelled_call_is_cancelled_in_the_model(target: Target) -> None:
    before = noted(target)
    done = threading.Event()
    with tg.InferenceServerClient(target.grpc) as client:
        call = client.async_infer("slow", tensor(tg, floats(8)), lambda result, error: done.set())
        time.sleep(0.3)
        call.cancel()
        assert done.wait(5)
    until_noted(target.slow, before)


def test_a_cancelled_stream_is_cancelled_in_the_model(target: Target) -> None:
    before = noted(target)
    with tg.InferenceServerClient(target.grpc) as client:
        client.start_stream(lambda result, error: None)
        client.async_stream_infer("slow", tensor(tg, floats(8)))
        time.sleep(0.3)
        client.stop_stream(cancel_requests=True)
    until_noted(target.slow, before)


def test_keepalive_pings_are_welcome(target: Target) -> None:
    options = tg.KeepAliveOptions(
        keepalive_time_ms=200,
        keepalive_timeout_ms=1000,
        keepalive_permit_without_calls=True,
        http2_max_pings_without_data=0,
    )
    with tg.InferenceServerClient(target.grpc, keepalive_options=options) as client:
        for _ in range(3):
            assert client.infer("echo", tensor(tg, floats(1))) is not None
            time.sleep(0.4)
