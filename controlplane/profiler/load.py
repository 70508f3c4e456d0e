"""Load for a server: a closed loop (a constant number of requests in flight).

To keep the generator out of the measurement, requests are serialized once and answers are not parsed. A
request costs about a tenth of a millisecond of another core.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Protocol

import grpc
import numpy as np
from numpy.typing import NDArray

from controlplane.domain.errors import EngineError, RequestRefused, server_words
from controlplane.profiler.stream import StreamCall

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
            if self._streamed:
                self._stream = StreamCall(self._channel)
            self._call: Call = self._stream or inference(self._channel, self._late_s)
            self._under_way = self._concurrency
            for _ in range(self._concurrency):
                self._send()
        except BaseException:  # such as Ctrl-C: there is no exit without an entry
            self._stopping = True
            self._channel.close()
            raise
        return self

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
