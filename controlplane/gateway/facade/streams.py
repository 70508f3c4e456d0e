"""ModelStreamInfer, routed message by message.

A Triton writes the answers of plain models in the order of their requests, across models, and sends answers
of decoupled models in between. So does this module: messages for plain models are answered in order,
whichever server answered first. A redirect therefore moves an open stream at its next message and neither
loses nor repeats an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from controlplane.domain.fleet import Backend
from controlplane.gateway.facade.answers import Parts
from controlplane.gateway.facade.callers import Caller
from controlplane.gateway.facade.fleet import Key
from controlplane.gateway.facade.records import ABANDONED, HELD, UNREACHED, status_of
from controlplane.gateway.facade.refusals import (
    LimitReached,
    Refusal,
    ServerEnding,
    TooLarge,
    check_size,
    unknown_model,
)
from controlplane.gateway.facade.upstream import Upstream, closing, held, passed_on, unconnected
from controlplane.gateway.facade.wire import Malformed, Sequence, sequence_of, stream_error, text_field

_ANSWERED = grpc.StatusCode.OK.value[0], "--"
_LEFT = grpc.StatusCode.CANCELLED.value[0], ABANDONED
_LOST = grpc.StatusCode.UNAVAILABLE.value[0], HELD
_OF_A_LOST_SERVER = (grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL)
"""What gRPC reports for a write to a connection that has ended."""
_ERRORS_AS_STATUSES = ("triton_grpc_error", "true")
"""Metadata of a client for which a model's error is the status of its stream, also one of these."""


@dataclass(slots=True)
class PendingMessage:
    """One message's place in the order of answers."""

    started_s: float
    size: int
    sequence: Sequence | None
    answer: bytes | None = None


@dataclass(slots=True, eq=False)
class UpstreamStream:
    """One call to one server, for the messages of one endpoint.

    `waiting` are messages without an answer; a decoupled model's answers cannot be counted, so there they are
    only the messages without a first answer, and the stream as a whole counts as one open call. It rests
    while nothing waits, since its silence is no sign of a hang; once half-closed it never does: its end is
    awaited.
    `ending` is the gRPC status and the flags of what still waits when the call ends.
    `saying` is held while writing or half-closing: gRPC breaks a call that is half-closed during a write.
    """

    endpoint: str
    backend: Backend
    call: Any
    decoupled: bool
    waiting: deque[PendingMessage] = field(default_factory=deque)
    reader: asyncio.Task[None] | None = None
    before: asyncio.Task[None] | None = None
    half_closed: bool = False
    ending: tuple[int, str] = _LEFT
    resting: bool = False
    saying: asyncio.Lock = field(default_factory=asyncio.Lock)


class ClientStream:
    """One client's call."""

    def __init__(self, parts: Parts, upstream: Upstream, context: Any, caller: Caller) -> None:
        self._caller = caller
        self._fleet = parts.fleet
        self._upstream = upstream
        self._records = parts.records
        self._context = context
        self._pending: deque[PendingMessage] = deque()
        self._streams: set[UpstreamStream] = set()
        self._taking: dict[tuple[str, str], UpstreamStream] = {}
        self._latest: dict[str, UpstreamStream] = {}
        self._writing = asyncio.Lock()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._closing: set[asyncio.Task[None]] = set()

    async def run(self, messages: AsyncIterator[bytes]) -> None:
        """Run until the client has sent everything and has every answer. Raises Refusal."""
        self._fleet.moved.add(self._review)
        pump = asyncio.create_task(self._pump(messages))
        try:
            await asyncio.wait({pump, self._failed}, return_when=asyncio.FIRST_COMPLETED)
            if self._failed.done():
                self._failed.result()
            await pump
        finally:
            self._fleet.moved.discard(self._review)
            # gRPC ends no call whose first write was cancelled: it would send the initial metadata twice.
            async with self._writing:
                pump.cancel()
                for stream in tuple(self._streams):
                    self._drop(stream)
            if self._failed.done():
                self._failed.exception()

    async def _pump(self, messages: AsyncIterator[bytes]) -> None:
        async with closing(messages) as received:
            async for message in received:
                try:
                    await self._route(message)
                except Malformed as error:
                    raise Refusal(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error
        for stream in tuple(self._streams):
            await self._half_close(stream)
        while readers := [stream.reader for stream in self._streams if stream.reader is not None]:
            await asyncio.wait(readers)
        await self._serve()

    async def _route(self, message: bytes) -> None:
        endpoint = text_field(message, 1)
        self._caller.check_call(endpoint)
        if endpoint not in self._fleet.routes:
            await self._refuse(unknown_model(endpoint), text_field(message, 3))
            return
        limit = self._fleet.limit(endpoint)
        try:
            self._fleet.check_refusal(endpoint, self._caller.name)
            check_size(len(message), limit.max_body_bytes, self._caller.max_body_bytes)
            self._fleet.meter.enter(endpoint, limit, time.monotonic())
        except (LimitReached, TooLarge) as excess:
            await self._refuse(str(excess), text_field(message, 3))
            return
        traits = self._fleet.traits(endpoint)
        pending = PendingMessage(time.monotonic(), len(message), None)
        if traits.sequence_idle_us is None:
            backend = self._present(endpoint) or self._fleet.choose(endpoint)
        else:
            pending.sequence = sequence_of(message)
            backend = self._fleet.choose_in_sequence(
                (endpoint, pending.sequence.id), start=pending.sequence.start
            )
        assert backend is not None  # the endpoint is routed
        stream = self._taking.get((endpoint, backend.server))
        if stream is None:
            if traits.decoupled and endpoint in self._latest:
                # The new one's answers wait for this call's end, and its server may still be the backup.
                self._leave(self._latest[endpoint])
            stream = self._open(endpoint, backend, traits.decoupled)
        stream.waiting.append(pending)
        self._judge_rest(stream)
        if not stream.decoupled:
            self._pending.append(pending)
            self._fleet.opened(endpoint, backend)
        # A stream that has failed tells why through its reader.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            async with stream.saying:
                await stream.call.write(message)
        if stream.decoupled and pending.sequence is not None:
            self._fleet.leave_sequence((endpoint, pending.sequence.id), end=pending.sequence.end)

    def _present(self, endpoint: str) -> Backend | None:
        """A stream stays with a member of a pool; from a backup it goes back as soon as it can."""
        stream = self._latest.get(endpoint)
        route = self._fleet.routes.get(endpoint)
        if stream is None or stream.half_closed or route is None or stream.backend not in route.members:
            return None
        return stream.backend

    def _open(self, endpoint: str, backend: Backend, decoupled: bool) -> UpstreamStream:
        stream = UpstreamStream(endpoint, backend, self._upstream.stream(backend, self._context), decoupled)
        before = self._latest.get(endpoint)
        if decoupled:
            stream.before = None if before is None else before.reader
            self._fleet.opened(endpoint, backend)
        stream.reader = asyncio.create_task(self._read(stream))
        self._streams.add(stream)
        self._taking[endpoint, backend.server] = stream
        self._latest[endpoint] = stream
        return stream

    async def _read(self, stream: UpstreamStream) -> None:
        try:
            if stream.before is not None:
                await asyncio.wait([stream.before])
            async for answer in stream.call:
                if stream.decoupled:
                    await self._pass_decoupled(stream, answer)
                elif stream.waiting:
                    pending = stream.waiting.popleft()
                    self._answered(stream, pending, answer)
                    if self._pending and self._pending[0] is pending:
                        await self._serve()
            if stream.decoupled:  # its model may answer a message with nothing
                stream.ending = _ANSWERED
            elif stream.waiting:
                stream.ending = _LOST
                self._fail(Refusal(grpc.StatusCode.UNAVAILABLE, "the model's server closed the stream"))
        except grpc.aio.AioRpcError as error:
            self._broken(stream, error)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._fail(Refusal(grpc.StatusCode.INTERNAL, repr(error)))
        finally:
            self._drop(stream)

    async def _pass_decoupled(self, stream: UpstreamStream, answer: bytes) -> None:
        if stream.waiting:
            first = stream.waiting.popleft()
            self._fleet.meter.leave(stream.endpoint)
            self._judge_rest(stream)
            answer = self._received(stream, first, answer)
        async with self._writing:
            await self._context.write(answer)

    def _answered(self, stream: UpstreamStream, pending: PendingMessage, answer: bytes) -> None:
        self._fleet.closed(stream.endpoint, stream.backend)
        self._fleet.meter.leave(stream.endpoint)
        if pending.sequence is not None:
            key: Key = (stream.endpoint, pending.sequence.id)
            self._fleet.leave_sequence(key, end=pending.sequence.end)
        pending.answer = self._received(stream, pending, answer)

    def _received(self, stream: UpstreamStream, pending: PendingMessage, answer: bytes) -> bytes:
        """Log the first answer to a message; return what its client gets."""
        error = stream_error(answer)
        unloaded = error == unknown_model(stream.endpoint)
        status = status_of(error)
        if unloaded:
            self._fleet.lost(stream.backend, stream.endpoint)
            self._leave(stream)
            said = service_pb2.ModelStreamInferResponse.FromString(answer)
            said.error_message = str(ServerEnding())
            answer = said.SerializeToString()
        self._log(stream, pending, len(answer), (status, "--"), unloaded=unloaded)
        return answer

    def _log(
        self,
        stream: UpstreamStream,
        pending: PendingMessage,
        size: int,
        ending: tuple[int, str],
        *,
        unloaded: bool = False,
    ) -> None:
        self._records.request(
            stream.endpoint,
            stream.backend,
            pending.started_s,
            (pending.size, size),
            grpc=ending[0],
            flags=ending[1],
            unloaded=unloaded,
            client=self._caller.name,
        )

    async def _serve(self) -> None:
        async with self._writing:
            while self._pending and self._pending[0].answer is not None:
                await self._context.write(self._pending.popleft().answer)

    async def _refuse(self, words: str, request_id: str) -> None:
        answer = service_pb2.ModelStreamInferResponse(error_message=words)
        answer.infer_response.id = request_id
        self._pending.append(PendingMessage(0.0, 0, None, answer.SerializeToString()))
        await self._serve()

    def _broken(self, stream: UpstreamStream, error: Any) -> None:
        stream.ending = error.code().value[0], "--"
        if unconnected(error):
            self._fleet.lost(stream.backend, stream.endpoint)
            stream.ending = error.code().value[0], HELD if held(error) else UNREACHED
        # No message waits for this server: the next one goes to another. Answers of a decoupled model cannot
        # be counted, so silence and end look the same.
        if not stream.waiting and not stream.decoupled:
            return
        code, details = error.code(), error.details() or ""
        if code in _OF_A_LOST_SERVER and _ERRORS_AS_STATUSES not in passed_on(self._context):
            stream.ending = _LOST
            code, details = grpc.StatusCode.UNAVAILABLE, f"the model's server was lost: {details}"
        self._fail(Refusal(code, details))

    def _fail(self, failure: Refusal) -> None:
        if not self._failed.done():
            self._failed.set_exception(failure)

    def _review(self) -> None:
        """Half-close calls to servers that are no longer routed."""
        living = self._fleet.sequences.living()
        for stream in tuple(self._streams):
            held = stream.backend.server in living and self._fleet.traits(stream.endpoint).sequence_idle_us
            if not held and not self._fleet.routed(stream.endpoint, stream.backend):
                self._leave(stream)

    def _leave(self, stream: UpstreamStream) -> None:
        """Half-close beside what goes on: the route that was chosen meanwhile may not change."""
        if not stream.half_closed:
            self._stop_taking(stream)
            task = asyncio.create_task(self._done_writing(stream))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _half_close(self, stream: UpstreamStream) -> None:
        if not stream.half_closed:
            self._stop_taking(stream)
            await self._done_writing(stream)

    def _stop_taking(self, stream: UpstreamStream) -> None:
        stream.half_closed = True
        self._judge_rest(stream)
        if self._taking.get((stream.endpoint, stream.backend.server)) is stream:
            del self._taking[stream.endpoint, stream.backend.server]

    def _judge_rest(self, stream: UpstreamStream) -> None:
        resting = stream.decoupled and not stream.half_closed and not stream.waiting
        if resting != stream.resting:
            stream.resting = resting
            self._fleet.rests(stream.endpoint, stream.backend, resting)

    @staticmethod
    async def _done_writing(stream: UpstreamStream) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            async with stream.saying:
                await stream.call.done_writing()

    def _drop(self, stream: UpstreamStream) -> None:
        """The stream is over: nothing is open on its server for it any more."""
        if stream not in self._streams:
            return
        self._streams.discard(stream)
        self._stop_taking(stream)
        if self._latest.get(stream.endpoint) is stream:
            del self._latest[stream.endpoint]
        stream.call.cancel()
        if stream.decoupled:
            self._fleet.closed(stream.endpoint, stream.backend)
        for pending in stream.waiting:
            self._fleet.meter.leave(stream.endpoint)
            self._log(stream, pending, 0, stream.ending)
        for pending in () if stream.decoupled else stream.waiting:
            self._fleet.closed(stream.endpoint, stream.backend)
            if pending.sequence is not None:
                self._fleet.leave_sequence((stream.endpoint, pending.sequence.id), end=False)
        stream.waiting.clear()
        if stream.reader is not None and stream.reader is not asyncio.current_task():
            stream.reader.cancel()
