"""Fleet-wide calls over gRPC."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from controlplane.gateway.facade.callers import ANY_REGION, Caller
from controlplane.gateway.facade.fleet import Fleet
from controlplane.gateway.facade.fleet_wide.broadcast import Broadcast, Call, Refused, Region
from controlplane.gateway.facade.refusals import Refusal
from controlplane.gateway.facade.upstream import Upstream
from controlplane.gateway.facade.wire import as_bytes, text_field

Handler = Callable[[str, bytes, Any, Caller], Awaitable[bytes]]
"""Of a method, a message, its context and its caller."""
_SHARED = "SharedMemory"


class GrpcCalls:
    """Handlers of fleet-wide calls. They raise Refusal, Refused and AioRpcError."""

    def __init__(self, fleet: Fleet, upstream: Upstream, broadcast: Broadcast) -> None:
        self._fleet = fleet
        self._upstream = upstream
        self._broadcast = broadcast

    def methods(self) -> dict[str, Handler]:
        """Return the handlers by method."""
        memory = {"Status": self._status, "Register": self._register, "Unregister": self._unregister}
        return {
            "TraceSetting": self._settings,
            "LogSettings": self._settings,
            **{f"{kind}{_SHARED}{verb}": memory[verb] for kind in ("System", "Cuda") for verb in memory},
        }

    async def _status(self, method: str, message: bytes, context: Any, caller: Caller) -> bytes:
        owned = self._broadcast.admit(caller)
        if name := text_field(message, 1):
            owned.check(name)
        answer: bytes = await self._upstream.unary(self._fleet.all_servers()[0], method, message, context)
        if owned is ANY_REGION:
            return answer
        listed = getattr(service_pb2, f"{method}Response").FromString(answer)
        for name in [name for name in listed.regions if not owned.owns(name)]:
            del listed.regions[name]
        return as_bytes(listed)

    async def _register(self, method: str, message: bytes, context: Any, caller: Caller) -> bytes:
        owned, region = self._broadcast.admit(caller), _region(method, message)
        request = getattr(service_pb2, f"{method}Request").FromString(message)
        owned.check(region.name, request.key if region.kind == "system" else None)
        unregister = method.replace("Register", "Unregister")
        call = Call(
            self._sending(method, message, context),
            undo=self._sending(unregister, _unregistering(unregister, region), context),
            keep=(region.key, _as_over_http(request)),
        )
        return await self._broadcast.send(self._fleet.all_servers(), call)

    async def _unregister(self, method: str, message: bytes, context: Any, caller: Caller) -> bytes:
        owned = self._broadcast.admit(caller)
        answer = b""
        for one in self._broadcast.regions_to_remove(_region(method, message), owned):
            call = Call(self._sending(method, _unregistering(method, one), context), forget=one.prefix)
            answer = await self._broadcast.send(self._fleet.all_servers(), call)
        return answer

    async def _settings(self, method: str, message: bytes, context: Any, caller: Caller) -> bytes:
        """Change settings, or answer those there are. Undone, they are as on the first server before."""
        self._broadcast.admit(caller)
        wanted = getattr(service_pb2, f"{method}Request").FromString(message)
        changed, query = wanted.settings.items(), type(wanted)()
        if method == "TraceSetting":
            query.model_name = name = wanted.model_name
            targets = self._fleet.known(name).servers if name else self._fleet.all_servers()
            key = f"/v2/models/{name}/trace/setting" if name else "/v2/trace/setting"
            values = {k: list(one.value) or None for k, one in changed}
            kept = {k: v if v is None or k == "trace_level" else v[0] for k, v in values.items()}
        else:
            targets, key = self._fleet.all_servers(), "/v2/logging"
            kept = {k: getattr(v, v.WhichOneof("parameter_choice") or "string_param") for k, v in changed}
        answer: bytes = await self._upstream.unary(targets[0], method, as_bytes(query), context)
        if not wanted.settings:
            return answer
        # A response has the wire form of a request that would set everything.
        before = type(wanted).FromString(answer)
        for one in wanted.settings:
            query.settings[one].CopyFrom(before.settings[one])
        call = Call(
            self._sending(method, message, context),
            undo=self._sending(method, as_bytes(query), context),
            keep=(key, kept),
        )
        return await self._broadcast.send(targets, call)

    def _sending(self, method: str, message: bytes, context: Any) -> Any:
        return partial(self._upstream.unary, method=method, message=message, context=context)


def refusal(refused: Refused) -> Refusal:
    """Return a server's refusal as the fleet's: its own words where it was the first one."""
    error = refused.cause
    where = "" if refused.first else f" (by {refused.backend.server}; nothing was changed anywhere)"
    if isinstance(error, grpc.aio.AioRpcError):
        return Refusal(error.code(), f"{error.details()}{where}")
    return Refusal(grpc.StatusCode.UNAVAILABLE, f"{refused}{where}")


def _region(method: str, message: bytes) -> Region:
    return Region(method.partition(_SHARED)[0].lower(), text_field(message, 1))


def _unregistering(method: str, region: Region) -> bytes:
    return as_bytes(getattr(service_pb2, f"{method}Request")(name=region.name))


def _as_over_http(request: Any) -> Mapping[str, object]:
    if isinstance(request, service_pb2.SystemSharedMemoryRegisterRequest):
        return {"key": request.key, "offset": request.offset, "byte_size": request.byte_size}
    handle = {"b64": base64.b64encode(request.raw_handle).decode()}
    return {"raw_handle": handle, "device_id": request.device_id, "byte_size": request.byte_size}
