"""The facade's gRPC. Messages pass as bytes; only a model's name is read from them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from controlplane.domain.fleet import Backend
from controlplane.gateway.facade.fleet import Fleet
from controlplane.gateway.facade.over_http import unknown_model
from controlplane.gateway.facade.wire import text_field

_SERVICE = "/inference.GRPCInferenceService/"
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.http2.max_pings_without_data", 0),
)
_BY_NAME = ("ModelInfer", "ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics")
_Unary = Callable[[bytes, Any], Awaitable[bytes]]


class Service(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Every method of Triton's service that HAProxy does not route.

    Those it routes are here too: for bodies that it cannot read (compressed ones) and names it does not know.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._channels: dict[tuple[str, int], Any] = {}
        self._unary: dict[str, _Unary] = {
            "ServerLive": self._live,
            "ServerReady": self._ready,
            "ServerMetadata": self._metadata,
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": self._refuse,
            "RepositoryModelUnload": self._refuse,
            **{name: self._forwarding(name) for name in _BY_NAME},
        }

    def service(self, handler_call_details: Any) -> Any:
        """The handler of a method; None, which is UNIMPLEMENTED, for one that is not Triton's."""
        handler = self._unary.get(handler_call_details.method.removeprefix(_SERVICE))
        return None if handler is None else grpc.unary_unary_rpc_method_handler(handler)

    async def close(self) -> None:
        """Close the connections to the servers."""
        for channel in self._channels.values():
            await channel.close()

    def _channel(self, backend: Backend) -> Any:
        key = (backend.host, backend.grpc_port)
        if key not in self._channels:
            self._channels[key] = grpc.aio.insecure_channel(f"{key[0]}:{key[1]}", options=_OPTIONS)
        return self._channels[key]

    async def _live(self, _: bytes, context: Any) -> bytes:
        return _bytes(service_pb2.ServerLiveResponse(live=True))

    async def _ready(self, _: bytes, context: Any) -> bytes:
        return _bytes(service_pb2.ServerReadyResponse(ready=await self._fleet.ready()))

    async def _metadata(self, _: bytes, context: Any) -> bytes:
        return _bytes(service_pb2.ServerMetadataResponse(**await self._fleet.metadata()))

    async def _index(self, request: bytes, context: Any) -> bytes:
        wanted = service_pb2.RepositoryIndexRequest.FromString(request).ready
        answer = service_pb2.RepositoryIndexResponse()
        for entry in await self._fleet.repository_index(wanted):
            answer.models.add(**entry)
        return _bytes(answer)

    async def _refuse(self, _: bytes, context: Any) -> bytes:
        await context.abort(
            grpc.StatusCode.PERMISSION_DENIED,
            "models are loaded and unloaded by the control plane, not by clients",
        )
        raise AssertionError("abort raises")

    def _forwarding(self, method: str) -> _Unary:
        async def forward(request: bytes, context: Any) -> bytes:
            name = text_field(request, 1) or ""
            backend = self._fleet.choose(name)
            if backend is None:
                await context.abort(grpc.StatusCode.NOT_FOUND, unknown_model(name)[1])
                raise AssertionError("abort raises")
            call = self._channel(backend).unary_unary(_SERVICE + method)
            with self._fleet.call(backend):
                try:
                    answer: bytes = await call(
                        request, timeout=context.time_remaining(), metadata=context.invocation_metadata()
                    )
                    return answer
                except grpc.aio.AioRpcError as error:
                    await context.abort(error.code(), error.details() or "", error.trailing_metadata())
                    raise AssertionError("abort raises") from error

        return forward


async def serve(service: Service, address: str) -> Any:
    """A started server; the caller stops it."""
    server = grpc.aio.server(options=_OPTIONS)
    server.add_generic_rpc_handlers((service,))
    server.add_insecure_port(address)
    await server.start()
    return server


def _bytes(message: Any) -> bytes:
    serialised: bytes = message.SerializeToString()
    return serialised
