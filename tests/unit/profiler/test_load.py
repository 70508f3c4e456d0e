"""The load of a server: a closed loop, and requests of a decoupled model on one stream."""

import contextlib
import random
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast
from unittest.mock import Mock

import grpc
import numpy as np
import pytest
from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelStreamInferResponse

from controlplane.domain.errors import EngineError, RequestRefused
from controlplane.domain.observation import BatchStatistics, ModelStatistics
from controlplane.profiler.load import Answers, ClosedLoop, StreamCall, poisson_times
from controlplane.profiler.point import deviation_ms, executed, rate_rps
from controlplane.profiler.requests import Traffic


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


def test_the_rate_counts_whole_batches() -> None:
    ends_s = np.repeat([1.0, 1.5, 2.0, 2.5], 4)  # every half second a batch of four
    answers = Answers(ends_s[:-2], np.zeros(14))  # the last one is half answered when the clock stops
    assert rate_rps(answers, 4) == pytest.approx(8.0)


def counters(executions: int, total_ms: float) -> ModelStatistics:
    batch = BatchStatistics(executions, 0, round(total_ms * 1e6), 0)
    return ModelStatistics("m", executions, executions, executions, 0, 0, round(total_ms * 1e6), {1: batch})


def test_the_deviation_of_an_execution_is_recovered_from_sums() -> None:
    random = np.random.default_rng(1)
    times_ms = random.normal(10.0, 2.0, 4000)
    cumulated = np.concatenate([[0.0], np.cumsum(times_ms)])
    ends = np.sort(random.choice(np.arange(1, 4000), 400, replace=False))
    counted = [counters(int(i), float(cumulated[i])) for i in ends]
    assert deviation_ms(counted, 1) == pytest.approx(2.0, rel=0.1)


def test_one_window_tells_no_deviation() -> None:
    assert deviation_ms([counters(0, 0), counters(5, 50)], 1) is None
    assert deviation_ms([counters(0, 0), counters(5, 50), counters(5, 50)], 1) is None


def test_poisson_times_are_seeded_ascending_and_at_the_rate() -> None:
    times = poisson_times(200.0, 50.0, np.random.default_rng(3))
    assert times == poisson_times(200.0, 50.0, np.random.default_rng(3))
    assert times == sorted(times)
    assert len(times) == pytest.approx(10_000, rel=0.05)
    assert np.std(np.diff(times)) == pytest.approx(1 / 200, rel=0.1)


def test_a_batch_of_an_ensemble_takes_the_time_between_the_ends_of_two() -> None:
    ends_s = np.repeat([1.0, 1.4, 2.0, 2.5], 4)
    answers = Answers(ends_s, np.zeros(16))
    done = executed(Traffic((), steps=("a", "b")), [counters(0, 0), counters(16, 90)], answers, 4)
    assert (done.mean_ms, done.std_ms, done.count, done.formed) == (pytest.approx(500.0), None, 3, 1.0)


def test_the_deviations_of_an_ensembles_steps_add_up_as_squares() -> None:
    random = np.random.default_rng(1)
    ends = np.arange(0, 4001, 10)
    steps = [np.append(0.0, np.cumsum(random.normal(10.0, std, 4000))) for std in (3.0, 4.0)]
    stepped = [tuple(counters(int(i), float(step[i])) for step in steps) for i in ends]
    answers = Answers(np.arange(1.0, 5.0), np.zeros(4))
    done = executed(Traffic((), steps=("a", "b")), (), answers, 1, stepped)
    assert done.std_ms == pytest.approx(5.0, rel=0.1)
