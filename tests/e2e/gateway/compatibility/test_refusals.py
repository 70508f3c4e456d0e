from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import gateway_rig as rig
import grpc
import numpy as np
import pytest
import tritonclient.grpc as tg
from background import until
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
        channel.unary_unary("/inference.GRPCInferenceService/Nothing")(b"", timeout=60)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


@contextlib.contextmanager
def cancelled(target: Target) -> Iterator[Callable[[], None]]:
    """The model is told that what is asked within is wanted no more; what is given waits until it runs."""
    before = {what: rig.noted(target.slow, what) for what in ("begun", "cancelled")}
    yield lambda: until(lambda: rig.noted(target.slow, "begun") > before["begun"])
    until(lambda: rig.noted(target.slow, "cancelled") > before["cancelled"])


def test_a_deadline_reaches_the_model(target: Target) -> None:
    with cancelled(target), tg.InferenceServerClient(target.grpc) as client:
        for seconds in (0.5, 4.0, 32.0):
            begun = rig.noted(target.slow, "begun")
            status, _ = refusal(
                lambda s=seconds: client.infer("slow", tensor(tg, floats(60)), client_timeout=s)
            )
            assert status == "StatusCode.DEADLINE_EXCEEDED"
            # One that passed before this host had begun with the model shows nothing.
            if rig.noted(target.slow, "begun") > begun:
                break


def test_a_cancelled_call_is_cancelled_in_the_model(target: Target) -> None:
    done = threading.Event()
    with cancelled(target) as await_begun, tg.InferenceServerClient(target.grpc) as client:
        call = client.async_infer("slow", tensor(tg, floats(20)), lambda result, error: done.set())
        await_begun()
        call.cancel()
        assert done.wait(60)


def test_a_cancelled_stream_is_cancelled_in_the_model(target: Target) -> None:
    with cancelled(target) as await_begun, tg.InferenceServerClient(target.grpc) as client:
        client.start_stream(lambda result, error: None)
        client.async_stream_infer("slow", tensor(tg, floats(20)))
        await_begun()
        client.stop_stream(cancel_requests=True)


def test_keepalive_pings_are_welcome(target: Target) -> None:
    options = tg.KeepAliveOptions(
        keepalive_time_ms=200,
        keepalive_timeout_ms=10_000,
        keepalive_permit_without_calls=True,
        http2_max_pings_without_data=0,
    )
    with tg.InferenceServerClient(target.grpc, keepalive_options=options) as client:
        for _ in range(3):
            assert client.infer("echo", tensor(tg, floats(1))) is not None
            time.sleep(0.4)
