"""The facade's gRPC. Messages pass as bytes; only a model's name is read from them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn

import grpc
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from grpc import StatusCode
from tritonclient.grpc import service_pb2

from controlplane.domain.fleet import Backend
from controlplane.gateway.facade.answers import Parts
from controlplane.gateway.facade.bodies import LARGEST_BYTES
from controlplane.gateway.facade.callers import Caller
from controlplane.gateway.facade.fleet import Attempts
from controlplane.gateway.facade.fleet_wide.broadcast import Refused
from controlplane.gateway.facade.fleet_wide.grpc_calls import GrpcCalls, Handler, refusal
from controlplane.gateway.facade.records import HELD, UNREACHED
from controlplane.gateway.facade.refusals import (
    Refusal,
    ServerEnding,
    check_size,
    unchangeable,
    unknown_model,
)
from controlplane.gateway.facade.streams import ClientStream
from controlplane.gateway.facade.upstream import OPTIONS, SERVICE, Upstream, closing, held, unconnected
from controlplane.gateway.facade.wire import Malformed, as_bytes, sequence_of, text_field

_BY_NAME = ("ModelReady", "ModelMetadata", "ModelConfig")
_HEALTH = "/grpc.health.v1.Health/Check"
"""A Triton answers it for its own readiness, whatever service the request names; it has no Watch."""
_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"
"""HealthCheckResponse has one field, `status`."""
_NAMED = frozenset({*_BY_NAME, "ModelInfer", "ModelStatistics"})
_OF_FLEET = (
    *("ServerLive", "ServerReady", _HEALTH, "ServerMetadata"),
    *("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"),
)


class Service(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Every method of Triton's service that HAProxy does not route.

    Those it routes are here too: for bodies that it cannot read (compressed ones), names it does not know and
    models whose sequences it cannot follow.
    """

    def __init__(self, parts: Parts, upstream: Upstream) -> None:
        self._parts = parts
        self._fleet = parts.fleet
        self._upstream = upstream
        self._handlers: dict[str, Handler] = {
            **dict.fromkeys(_OF_FLEET, self._of_fleet),
            "ModelInfer": self._infer,
            "ModelStatistics": self._model_statistics,
            **dict.fromkeys(_BY_NAME, self._by_name),
            **GrpcCalls(parts.fleet, upstream, parts.broadcast).methods(),
        }

    def service(self, handler_call_details: Any) -> Any:
        """The handler of a method; one that is not Triton's is UNIMPLEMENTED, without words, as there."""
        method = handler_call_details.method.removeprefix(SERVICE)
        if method == "ModelStreamInfer":
            return grpc.stream_stream_rpc_method_handler(self._stream)
        if method not in self._handlers:
            return grpc.stream_stream_rpc_method_handler(_unimplemented)
        return grpc.stream_unary_rpc_method_handler(self._answering(method, self._handlers[method]))

    def _answering(self, method: str, handler: Handler) -> Callable[[AsyncIterator[bytes], Any], Any]:
        """Return a method of one message. gRPC's own kind never ends a call whose message is cut short."""

        async def answer(messages: AsyncIterator[bytes], context: Any) -> bytes:
            try:
                async with closing(messages) as received:
                    message = await anext(received, None)
                if message is None:
                    raise Refusal(StatusCode.INVALID_ARGUMENT, "the call ended before its message did")
                caller = self._caller(context)
                if caller.clients is not None and method in _NAMED and (name := text_field(message, 1)):
                    caller.check_call(name)
                return await handler(method, message, context, caller)
            except (Refusal, Refused, Malformed, DecodeError, grpc.aio.AioRpcError) as error:
                await _end(context, error)

        return answer

    def _caller(self, context: Any) -> Caller:
        return self._parts.callers.of(dict(context.invocation_metadata() or ()))

    async def _of_fleet(self, method: str, message: bytes, _: Any, caller: Caller) -> bytes:
        if method == "ServerLive":
            return as_bytes(service_pb2.ServerLiveResponse(live=True))
        if method == "ServerReady":
            return as_bytes(service_pb2.ServerReadyResponse(ready=self._fleet.served))
        if method == _HEALTH:
            return _SERVING if self._fleet.served else _NOT_SERVING
        if method == "ServerMetadata":
            return as_bytes(service_pb2.ServerMetadataResponse(**await self._parts.answers.metadata()))
        if method != "RepositoryIndex":
            raise unchangeable()
        request = service_pb2.RepositoryIndexRequest.FromString(message)
        if request.repository_name:
            raise Refusal(StatusCode.UNIMPLEMENTED, "'repository_name' specification is not supported")
        answer = service_pb2.RepositoryIndexResponse()
        for entry in await self._parts.answers.repository_index(request.ready, caller.may_call):
            answer.models.add(**entry)
        return as_bytes(answer)

    async def _infer(self, _: str, message: bytes, context: Any, caller: Caller) -> bytes:
        name = text_field(message, 1)
        if name not in self._fleet.routes:
            raise _unknown(name)
        limit = self._fleet.limit(name)
        self._fleet.check_refusal(name, caller.name)
        check_size(len(message), limit.max_body_bytes, caller.max_body_bytes)
        self._fleet.meter.enter(name, limit, time.monotonic())
        try:
            if self._fleet.traits(name).sequence_idle_us is None:
                return await self._stateless(name, message, context, caller.name)
            sequence = sequence_of(message)
            backend = self._fleet.choose_in_sequence((name, sequence.id), start=sequence.start)
            assert backend is not None  # the name is routed
            try:
                return await self._timed(name, backend, message, context, caller.name)
            finally:
                self._fleet.leave_sequence((name, sequence.id), end=sequence.end)
        finally:
            self._fleet.meter.leave(name)

    async def _stateless(self, name: str, message: bytes, context: Any, client: str) -> bytes:
        """One that was not answered because its server was not there may go to another."""
        attempts = Attempts(self._fleet, name, client)
        backend = attempts.next()
        while backend is not None:
            try:
                return await self._timed(name, backend, message, context, client)
            except grpc.aio.AioRpcError as error:
                if not unconnected(error):
                    raise
                self._fleet.lost(backend, name)
                goes_on = attempts.lost(backend, held=held(error))
                backend = attempts.next()
                if backend is None or not goes_on:
                    raise
            except ServerEnding:
                attempts.lost(backend, held=False)
                backend = attempts.next()
                if backend is None:
                    raise
        raise _unknown(name)

    async def _timed(self, name: str, backend: Backend, message: bytes, context: Any, client: str) -> bytes:
        started = time.monotonic()
        status, flags, unloaded = 0, "--", False
        answer = b""
        try:
            with self._fleet.call(name, backend):
                answer = bytes(await self._upstream.unary(backend, "ModelInfer", message, context))
                return answer
        except grpc.aio.AioRpcError as error:
            status = error.code().value[0]
            unloaded = error.code() is StatusCode.NOT_FOUND and error.details() == unknown_model(name)
            if unloaded:
                self._fleet.lost(backend, name)
                raise ServerEnding from error
            if unconnected(error):
                flags = HELD if held(error) else UNREACHED
            raise
        except asyncio.CancelledError:
            status = StatusCode.CANCELLED.value[0]
            raise
        finally:
            sizes = len(message), len(answer)
            self._parts.records.request(
                name, backend, started, sizes, grpc=status, flags=flags, unloaded=unloaded, client=client
            )

    async def _by_name(self, method: str, message: bytes, context: Any, _: Caller) -> bytes:
        name = text_field(message, 1)
        backend = self._fleet.choose(name)
        if backend is not None:
            return bytes(await self._upstream.unary(backend, method, message, context))
        if method == "ModelReady":
            return as_bytes(service_pb2.ModelReadyResponse(ready=False))
        raise _unknown(name)

    async def _model_statistics(self, method: str, message: bytes, context: Any, caller: Caller) -> bytes:
        name = text_field(message, 1)
        if not name:
            return _statistics_bytes(await self._parts.answers.statistics(caller.may_call))
        backend = self._fleet.choose(name)
        if backend is None:
            words = f"requested model '{name}' is not available"
            raise Refusal(StatusCode.INVALID_ARGUMENT, words)
        found = await self._parts.answers.statistics_of(name, text_field(message, 2))
        if found is not None:
            return _statistics_bytes(found)
        return bytes(await self._upstream.unary(backend, method, message, context))

    async def _stream(self, messages: AsyncIterator[bytes], context: Any) -> None:
        try:
            stream = ClientStream(self._parts, self._upstream, context, self._caller(context))
            await stream.run(messages)
        except Refusal as failure:
            await _end(context, failure)


async def serve(service: Service, address: str) -> Any:
    """A started server; the caller stops it."""
    # gRPC decompresses up to this size and refuses the rest with RESOURCE_EXHAUSTED.
    server = grpc.aio.server(options=(*OPTIONS, ("grpc.max_receive_message_length", LARGEST_BYTES)))
    server.add_generic_rpc_handlers((service,))
    server.add_insecure_port(address)
    await server.start()
    return server


async def _unimplemented(_: AsyncIterator[bytes], context: Any) -> None:
    await context.abort(StatusCode.UNIMPLEMENTED, "")


async def _end(context: Any, error: Exception) -> NoReturn:
    """End a call with the status of what went wrong, as a server's where it is a server's."""
    if isinstance(error, grpc.aio.AioRpcError):
        await context.abort(error.code(), error.details() or "", error.trailing_metadata() or ())
    if isinstance(error, Malformed | DecodeError):
        error = Refusal(StatusCode.INVALID_ARGUMENT, f"unable to parse the request: {error}")
    if isinstance(error, Refused):
        error = refusal(error)
    assert isinstance(error, Refusal)
    await context.abort(error.code, str(error), tuple(error.headers.items()))
    raise AssertionError("abort raises")


def _unknown(name: str) -> Refusal:
    return Refusal(StatusCode.NOT_FOUND, unknown_model(name))


def _statistics_bytes(statistics: dict[str, Any]) -> bytes:
    answer = service_pb2.ModelStatisticsResponse()
    return as_bytes(json_format.ParseDict(statistics, answer, ignore_unknown_fields=True))
