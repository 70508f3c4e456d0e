"""Fleet-wide calls over gRPC."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn

import grpc
from tritonclient.grpc import service_pb2

from controlplane.domain.fleet import Backend
from controlplane.gateway.facade.fleet_wide.broadcast import DENIED, Broadcast, Call, Refused
from controlplane.gateway.facade.fleet_wide.kept import Body, region_key, setting_key
from controlplane.gateway.facade.fleet_wide.regions import ANY_REGION, Regions
from controlplane.gateway.facade.messages.status import abort, as_bytes, pass_on
from controlplane.gateway.facade.messages.wire import text_field
from controlplane.gateway.facade.routing.fleet import Fleet, everyone
from controlplane.gateway.facade.upstream import Upstream

Unary = Callable[[bytes, Any], Awaitable[bytes]]
Shared = Callable[[bytes, Any, Regions], Awaitable[bytes]]
"""A fleet-wide call of a client with these regions."""
_KINDS = ("System", "Cuda")


class GrpcCalls:
    """Handlers of fleet-wide calls. They raise NotKept, NotOwned and Refused (`abort_refused` answers it)."""

    def __init__(self, fleet: Fleet, upstream: Upstream, broadcast: Broadcast) -> None:
        self._fleet = fleet
        self._upstream = upstream
        self._broadcast = broadcast

    def methods(self, *, allowed: bool) -> dict[str, Shared]:
        """Return the handlers by method; unless `allowed`, each refuses."""
        handlers: dict[str, Shared] = {
            "TraceSetting": self._trace,
            "LogSettings": self._log,
            **{f"{kind}SharedMemoryStatus": self._status(kind) for kind in _KINDS},
            **{f"{kind}SharedMemoryRegister": self._register(kind) for kind in _KINDS},
            **{f"{kind}SharedMemoryUnregister": self._unregister(kind) for kind in _KINDS},
        }
        return handlers if allowed else dict.fromkeys(handlers, _deny)

    def _status(self, kind: str) -> Shared:
        method = f"{kind}SharedMemoryStatus"

        async def ask(message: bytes, context: Any, owned: Regions) -> bytes:
            if name := text_field(message, 1):
                owned.check(name)
            answer = await self._ask((await self._all(context))[0], method, message, context)
            if owned is ANY_REGION:
                return answer
            listed = getattr(service_pb2, f"{method}Response").FromString(answer)
            for name in [name for name in listed.regions if not owned.owns(name)]:
                del listed.regions[name]
            return as_bytes(listed)

        return ask

    def _register(self, kind: str) -> Shared:
        async def register(message: bytes, context: Any, owned: Regions) -> bytes:
            name = text_field(message, 1)
            method = f"{kind}SharedMemoryRegister"
            request = getattr(service_pb2, f"{method}Request").FromString(message)
            owned.check(name, request.key if kind == "System" else None)
            call = Call(
                self._sending(method, message, context),
                undo=self._sending(f"{kind}SharedMemoryUnregister", _unregistering(kind, name), context),
                keep=(region_key(kind.lower(), name), _region(request)),
            )
            return await self._broadcast.send(await self._all(context), call)

        return register

    def _unregister(self, kind: str) -> Shared:
        memory = f"{kind.lower()}sharedmemory"

        async def unregister(message: bytes, context: Any, owned: Regions) -> bytes:
            name = text_field(message, 1)
            if name:
                owned.check(name)
            if name or owned is ANY_REGION:
                return await unregister_one(name, context)
            for one in filter(owned.owns, self._broadcast.regions(memory)):
                await unregister_one(one, context)
            return b""

        async def unregister_one(name: str, context: Any) -> bytes:
            prefix = f"/v2/{memory}/region/"
            call = Call(
                self._sending(f"{kind}SharedMemoryUnregister", _unregistering(kind, name), context),
                forget=f"{prefix}{name}/" if name else prefix,
            )
            return await self._broadcast.send(await self._all(context), call)

        return unregister

    async def _trace(self, message: bytes, context: Any, _: Regions) -> bytes:
        request = service_pb2.TraceSettingRequest.FromString(message)
        name = request.model_name
        if name and name not in self._fleet.routes:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, f"Request for unknown model : {name}")
        targets = everyone(self._fleet.routes[name]) if name else await self._all(context)
        query = service_pb2.TraceSettingRequest(model_name=name)
        values = {key: list(setting.value) or None for key, setting in request.settings.items()}
        body = {k: v if v is None or k == "trace_level" else v[0] for k, v in values.items()}
        return await self._set(
            targets, "TraceSetting", request, query, context, (setting_key("trace/setting", name), body)
        )

    async def _log(self, message: bytes, context: Any, _: Regions) -> bytes:
        request = service_pb2.LogSettingsRequest.FromString(message)
        settings = request.settings.items()
        body = {key: getattr(v, v.WhichOneof("parameter_choice") or "string_param") for key, v in settings}
        query, keep = service_pb2.LogSettingsRequest(), (setting_key("logging"), body)
        return await self._set(await self._all(context), "LogSettings", request, query, context, keep)

    async def _set(
        self,
        targets: Sequence[Backend],
        method: str,
        wanted: Any,
        query: Any,
        context: Any,
        keep: tuple[str, Body],
    ) -> bytes:
        """Change settings, or answer `query` without any. Undone, they are as on the first server before."""
        answer = await self._ask(targets[0], method, as_bytes(query), context)
        if not wanted.settings:
            return answer
        # A response has the wire form of a request that would set everything.
        before = type(wanted).FromString(answer)
        undo = type(wanted)()
        undo.CopyFrom(query)
        for key in wanted.settings:
            undo.settings[key].CopyFrom(before.settings[key])
        call = Call(
            self._sending(method, as_bytes(wanted), context),
            undo=self._sending(method, as_bytes(undo), context),
            keep=keep,
        )
        return await self._broadcast.send(targets, call)

    def _sending(self, method: str, message: bytes, context: Any) -> Callable[[Backend], Awaitable[bytes]]:
        async def send(backend: Backend) -> bytes:
            answer: bytes = await self._upstream.unary(backend, method, message, context)
            return answer

        return send

    async def _ask(self, backend: Backend, method: str, message: bytes, context: Any) -> bytes:
        try:
            answer: bytes = await self._upstream.unary(backend, method, message, context)
            return answer
        except grpc.aio.AioRpcError as error:
            await pass_on(context, error)

    async def _all(self, context: Any) -> Sequence[Backend]:
        servers = self._fleet.servers()
        if not servers:
            await abort(context, grpc.StatusCode.UNAVAILABLE, "no server runs in this fleet")
        return servers


async def abort_refused(context: Any, refused: Refused) -> NoReturn:
    """End the client's call with a server's refusal: its own words where it was the first one."""
    error = refused.cause
    where = "" if refused.first else f" (by {refused.backend.server}; nothing was changed anywhere)"
    if not isinstance(error, grpc.aio.AioRpcError):
        await abort(context, grpc.StatusCode.UNAVAILABLE, f"{refused}{where}")
    await abort(context, error.code(), f"{error.details()}{where}")


async def _deny(_: bytes, context: Any, _owned: Regions) -> bytes:
    await abort(context, grpc.StatusCode.PERMISSION_DENIED, DENIED)


def _unregistering(kind: str, name: str) -> bytes:
    return as_bytes(getattr(service_pb2, f"{kind}SharedMemoryUnregisterRequest")(name=name))


def _region(request: Any) -> dict[str, Any]:
    """Return a registration in the form that HTTP has for it."""
    if isinstance(request, service_pb2.SystemSharedMemoryRegisterRequest):
        return {"key": request.key, "offset": request.offset, "byte_size": request.byte_size}
    handle = base64.b64encode(request.raw_handle).decode()
    return {
        "raw_handle": {"b64": handle},
        "device_id": request.device_id,
        "byte_size": request.byte_size,
    }
