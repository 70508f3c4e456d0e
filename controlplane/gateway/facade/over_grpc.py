"""The facade's gRPC. Messages pass as bytes; only a model's name is read from them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NoReturn

import grpc
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from controlplane.domain.fleet import Backend
from controlplane.gateway.facade.callers import NO_OPERATOR, NOT_GRANTED, Caller, Callers
from controlplane.gateway.facade.fleet_wide.broadcast import Refused
from controlplane.gateway.facade.fleet_wide.grpc_calls import Shared, Unary, abort_refused
from controlplane.gateway.facade.fleet_wide.kept import NotKept
from controlplane.gateway.facade.fleet_wide.regions import NotOwned
from controlplane.gateway.facade.limits import LimitReached, TooLarge, check_size
from controlplane.gateway.facade.messages.bodies import LARGEST_BYTES
from controlplane.gateway.facade.messages.status import abort, as_bytes, pass_on
from controlplane.gateway.facade.messages.wire import Malformed, sequence_of, text_field
from controlplane.gateway.facade.records import HELD, UNREACHED, Records
from controlplane.gateway.facade.routing.fleet import Fleet
from controlplane.gateway.facade.routing.statistics import Statistics
from controlplane.gateway.facade.streams import Stream, StreamFailed
from controlplane.gateway.facade.upstream import OPTIONS, SERVICE, Upstream, held, unconnected

_BY_NAME = ("ModelReady", "ModelMetadata", "ModelConfig")
_NAMED = frozenset({*_BY_NAME, "ModelInfer", "ModelStatistics"})
_REFUSED = "models are loaded and unloaded by the control plane, not by clients"


class Service(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Every method of Triton's service that HAProxy does not route.

    Those it routes are here too: for bodies that it cannot read (compressed ones), names it does not know and
    models whose sequences it cannot follow.
    """

    def __init__(
        self,
        fleet: Fleet,
        upstream: Upstream,
        fleet_wide_calls: Mapping[str, Shared],
        records: Records,
        statistics: Statistics,
        callers: Callers,
    ) -> None:
        self._fleet = fleet
        self._statistics = statistics
        self._upstream = upstream
        self._records = records
        self._unary: dict[str, Unary] = {
            "ServerLive": self._live,
            "ServerReady": self._ready,
            "ServerMetadata": self._metadata,
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": self._refuse,
            "RepositoryModelUnload": self._refuse,
            "ModelInfer": self._infer,
            "ModelStatistics": self._model_statistics,
            **{name: self._by_name(name) for name in _BY_NAME},
        }
        self._fleet_wide_calls = fleet_wide_calls
        self._callers = callers

    def service(self, handler_call_details: Any) -> Any:
        """The handler of a method; None, which is UNIMPLEMENTED, for one that is not Triton's."""
        method = handler_call_details.method.removeprefix(SERVICE)
        if method == "ModelStreamInfer":
            return grpc.stream_stream_rpc_method_handler(self._stream)
        if (shared := self._fleet_wide_calls.get(method)) is not None:
            handler = self._for_operators(shared)
        elif (unary := self._unary.get(method)) is not None:
            handler = self._permitted(method, unary)
        else:
            return None
        return grpc.stream_unary_rpc_method_handler(_of_one_message(_refusing_malformed(handler)))

    def _for_operators(self, handler: Shared) -> Unary:
        async def handle(message: bytes, context: Any) -> bytes:
            caller = await self._caller(context)
            if not caller.may_operate:
                await abort(context, grpc.StatusCode.PERMISSION_DENIED, NO_OPERATOR)
            return await handler(message, context, caller.regions)

        return handle

    def _permitted(self, method: str, handler: Unary) -> Unary:
        async def handle(message: bytes, context: Any) -> bytes:
            caller = await self._caller(context)
            named = caller.access is not None and method in _NAMED and text_field(message, 1)
            if named and not caller.may_call(named):
                await abort(context, grpc.StatusCode.PERMISSION_DENIED, NOT_GRANTED)
            return await handler(message, context)

        return handle

    async def _caller(self, context: Any) -> Caller:
        caller = self._callers.of(dict(context.invocation_metadata() or ()))
        if caller is None:
            words = "requests reach this port through the gateway only"
            await abort(context, grpc.StatusCode.UNAUTHENTICATED, words)
        return caller

    async def _live(self, _: bytes, context: Any) -> bytes:
        return as_bytes(service_pb2.ServerLiveResponse(live=True))

    async def _ready(self, _: bytes, context: Any) -> bytes:
        return as_bytes(service_pb2.ServerReadyResponse(ready=await self._fleet.ready()))

    async def _metadata(self, _: bytes, context: Any) -> bytes:
        return as_bytes(service_pb2.ServerMetadataResponse(**await self._fleet.metadata()))

    async def _index(self, message: bytes, context: Any) -> bytes:
        request = service_pb2.RepositoryIndexRequest.FromString(message)
        if request.repository_name:
            await abort(
                context, grpc.StatusCode.UNIMPLEMENTED, "'repository_name' specification is not supported"
            )
        answer = service_pb2.RepositoryIndexResponse()
        may_call = (await self._caller(context)).may_call
        for entry in await self._fleet.repository_index(request.ready, may_call):
            answer.models.add(**entry)
        return as_bytes(answer)

    async def _refuse(self, _: bytes, context: Any) -> bytes:
        await abort(context, grpc.StatusCode.PERMISSION_DENIED, _REFUSED)

    async def _infer(self, message: bytes, context: Any) -> bytes:
        name = text_field(message, 1)
        if name not in self._fleet.routes:
            await abort(
                context, grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{name}' is not found"
            )
        limit, caller = self._fleet.limit(name), await self._caller(context)
        self._fleet.check_refusal(name, caller.name)
        check_size(len(message), limit.max_body_bytes, caller.max_body_bytes)
        with self._fleet.meter.counted(name, limit, time.monotonic()):
            return await self._inferred(name, message, context, caller.name)

    async def _inferred(self, name: str, message: bytes, context: Any, client: str) -> bytes:
        if self._fleet.traits(name).sequence_idle_us is None:
            return await self._stateless(name, message, context, client)
        sequence = sequence_of(message)
        backend = self._fleet.choose_in_sequence((name, sequence.id), start=sequence.start)
        assert backend is not None  # the name is routed
        try:
            return await self._timed(name, backend, message, context, client)
        except grpc.aio.AioRpcError as error:
            await pass_on(context, error)
        finally:
            self._fleet.leave_sequence((name, sequence.id), end=sequence.end)

    async def _stateless(self, name: str, message: bytes, context: Any, client: str) -> bytes:
        """One that was not answered because its server was not there may go to another.

        One that a lost server held goes to one more at most: it may be what ended the server.
        """
        tried: set[str] = set()
        resends = self._fleet.resends(name, client)
        while True:
            backend = self._fleet.choose(name)
            if backend is None:
                await _unknown(context, name)
            try:
                return await self._timed(name, backend, message, context, client)
            except grpc.aio.AioRpcError as error:
                if unconnected(error):
                    self._fleet.lost(backend)
                    tried.add(backend.server)
                    other = self._fleet.choose(name)
                    if other is not None and other.server not in tried and (resends or not held(error)):
                        resends = resends and not held(error)
                        continue
                await pass_on(context, error)

    async def _timed(self, name: str, backend: Backend, message: bytes, context: Any, client: str) -> bytes:
        started = time.monotonic()
        status, flags = 0, "--"
        answer = b""
        try:
            with self._fleet.call(name, backend):
                answer = bytes(await self._upstream.unary(backend, "ModelInfer", message, context))
                return answer
        except grpc.aio.AioRpcError as error:
            status = error.code().value[0]
            if unconnected(error):
                flags = HELD if held(error) else UNREACHED
            raise
        except asyncio.CancelledError:
            status = grpc.StatusCode.CANCELLED.value[0]
            raise
        finally:
            sizes = len(message), len(answer)
            self._records.request(
                name, backend, started, *sizes, http=200, grpc=status, flags=flags, client=client
            )

    def _by_name(self, method: str) -> Unary:
        async def forward(message: bytes, context: Any) -> bytes:
            name = text_field(message, 1)
            backend = self._fleet.choose(name)
            if backend is None:
                if method == "ModelReady":
                    return as_bytes(service_pb2.ModelReadyResponse(ready=False))
                await _unknown(context, name)
            return await self._ask(backend, method, message, context)

        return forward

    async def _model_statistics(self, message: bytes, context: Any) -> bytes:
        name = text_field(message, 1)
        if not name:
            caller = await self._caller(context)
            return _statistics_bytes(await self._statistics.of_fleet(caller.may_call))
        backend = self._fleet.choose(name)
        if backend is None:
            await abort(
                context, grpc.StatusCode.INVALID_ARGUMENT, f"requested model '{name}' is not available"
            )
        found = await self._statistics.of_endpoint(name, text_field(message, 2))
        if found is not None:
            return _statistics_bytes(found)
        return await self._ask(backend, "ModelStatistics", message, context)

    async def _ask(self, backend: Backend, method: str, message: bytes, context: Any) -> bytes:
        try:
            answer: bytes = await self._upstream.unary(backend, method, message, context)
            return answer
        except grpc.aio.AioRpcError as error:
            await pass_on(context, error)

    async def _stream(self, messages: AsyncIterator[bytes], context: Any) -> None:
        try:
            caller = await self._caller(context)
            await Stream(self._fleet, self._upstream, self._records, context, caller).run(messages)
        except StreamFailed as failure:
            await abort(context, failure.code, failure.details)


async def serve(service: Service, address: str) -> Any:
    """A started server; the caller stops it."""
    # gRPC decompresses up to this size and refuses the rest with RESOURCE_EXHAUSTED.
    server = grpc.aio.server(options=(*OPTIONS, ("grpc.max_receive_message_length", LARGEST_BYTES)))
    server.add_generic_rpc_handlers((service,))
    server.add_insecure_port(address)
    await server.start()
    return server


def _of_one_message(handler: Unary) -> Callable[[AsyncIterator[bytes], Any], Awaitable[bytes]]:
    """A method of one message. gRPC's own kind of it never ends a call whose message is cut short."""

    async def handle(messages: AsyncIterator[bytes], context: Any) -> bytes:
        message = await anext(messages, None)
        if message is None:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, "the call ended before its message did")
        return await handler(message, context)

    return handle


def _refusing_malformed(handler: Unary) -> Unary:
    async def handle(message: bytes, context: Any) -> bytes:
        try:
            return await handler(message, context)
        except (Malformed, DecodeError) as error:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, f"unable to parse the request: {error}")
        except (LimitReached, TooLarge) as excess:
            again = (("retry-after", "1"),) if isinstance(excess, LimitReached) else ()
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(excess), again)
            raise
        except NotOwned as denied:
            await abort(context, grpc.StatusCode.PERMISSION_DENIED, str(denied))
        except NotKept as refusal:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(refusal))
        except Refused as refused:
            await abort_refused(context, refused)

    return handle


async def _unknown(context: Any, name: str) -> NoReturn:
    await abort(context, grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{name}' is not found")


def _statistics_bytes(statistics: dict[str, Any]) -> bytes:
    """As one Triton's answer."""
    answer = service_pb2.ModelStatisticsResponse()
    return as_bytes(json_format.ParseDict(statistics, answer, ignore_unknown_fields=True))
