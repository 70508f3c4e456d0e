"""gRPC's connections: from HAProxy to gRPC's own server, and to the Tritons."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import grpc

from controlplane.domain.fleet import Backend
from controlplane.gateway.facade.callers import OWN_HEADERS

SERVICE = "/inference.GRPCInferenceService/"
OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)
_IDENTITY_ONLY = 1
_CHANNEL_OPTIONS = (
    *OPTIONS,
    ("grpc.max_receive_message_length", -1),
    # A server compresses answers only in encodings that its client accepts.
    ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_ONLY),
)
_GRACE_S = 3600.0
_FRAME_HEAD = 9
_RESET, _NO_ERROR = b"\x03", bytes(4)
"""Of HTTP/2: the type of RST_STREAM, and its payload without an error."""
_LOST = (
    *("failed to connect", "connections to all", "connection reset by peer", "socket closed"),
    *("recvmsg:", "sendmsg:", "goaway", "endpoint closing", "eof"),
)
"""How gRPC's own words for a connection that did not open or broke begin. A model's code may say the same of
its database, and its request is not to be sent again."""
_OWN = ("grpc-", ":", "user-agent", "content-type", "te", *OWN_HEADERS)


class Upstream:
    """One channel to each Triton; messages are bytes, never compressed."""

    def __init__(self) -> None:
        self._channels: dict[tuple[str, int], Any] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def _channel(self, backend: Backend) -> Any:
        key = (backend.host, backend.grpc_port)
        if key not in self._channels:
            self._channels[key] = grpc.aio.insecure_channel(f"{key[0]}:{key[1]}", options=_CHANNEL_OPTIONS)
        return self._channels[key]

    def unary(self, backend: Backend, method: str, message: bytes, context: Any) -> Any:
        """A call with the client's own metadata and what is left of its deadline; await it."""
        call = self._channel(backend).unary_unary(SERVICE + method)
        return call(message, timeout=context.time_remaining(), metadata=passed_on(context))

    def stream(self, backend: Backend, context: Any) -> Any:
        """A ModelStreamInfer call."""
        call = self._channel(backend).stream_stream(SERVICE + "ModelStreamInfer")
        return call(timeout=context.time_remaining(), metadata=passed_on(context))

    def keep_only(self, servers: tuple[Backend, ...]) -> None:
        """Close channels to servers that are gone, once their calls have ended or had an hour to."""
        wanted = {(server.host, server.grpc_port) for server in servers}
        for key in self._channels.keys() - wanted:
            closing = asyncio.create_task(self._channels.pop(key).close(grace=_GRACE_S))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all channels."""
        for channel in self._channels.values():
            await channel.close()


def passed_on(context: Any) -> tuple[tuple[str, str | bytes], ...]:
    """The client's metadata without what belongs to its own connection."""
    return tuple((k, v) for k, v in context.invocation_metadata() or () if not k.startswith(_OWN))


def closing(messages: Any) -> contextlib.aclosing[AsyncGenerator[bytes]]:
    """A client's messages. Until it is closed, gRPC's iterator holds the last one in a circle."""
    return contextlib.aclosing(aiter(messages))


def unconnected(error: Any) -> bool:
    """Return whether a call failed because its connection did not open or broke.

    A running Triton also answers UNAVAILABLE, for a model, its code or a full queue, with other details.
    """
    unavailable = error.code() == grpc.StatusCode.UNAVAILABLE
    return unavailable and (error.details() or "").lower().startswith(_LOST)


def held(error: Any) -> bool:
    """Return whether a server may have had the request of a call that is `unconnected`."""
    return "failed to connect" not in (error.details() or "").lower()


class _End(asyncio.Protocol):
    """One end of a connection that is passed on: what it receives, `other` sends."""

    def __init__(self) -> None:
        self.other: _End | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if (target := self._target()) is not None:
            target.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if (target := self._target()) is not None:
            target.close()

    def pause_writing(self) -> None:
        if (source := self._target()) is not None:
            source.pause_reading()

    def resume_writing(self) -> None:
        if (source := self._target()) is not None:
            source.resume_reading()

    def _target(self) -> asyncio.Transport | None:
        return None if self.other is None else self.other.transport


class _Inner(_End):
    """The end towards gRPC's server, without its resets that report no error.

    One follows the trailers of a stream that its client has not closed. When a reset comes, HAProxy drops
    trailers that it has not sent (`h2c_handle_rst_stream`), and with them the status. A client closes the
    stream itself once it has the status.
    """

    def __init__(self) -> None:
        super().__init__()
        self._held = b""
        self._passing = 0

    def data_received(self, data: bytes) -> None:
        data = self._held + data
        kept, begun, at = [], 0, 0
        while at < len(data):
            if self._passing:
                step = min(self._passing, len(data) - at)
                self._passing -= step
                at += step
                continue
            size = _FRAME_HEAD + int.from_bytes(data[at : at + 3], "big")
            is_reset = data[at + 3 : at + 4] == _RESET
            if len(data) - at < (size if is_reset else _FRAME_HEAD):
                break
            if is_reset and data[at + _FRAME_HEAD : at + size] == _NO_ERROR:
                kept.append(data[begun:at])
                begun = at = at + size
            else:
                self._passing = size
        self._held = data[at:]
        super().data_received(b"".join((*kept, data[begun:at])))


class _Outer(_End):
    """The end towards HAProxy.

    What it receives before the other end is connected is kept: where a protocol pauses reading while its
    connection is made, Python 3.11.2 goes on reading.
    """

    def __init__(self, target: Path) -> None:
        super().__init__()
        self._at = target
        self._early: list[bytes] = []
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        self._connecting = asyncio.create_task(self._connect(self.transport))

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self._early.append(data)
        else:
            super().data_received(data)

    async def _connect(self, transport: asyncio.Transport) -> None:
        inner = _Inner()
        inner.other = self
        loop = asyncio.get_running_loop()
        try:
            connected, _ = await loop.create_unix_connection(lambda: inner, str(self._at))
        except OSError:
            transport.close()
            return
        self.other = inner
        connected.writelines(self._early)
        self._early.clear()
        if transport.is_closing():
            connected.close()


async def relay(listener: socket.socket, target: Path) -> asyncio.Server:
    """Accept connections and pass them on to the Unix socket `target`; the caller closes.

    gRPC's server can listen on no inherited socket.
    """
    loop = asyncio.get_running_loop()
    return await loop.create_unix_server(lambda: _Outer(target), sock=listener)
