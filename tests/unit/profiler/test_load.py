"""The load of a server: a closed loop, and requests of a decoupled model on one stream."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast
from unittest.mock import Mock

import grpc
import pytest
from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelStreamInferResponse

from controlplane.domain.errors import EngineError, RequestRefused
from controlplane.profiler.load import ClosedLoop, StreamCall


class Slow(grpc.GenericRpcHandler):
    """Answers the first `b` only when released."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.arrived, self.release = threading.Event(), threading.Event()

    def service(self, _: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(self._answer)

    def _answer(self, request: bytes, _: grpc.ServicerContext) -> bytes:
        self.received.append(request)
        if request == b"b":
            self.arrived.set()
            self.release.wait(30.0)
        return b""


def test_a_sequence_is_not_cut_off_at_the_end_of_a_measurement() -> None:
    handler = Slow()
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool, handlers=(handler,))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            with ClosedLoop(f"127.0.0.1:{port}", [b"a", b"b", b"c"], 1, ends=[False, False, True]):
                assert handler.arrived.wait(30.0)
                # Released once the loop is about to end, in the middle of a sequence.
                threading.Timer(0.2, handler.release.set).start()
        finally:
            server.stop(None)
    assert handler.received[-1] == b"c"


def test_an_interruption_of_the_entry_closes_the_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    channel = Mock()
    channel.unary_unary.side_effect = KeyboardInterrupt
    monkeypatch.setattr("controlplane.profiler.load.grpc.insecure_channel", lambda *_, **__: channel)
    with pytest.raises(KeyboardInterrupt), ClosedLoop("127.0.0.1:1", [b""], 1):
        pass
    channel.close.assert_called_once()


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.timeout(60, method="thread")
def test_an_interruption_at_any_moment_of_the_entry_ends_it() -> None:
    """Within gRPC's own code one left a call that the channel's end waited for."""
    chance, main = random.Random(1), threading.get_ident()
    server = grpc.server(ThreadPoolExecutor(8), handlers=(Slow(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        for _ in range(60):
            moment_s = chance.uniform(0.0, 0.008)
            timer = threading.Timer(moment_s, signal.pthread_kill, (main, signal.SIGUSR1))
            with contextlib.suppress(KeyboardInterrupt):
                timer.start()
                with ClosedLoop(f"127.0.0.1:{port}", [b"a"], 8) as loop:
                    loop.run(30.0)
            timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
        server.stop(None)


Answering = Callable[[ModelInferRequest], list[ModelStreamInferResponse]]


class Stream:
    """The answers of one stream."""

    def __init__(self, requests: Iterator[bytes], answering: Answering) -> None:
        self._requests = requests
        self._answering = answering

    def __iter__(self) -> Iterator[ModelStreamInferResponse]:
        for body in self._requests:
            yield from self._answering(ModelInferRequest.FromString(body))

    def cancel(self) -> None:
        pass


class Channel:
    def __init__(self, answering: Answering) -> None:
        self._answering = answering

    def stream_stream(self, *_: object, **__: object) -> Callable[[Iterator[bytes]], Stream]:
        return lambda requests: Stream(requests, self._answering)


def call(answering: Answering) -> StreamCall:
    return StreamCall(cast(grpc.Channel, Channel(answering)))


def answer(request: ModelInferRequest, *, final: bool, error: str = "") -> ModelStreamInferResponse:
    made = ModelStreamInferResponse(error_message=error)
    made.infer_response.id = request.id
    if final:
        made.infer_response.parameters["triton_final_response"].bool_param = True
    return made


REQUEST: Any = ModelInferRequest(model_name="m", id="mine").SerializeToString()


def test_a_request_ends_with_its_last_answer() -> None:
    held: list[ModelInferRequest] = []

    def answering(request: ModelInferRequest) -> list[ModelStreamInferResponse]:
        held.append(request)
        if len(held) == 1:
            return [answer(request, final=False)]
        # The second request's answers come before the end of the first one's.
        first, second = held
        return [answer(second, final=True), answer(first, final=False), answer(first, final=True)]

    stream = call(answering)
    one, two = stream(REQUEST), stream(REQUEST)
    assert two.result(5) >= one.result(5)
    assert [r.model_name for r in held] == ["m", "m"]
    assert held[0].id != held[1].id
    assert held[0].parameters["triton_enable_empty_final_response"].bool_param
    stream.close()


def test_a_refusal_is_that_of_its_request() -> None:
    def answering(request: ModelInferRequest) -> list[ModelStreamInferResponse]:
        refused = request.model_name == "other"
        return [answer(request, final=True, error="wants a JSON object" if refused else "")]

    stream = call(answering)
    other = stream(ModelInferRequest(model_name="other").SerializeToString())
    with pytest.raises(RequestRefused, match="wants a JSON object"):
        other.result(5)
    assert stream(REQUEST).result(5) > 0
    stream.close()


def test_a_stream_that_ends_fails_what_is_under_way() -> None:
    sent = threading.Event()

    def answering(request: ModelInferRequest) -> list[ModelStreamInferResponse]:
        sent.wait(5)
        raise grpc.RpcError("gone")

    stream = call(answering)
    one = stream(REQUEST)
    sent.set()
    assert isinstance(one.exception(5), grpc.RpcError)
    stream.close()


def test_a_request_after_the_end_of_its_stream_fails() -> None:
    stream = call(lambda request: [])
    stream.close()
    with pytest.raises(EngineError, match="ended the stream"):
        stream(REQUEST).result(5)
