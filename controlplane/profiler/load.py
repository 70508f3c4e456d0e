"""Load for a server: a closed loop (a constant number of requests in flight).

To keep the generator out of the measurement, requests are serialized once and answers are not parsed. A
request costs about a tenth of a millisecond of another core. Requests of a decoupled model go over one
stream: each is answered any number of times, then ends.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Protocol

import grpc
import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelStreamInferResponse

from controlplane.domain.errors import EngineError, RequestRefused, server_words

_STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
_FINAL = "triton_final_response"
_CLOSE_S = 5.0


class StreamCall:
    """Sends requests on one stream, many at a time, and matches the answers by the requests' ids.

    A call's result is the time of its first answer; it is done with the last one. An answer that carries the
    end alone counts as an answer only where there is no other.
    """

    def __init__(self, channel: grpc.Channel) -> None:
        self._outgoing: SimpleQueue[bytes | None] = SimpleQueue()
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[str, Future[float]] = {}
        self._first_s: dict[str, float] = {}
        self._ended: Exception | None = None
        method = channel.stream_stream(
            _STREAM, request_serializer=None, response_deserializer=ModelStreamInferResponse.FromString
        )
        self._answers = method(iter(self._outgoing.get, None))
        self._reader = threading.Thread(target=self._read, args=(self._answers,), daemon=True)
        self._reader.start()

    def __call__(self, request: bytes) -> Future[float]:
        """Send a serialized request."""
        own = ModelInferRequest(id=str(next(self._ids)))
        own.parameters["triton_enable_empty_final_response"].bool_param = True
        answered: Future[float] = Future()
        with self._lock:
            ended = self._ended
            if ended is None:
                self._waiting[own.id] = answered
        if ended is not None:
            answered.set_exception(ended)
            return answered
        # Serialized messages one after another are one merged message.
        self._outgoing.put(request + own.SerializeToString())
        return answered

    def close(self) -> None:
        """End the stream."""
        self._outgoing.put(None)
        self._answers.cancel()
        self._reader.join(_CLOSE_S)

    def _read(self, answers: Iterator[ModelStreamInferResponse]) -> None:
        ended: Exception = EngineError("the server ended the stream")
        try:
            for answer in answers:
                self._take(answer, time.monotonic())
        except grpc.RpcError as error:
            ended = error
        with self._lock:
            self._ended = ended
            left, self._waiting = list(self._waiting.values()), {}
        for one in left:
            one.set_exception(ended)

    def _take(self, answer: ModelStreamInferResponse, now_s: float) -> None:
        response = answer.infer_response
        with self._lock:
            first_s = self._first_s.setdefault(response.id, now_s)
            if not answer.error_message and not response.parameters[_FINAL].bool_param:
                return
            del self._first_s[response.id]
            waiting = self._waiting.pop(response.id, None)
        if waiting is None:
            return
        if answer.error_message:
            waiting.set_exception(RequestRefused(server_words(answer.error_message)))
        else:
            waiting.set_result(first_s)


_METHOD = "/inference.GRPCInferenceService/ModelInfer"
OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
ANSWER_LATE_S = 30.0
"""The longest wait for an answer; then the request counts as failed."""

_UNANSWERED = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
)
"""Codes that the gRPC client itself sets if no answer comes."""

FloatArray = NDArray[np.float64]


class Answer(Protocol):
    """A request under way."""

    def exception(self) -> BaseException | None:
        """Return the request's failure, once it has ended."""

    def result(self) -> Any:
        """Return the request's result, once it has ended."""

    def add_done_callback(self, done: Callable[[Any], None], /) -> None:
        """Call `done` with this answer when the request has ended."""


Call = Callable[[bytes], Answer]


@dataclass(frozen=True, slots=True)
class Answers:
    """The ended requests in order: the end (time.monotonic), and the latency since the due time.

    Of a decoupled model the end is that of the last answer; `first_ms` is the latency of the first one.
    """

    ended_s: FloatArray
    latency_ms: FloatArray
    first_ms: FloatArray | None = None


class ClosedLoop:
    """Keeps `concurrency` requests in flight from entry to exit: each answer sends the next request in turn.

    `streamed` for a decoupled model: the next request follows the last answer. `ends` says after which of the
    requests the loop may end, by default after any: a server would keep a sequence that is cut off. After a
    failed request every call raises: RequestRefused with the server's message if it answered with an error,
    EngineError if no answer came.
    """

    def __init__(
        self,
        target: str,
        requests: Sequence[bytes],
        concurrency: int,
        *,
        streamed: bool = False,
        ends: Sequence[bool] | None = None,
        late_s: float = ANSWER_LATE_S,
    ) -> None:
        self._target = target
        self._requests = itertools.cycle(zip(requests, ends or [True] * len(requests), strict=True))
        self._concurrency = concurrency
        self._changed = threading.Condition()
        self._ended: list[float] = []
        self._latency_s: list[float] = []
        self._first_s: list[float] = []
        self._streamed = streamed
        self._late_s = late_s
        self._stream: StreamCall | None = None
        self._under_way = 0
        self._awaited = 0
        self._stopping = False
        self._failure: EngineError | None = None

    def __enter__(self) -> ClosedLoop:
        self._channel = grpc.insecure_channel(self._target, options=OPTIONS)
        try:
            # Signals interrupt the main thread. Within gRPC's own code that would leave a call without the
            # thread that ends it, and closing the channel would wait for that call for ever.
            with ThreadPoolExecutor(1) as pool:
                pool.submit(self._begin).result()
        except BaseException:  # such as Ctrl-C: there is no exit without an entry
            self._stopping = True
            self._channel.close()
            raise
        return self

    def _begin(self) -> None:
        if self._streamed:
            self._stream = StreamCall(self._channel)
        self._call: Call = self._stream or inference(self._channel, self._late_s)
        self._under_way = self._concurrency
        for _ in range(self._concurrency):
            self._send()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._stopping = True
            self._changed.wait_for(lambda: self._under_way == 0, self._late_s)
        if self._stream is not None:
            self._stream.close()
        self._channel.close()

    @property
    def answered(self) -> int:
        """The number of answers so far."""
        return len(self._ended)

    def wait_for(self, answers: int, *, deadline_s: float) -> None:
        """Wait for so many answers, counted from entry. Raises EngineError at the deadline."""
        with self._changed:
            self._awaited = answers
            met = self._changed.wait_for(lambda: self._failure or len(self._ended) >= answers, deadline_s)
        self._check()
        if not met:
            raise EngineError(
                f"{self._target}: {len(self._ended)} of {answers} answers within {deadline_s:.0f} s"
            )

    def run(self, seconds: float) -> None:
        """Run for a time. Raises at once where a request fails."""
        with self._changed:
            self._awaited = 0
            self._changed.wait_for(lambda: self._failure is not None, seconds)
        self._check()

    def answers(self, first: int = 0) -> Answers:
        """Return the answers so far without the `first` ones."""
        with self._changed:
            firsts = 1000.0 * np.array(self._first_s[first:]) if self._streamed else None
            return Answers(np.array(self._ended[first:]), 1000.0 * np.array(self._latency_s[first:]), firsts)

    def _send(self) -> None:
        request, may_end = next(self._requests)
        self._call(request).add_done_callback(partial(self._done, time.monotonic(), may_end))

    def _done(self, sent: float, may_end: bool, answer: Answer) -> None:
        now = time.monotonic()
        error = answer.exception()
        with self._changed:
            if error is None:
                self._ended.append(now)
                self._latency_s.append(now - sent)
                if self._streamed:
                    self._first_s.append(answer.result() - sent)
            elif self._failure is None:
                self._failure = _failure(self._target, error)
            again = self._failure is None and not (self._stopping and may_end)
            if not again:
                self._under_way -= 1
            if not again or 0 < self._awaited <= len(self._ended):
                self._changed.notify_all()
        if again:
            self._send()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure


def poisson_times(rate_rps: float, seconds: float, random: np.random.Generator) -> list[float]:
    """Return the arrival times of a Poisson process within `seconds`, ascending."""
    count = int(random.poisson(rate_rps * seconds))
    return [float(t) for t in np.sort(random.uniform(0.0, seconds, count))]


@contextlib.contextmanager
def off_core(core: int | None) -> Iterator[None]:
    """Keep this thread, and the threads it starts, off a core, if the host has another core."""
    before = os.sched_getaffinity(0)
    others = before - {core}
    if core is None or not others:
        yield
        return
    os.sched_setaffinity(0, others)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def inference(channel: grpc.Channel, late_s: float = ANSWER_LATE_S) -> Call:
    """Return the inference method on bytes, without serialization and parsing."""
    method = channel.unary_unary(_METHOD, request_serializer=None, response_deserializer=None)
    return lambda request: method.future(request, timeout=late_s)


def _failure(target: str, error: BaseException) -> EngineError:
    if isinstance(error, RequestRefused):
        return error
    if isinstance(error, grpc.RpcError) and error.code() not in _UNANSWERED:
        return RequestRefused(words_of(error))
    return EngineError(f"{target}: a request failed: {words_of(error)}")


def words_of(error: BaseException) -> str:
    """Return the server's message, if it sent one."""
    return server_words(str(error.details() if isinstance(error, grpc.RpcError) else error))
