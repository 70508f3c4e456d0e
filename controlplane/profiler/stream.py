"""Requests of a decoupled model over one stream: each is answered any number of times, then ends."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from queue import SimpleQueue

import grpc
from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelStreamInferResponse

from controlplane.domain.errors import EngineError, RequestRefused, server_words

_METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
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
            _METHOD, request_serializer=None, response_deserializer=ModelStreamInferResponse.FromString
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
