"""The facade's gRPC. Messages pass as bytes; only a model's name is read from them."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NoReturn

import grpc
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from controlplane.domain.fleet import Backend
from controlplane.gateway.facade.bodies import LARGEST_BYTES
from controlplane.gateway.facade.broadcast import Broadcast, Refused
from controlplane.gateway.facade.fleet import Fleet, everyone
from controlplane.gateway.facade.kept import Body, NotKept, region_key, setting_key
from controlplane.gateway.facade.over_http import DENIED
from controlplane.gateway.facade.records import Records
from controlplane.gateway.facade.statistics import Statistics
from controlplane.gateway.facade.streams import Stream, StreamFailed
from controlplane.gateway.facade.upstream import OPTIONS, SERVICE, Upstream, unconnected
from controlplane.gateway.facade.wire import Malformed, sequence_of, text_field

_BY_NAME = ("ModelReady", "ModelMetadata", "ModelConfig")
_REFUSED = "models are loaded and unloaded by the control plane, not by clients"
_Unary = Callable[[bytes, Any], Awaitable[bytes]]


class Service(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Every method of Triton's service that HAProxy does not route.

    Those it routes are here too: for bodies that it cannot read (compressed ones), names it does not know and
    models whose sequences it cannot follow.
    """

    def __init__(
        self,
        fleet: Fleet,
        upstream: Upstream,
        broadcast: Broadcast,
        records: Records,
        statistics: Statistics,
        *,
        fleet_wide: bool,
    ) -> None:
        self._fleet = fleet
        self._statistics = statistics
        self._upstream = upstream
        self._broadcast = broadcast
        self._records = records
        self._unary: dict[str, _Unary] = {
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
        fleet_wide_calls: dict[str, _Unary] = {
            "TraceSetting": self._trace,
            "LogSettings": self._log,
            **{f"{kind}SharedMemoryStatus": self._first(f"{kind}SharedMemoryStatus") for kind in _KINDS},
            **{f"{kind}SharedMemoryRegister": self._register(kind) for kind in _KINDS},
            **{f"{kind}SharedMemoryUnregister": self._unregister(kind) for kind in _KINDS},
        }
        self._unary |= fleet_wide_calls if fleet_wide else dict.fromkeys(fleet_wide_calls, self._deny)

    def service(self, handler_call_details: Any) -> Any:
        """The handler of a method; None, which is UNIMPLEMENTED, for one that is not Triton's."""
        method = handler_call_details.method.removeprefix(SERVICE)
        if method == "ModelStreamInfer":
            return grpc.stream_stream_rpc_method_handler(self._stream)
        handler = self._unary.get(method)
        return None if handler is None else grpc.unary_unary_rpc_method_handler(_refusing_malformed(handler))

    async def _live(self, _: bytes, context: Any) -> bytes:
        return _bytes(service_pb2.ServerLiveResponse(live=True))

    async def _ready(self, _: bytes, context: Any) -> bytes:
        return _bytes(service_pb2.ServerReadyResponse(ready=await self._fleet.ready()))

    async def _metadata(self, _: bytes, context: Any) -> bytes:
        return _bytes(service_pb2.ServerMetadataResponse(**await self._fleet.metadata()))

    async def _index(self, message: bytes, context: Any) -> bytes:
        request = service_pb2.RepositoryIndexRequest.FromString(message)
        if request.repository_name:
            await _abort(
                context, grpc.StatusCode.UNIMPLEMENTED, "'repository_name' specification is not supported"
            )
        answer = service_pb2.RepositoryIndexResponse()
        for entry in await self._fleet.repository_index(request.ready):
            answer.models.add(**entry)
        return _bytes(answer)

    async def _refuse(self, _: bytes, context: Any) -> bytes:
        await _abort(context, grpc.StatusCode.PERMISSION_DENIED, _REFUSED)

    async def _deny(self, _: bytes, context: Any) -> bytes:
        await _abort(context, grpc.StatusCode.PERMISSION_DENIED, DENIED)

    async def _infer(self, message: bytes, context: Any) -> bytes:
        name = text_field(message, 1)
        if name not in self._fleet.routes:
            await _abort(
                context, grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{name}' is not found"
            )
        if self._fleet.traits(name).sequence_idle_us is None:
            return await self._stateless(name, message, context)
        sequence = sequence_of(message)
        backend = self._fleet.choose_in_sequence((name, sequence.id), start=sequence.start)
        assert backend is not None  # the name is routed
        try:
            return await self._timed(name, backend, message, context)
        except grpc.aio.AioRpcError as error:
            await _pass_on(context, error)
        finally:
            self._fleet.leave_sequence((name, sequence.id), end=sequence.end)

    async def _stateless(self, name: str, message: bytes, context: Any) -> bytes:
        """One that was not answered because its server was not there may go to another."""
        tried: set[str] = set()
        while True:
            backend = self._fleet.choose(name)
            if backend is None:
                await _unknown(context, name)
            try:
                return await self._timed(name, backend, message, context)
            except grpc.aio.AioRpcError as error:
                if unconnected(error):
                    self._fleet.lost(backend)
                    tried.add(backend.server)
                    other = self._fleet.choose(name)
                    if other is not None and other.server not in tried:
                        continue
                await _pass_on(context, error)

    async def _timed(self, name: str, backend: Backend, message: bytes, context: Any) -> bytes:
        started = time.monotonic()
        status = 0
        answer = b""
        try:
            with self._fleet.call(backend):
                answer = bytes(await self._upstream.unary(backend, "ModelInfer", message, context))
                return answer
        except grpc.aio.AioRpcError as error:
            status = error.code().value[0]
            raise
        except asyncio.CancelledError:
            status = grpc.StatusCode.CANCELLED.value[0]
            raise
        finally:
            self._records.request(name, backend, started, len(message), len(answer), http=200, grpc=status)

    def _by_name(self, method: str) -> _Unary:
        async def forward(message: bytes, context: Any) -> bytes:
            name = text_field(message, 1)
            backend = self._fleet.choose(name)
            if backend is None:
                if method == "ModelReady":
                    return _bytes(service_pb2.ModelReadyResponse(ready=False))
                await _unknown(context, name)
            return await self._ask(backend, method, message, context)

        return forward

    async def _model_statistics(self, message: bytes, context: Any) -> bytes:
        name = text_field(message, 1)
        if not name:
            return _statistics_bytes(await self._statistics.of_fleet())
        backend = self._fleet.choose(name)
        if backend is None:
            await _abort(
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
            await _pass_on(context, error)

    def _first(self, method: str) -> _Unary:
        async def ask(message: bytes, context: Any) -> bytes:
            return await self._ask((await self._all(context))[0], method, message, context)

        return ask

    def _register(self, kind: str) -> _Unary:
        async def register(message: bytes, context: Any) -> bytes:
            name = text_field(message, 1)
            undo = getattr(service_pb2, f"{kind}SharedMemoryUnregisterRequest")(name=name).SerializeToString()
            method = f"{kind}SharedMemoryRegister"
            region = _region(getattr(service_pb2, f"{method}Request").FromString(message))
            key = region_key(kind.lower(), name)
            self._broadcast.check(key, region)
            answer = await self._send(
                await self._all(context), method, message, f"{kind}SharedMemoryUnregister", undo, context
            )
            self._broadcast.keep(key, region)
            return answer

        return register

    def _unregister(self, kind: str) -> _Unary:
        async def unregister(message: bytes, context: Any) -> bytes:
            name = text_field(message, 1)
            method = f"{kind}SharedMemoryUnregister"
            answer = await self._send(await self._all(context), method, message, None, b"", context)
            prefix = f"/v2/{kind.lower()}sharedmemory/region/"
            self._broadcast.forget(f"{prefix}{name}/" if name else prefix)
            return answer

        return unregister

    async def _trace(self, message: bytes, context: Any) -> bytes:
        request = service_pb2.TraceSettingRequest.FromString(message)
        name = request.model_name
        if name and name not in self._fleet.routes:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, f"Request for unknown model : {name}")
        targets = everyone(self._fleet.routes[name]) if name else await self._all(context)
        if not request.settings:
            return await self._ask(targets[0], "TraceSetting", message, context)
        values = {key: list(setting.value) or None for key, setting in request.settings.items()}
        body = {k: v if v is None or k == "trace_level" else v[0] for k, v in values.items()}
        return await self._settings(targets, "TraceSetting", message, context, name, body)

    async def _log(self, message: bytes, context: Any) -> bytes:
        request = service_pb2.LogSettingsRequest.FromString(message)
        targets = await self._all(context)
        if not request.settings:
            return await self._ask(targets[0], "LogSettings", message, context)
        settings = request.settings.items()
        body = {key: getattr(v, v.WhichOneof("parameter_choice") or "string_param") for key, v in settings}
        return await self._settings(targets, "LogSettings", message, context, "", body)

    async def _settings(
        self,
        targets: Sequence[Backend],
        method: str,
        message: bytes,
        context: Any,
        model: str,
        kept: Body,
    ) -> bytes:
        """What is refused by one server is put back on the others as it was on the first."""
        key = setting_key("logging" if method == "LogSettings" else "trace/setting", model)
        self._broadcast.check(key, kept)
        kind = getattr(service_pb2, f"{method}Request")
        asked = kind.FromString(message)
        query = kind(model_name=asked.model_name) if method == "TraceSetting" else kind()
        # A response has the wire form of a request that would set it all.
        before = kind.FromString(await self._ask(targets[0], method, _bytes(query), context))
        undo = kind()
        undo.CopyFrom(query)
        for key in asked.settings:
            undo.settings[key].CopyFrom(before.settings[key])
        answer = await self._send(targets, method, message, method, _bytes(undo), context)
        self._broadcast.keep(key, kept)
        return answer

    async def _send(
        self,
        targets: Sequence[Backend],
        method: str,
        message: bytes,
        undo_method: str | None,
        undo: bytes,
        context: Any,
    ) -> bytes:
        async def tell(backend: Backend) -> bytes:
            answer: bytes = await self._upstream.unary(backend, method, message, context)
            return answer

        async def take_back(backend: Backend) -> object:
            return await self._upstream.unary(backend, undo_method, undo, context) if undo_method else None

        try:
            return await self._broadcast.send(targets, tell, take_back)
        except Refused as refused:
            error = refused.cause
            where = "" if refused.first else f" (by {refused.backend.server}; nothing was changed anywhere)"
            if not isinstance(error, grpc.aio.AioRpcError):
                await _abort(context, grpc.StatusCode.UNAVAILABLE, f"{refused}{where}")
            await _abort(context, error.code(), f"{error.details()}{where}")

    async def _all(self, context: Any) -> Sequence[Backend]:
        servers = self._fleet.servers()
        if not servers:
            await _abort(context, grpc.StatusCode.UNAVAILABLE, "no server runs in this fleet")
        return servers

    async def _stream(self, messages: AsyncIterator[bytes], context: Any) -> None:
        try:
            await Stream(self._fleet, self._upstream, self._records, context).run(messages)
        except StreamFailed as failure:
            await _abort(context, failure.code, failure.details)


_KINDS = ("System", "Cuda")


def _region(request: Any) -> dict[str, Any]:
    """A registration as HTTP says it."""
    if isinstance(request, service_pb2.SystemSharedMemoryRegisterRequest):
        return {"key": request.key, "offset": request.offset, "byte_size": request.byte_size}
    handle = base64.b64encode(request.raw_handle).decode()
    return {
        "raw_handle": {"b64": handle},
        "device_id": request.device_id,
        "byte_size": request.byte_size,
    }


async def serve(service: Service, address: str) -> Any:
    """A started server; the caller stops it."""
    # gRPC decompresses up to this size and refuses the rest with RESOURCE_EXHAUSTED.
    server = grpc.aio.server(options=(*OPTIONS, ("grpc.max_receive_message_length", LARGEST_BYTES)))
    server.add_generic_rpc_handlers((service,))
    server.add_insecure_port(address)
    await server.start()
    return server


def _refusing_malformed(handler: _Unary) -> _Unary:
    async def handle(message: bytes, context: Any) -> bytes:
        try:
            return await handler(message, context)
        except (Malformed, DecodeError) as error:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, f"unable to parse the request: {error}")
        except NotKept as refusal:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(refusal))

    return handle


async def _abort(context: Any, code: Any, details: str) -> NoReturn:
    await context.abort(code, details)
    raise AssertionError("abort raises")


async def _unknown(context: Any, name: str) -> NoReturn:
    await _abort(context, grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{name}' is not found")


async def _pass_on(context: Any, error: Any) -> NoReturn:
    await context.abort(error.code(), error.details() or "", error.trailing_metadata() or ())
    raise AssertionError("abort raises")


def _statistics_bytes(statistics: dict[str, Any]) -> bytes:
    """As one Triton's answer."""
    answer = service_pb2.ModelStatisticsResponse()
    return _bytes(json_format.ParseDict(statistics, answer, ignore_unknown_fields=True))


def _bytes(message: Any) -> bytes:
    serialised: bytes = message.SerializeToString()
    return serialised
