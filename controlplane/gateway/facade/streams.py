"""ModelStreamInfer, routed message by message.

A Triton writes the answers of plain models in the order of their requests, across models, and sends answers
of decoupled models in between. So does this module: every message for a plain model takes a ticket, and
tickets are served in order, whichever server answered. A redirect therefore moves
an open stream at its next message and neither loses nor repeats an answer.
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
from controlplane.gateway.facade.callers import NOT_GRANTED, Caller
from controlplane.gateway.facade.limits import LimitReached, TooLarge, check_size
from controlplane.gateway.facade.messages.wire import Malformed, Sequence, sequence_of, text_field
from controlplane.gateway.facade.records import HELD, UNREACHED, Records
from controlplane.gateway.facade.routing.fleet import Fleet
from controlplane.gateway.facade.routing.sequences import Key
from controlplane.gateway.facade.upstream import Upstream, held, unconnected


@dataclass(slots=True)
class Ticket:
    """One message's place in the order of answers."""

    started_s: float
    size: int
    sequence: Sequence | None
    answer: bytes | None = None


@dataclass(slots=True, eq=False)
class Leg:
    """One call to one server, for the messages of one endpoint.

    `waiting` are tickets without an answer; a decoupled model's answers cannot be counted, so there they are
    only the messages without a first answer, and the leg as a whole counts as one open call. It rests while
    nothing waits, since its silence is no sign of a hang; once half-closed it never does: its end is awaited.
    `saying` is held while writing or half-closing: gRPC breaks a call that is half-closed during a write.
    """

    endpoint: str
    backend: Backend
    call: Any
    decoupled: bool
    waiting: deque[Ticket] = field(default_factory=deque)
    reader: asyncio.Task[None] | None = None
    before: asyncio.Task[None] | None = None
    half_closed: bool = False
    resting: bool = False
    saying: asyncio.Lock = field(default_factory=asyncio.Lock)


class StreamFailed(Exception):
    """The client's call ends with this status."""

    def __init__(self, code: Any, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


class Stream:
    """One client's call."""

    def __init__(
        self, fleet: Fleet, upstream: Upstream, records: Records, context: Any, caller: Caller
    ) -> None:
        self._caller = caller
        self._fleet = fleet
        self._upstream = upstream
        self._records = records
        self._context = context
        self._tickets: deque[Ticket] = deque()
        self._legs: set[Leg] = set()
        self._taking: dict[tuple[str, str], Leg] = {}
        self._latest: dict[str, Leg] = {}
        self._writing = asyncio.Lock()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._closing: set[asyncio.Task[None]] = set()

    async def run(self, messages: AsyncIterator[bytes]) -> None:
        """Run until the client has sent everything and has every answer. Raises StreamFailed."""
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
                for leg in tuple(self._legs):
                    self._drop(leg)
            if self._failed.done():
                self._failed.exception()

    async def _pump(self, messages: AsyncIterator[bytes]) -> None:
        async for message in messages:
            try:
                await self._route(message)
            except Malformed as error:
                raise StreamFailed(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error
        for leg in tuple(self._legs):
            await self._half_close(leg)
        while readers := [leg.reader for leg in self._legs if leg.reader is not None]:
            await asyncio.wait(readers)
        await self._serve()

    async def _route(self, message: bytes) -> None:
        endpoint = text_field(message, 1)
        if not self._caller.may_call(endpoint):
            raise StreamFailed(grpc.StatusCode.PERMISSION_DENIED, NOT_GRANTED)
        if endpoint not in self._fleet.routes:
            words = f"Request for unknown model: '{endpoint}' is not found"
            await self._refuse(words, text_field(message, 3))
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
        ticket = Ticket(time.monotonic(), len(message), None)
        if traits.sequence_idle_us is None:
            backend = self._present(endpoint) or self._fleet.choose(endpoint)
        else:
            ticket.sequence = sequence_of(message)
            backend = self._fleet.choose_in_sequence(
                (endpoint, ticket.sequence.id), start=ticket.sequence.start
            )
        assert backend is not None  # the endpoint is routed
        leg = self._taking.get((endpoint, backend.server)) or self._open(endpoint, backend, traits.decoupled)
        leg.waiting.append(ticket)
        self._judge_rest(leg)
        if not leg.decoupled:
            self._tickets.append(ticket)
            self._fleet.opened(endpoint, backend)
        # A leg that has failed tells why through its reader.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            async with leg.saying:
                await leg.call.write(message)
        if leg.decoupled and ticket.sequence is not None:
            self._fleet.leave_sequence((endpoint, ticket.sequence.id), end=ticket.sequence.end)

    def _present(self, endpoint: str) -> Backend | None:
        """A stream stays with a member of a pool; from a backup it goes back as soon as it can."""
        leg = self._latest.get(endpoint)
        route = self._fleet.routes.get(endpoint)
        if leg is None or leg.half_closed or route is None or leg.backend not in route.members:
            return None
        return leg.backend

    def _open(self, endpoint: str, backend: Backend, decoupled: bool) -> Leg:
        leg = Leg(endpoint, backend, self._upstream.stream(backend, self._context), decoupled)
        before = self._latest.get(endpoint)
        if decoupled:
            leg.before = None if before is None else before.reader
            self._fleet.opened(endpoint, backend)
        leg.reader = asyncio.create_task(self._read(leg))
        self._legs.add(leg)
        self._taking[endpoint, backend.server] = leg
        self._latest[endpoint] = leg
        return leg

    async def _read(self, leg: Leg) -> None:
        try:
            if leg.before is not None:
                await asyncio.wait([leg.before])
            async for answer in leg.call:
                if leg.decoupled:
                    await self._pass_decoupled(leg, answer)
                elif leg.waiting:
                    ticket = leg.waiting.popleft()
                    ticket.answer = answer
                    self._answered(leg, ticket, answer)
                    if self._tickets and self._tickets[0] is ticket:
                        await self._serve()
            if leg.waiting and not leg.decoupled:
                self._fail(StreamFailed(grpc.StatusCode.UNAVAILABLE, "the model's server closed the stream"))
        except grpc.aio.AioRpcError as error:
            self._broken(leg, error)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._fail(StreamFailed(grpc.StatusCode.INTERNAL, repr(error)))
        finally:
            self._drop(leg)

    async def _pass_decoupled(self, leg: Leg, answer: bytes) -> None:
        async with self._writing:
            await self._context.write(answer)
        if leg.waiting:
            first = leg.waiting.popleft()
            self._fleet.meter.leave(leg.endpoint)
            self._judge_rest(leg)
            self._records.message(leg.endpoint, leg.backend, first.started_s, first.size, answer)

    def _answered(self, leg: Leg, ticket: Ticket, answer: bytes) -> None:
        self._fleet.closed(leg.endpoint, leg.backend)
        self._fleet.meter.leave(leg.endpoint)
        if ticket.sequence is not None:
            key: Key = (leg.endpoint, ticket.sequence.id)
            self._fleet.leave_sequence(key, end=ticket.sequence.end)
        self._records.message(leg.endpoint, leg.backend, ticket.started_s, ticket.size, answer)

    async def _serve(self) -> None:
        async with self._writing:
            while self._tickets and self._tickets[0].answer is not None:
                await self._context.write(self._tickets.popleft().answer)

    async def _refuse(self, words: str, request_id: str) -> None:
        answer = service_pb2.ModelStreamInferResponse(error_message=words)
        answer.infer_response.id = request_id
        self._tickets.append(Ticket(0.0, 0, None, answer.SerializeToString()))
        await self._serve()

    def _broken(self, leg: Leg, error: Any) -> None:
        if unconnected(error):
            self._fleet.lost(leg.backend)
            for ticket in leg.waiting:
                self._records.request(
                    leg.endpoint,
                    leg.backend,
                    ticket.started_s,
                    ticket.size,
                    0,
                    http=200,
                    grpc=error.code().value[0],
                    flags=HELD if held(error) else UNREACHED,
                    client=self._caller.name,
                )
        # No message waits for this server: the next one goes to another. Answers of a decoupled model cannot
        # be counted, so silence and end look the same.
        if not leg.waiting and not leg.decoupled:
            return
        code, details = error.code(), error.details() or ""
        if code in (grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL):
            # gRPC reports these for a write to a connection that has ended.
            code, details = grpc.StatusCode.UNAVAILABLE, f"the model's server was lost: {details}"
        self._fail(StreamFailed(code, details))

    def _fail(self, failure: StreamFailed) -> None:
        if not self._failed.done():
            self._failed.set_exception(failure)

    def _review(self) -> None:
        """Half-close calls to servers that are no longer routed."""
        living = self._fleet.sequences.living()
        for leg in tuple(self._legs):
            held = leg.backend.server in living and self._fleet.traits(leg.endpoint).sequence_idle_us
            if not leg.half_closed and not held and not self._fleet.routed(leg.endpoint, leg.backend):
                self._stop_taking(leg)
                task = asyncio.create_task(self._done_writing(leg))
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

    async def _half_close(self, leg: Leg) -> None:
        if not leg.half_closed:
            self._stop_taking(leg)
            await self._done_writing(leg)

    def _stop_taking(self, leg: Leg) -> None:
        leg.half_closed = True
        self._judge_rest(leg)
        if self._taking.get((leg.endpoint, leg.backend.server)) is leg:
            del self._taking[leg.endpoint, leg.backend.server]

    def _judge_rest(self, leg: Leg) -> None:
        resting = leg.decoupled and not leg.half_closed and not leg.waiting
        if resting != leg.resting:
            leg.resting = resting
            self._fleet.rests(leg.endpoint, leg.backend, resting)

    @staticmethod
    async def _done_writing(leg: Leg) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            async with leg.saying:
                await leg.call.done_writing()

    def _drop(self, leg: Leg) -> None:
        """The leg is over: nothing is open on its server for it any more."""
        if leg not in self._legs:
            return
        self._legs.discard(leg)
        self._stop_taking(leg)
        if self._latest.get(leg.endpoint) is leg:
            del self._latest[leg.endpoint]
        leg.call.cancel()
        if leg.decoupled:
            self._fleet.closed(leg.endpoint, leg.backend)
        for _ in leg.waiting:
            self._fleet.meter.leave(leg.endpoint)
        for ticket in () if leg.decoupled else leg.waiting:
            self._fleet.closed(leg.endpoint, leg.backend)
            if ticket.sequence is not None:
                self._fleet.leave_sequence((leg.endpoint, ticket.sequence.id), end=False)
        leg.waiting.clear()
        if leg.reader is not None and leg.reader is not asyncio.current_task():
            leg.reader.cancel()
