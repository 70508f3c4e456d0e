"""Passes the connections of an inherited socket on to gRPC's server, which can listen on none but its own."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import cast


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


class _Outer(_End):
    """The end towards HAProxy, which is read once the other end is connected."""

    def __init__(self, target: Path) -> None:
        super().__init__()
        self._at = target
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        self.transport.pause_reading()
        self._connecting = asyncio.create_task(self._connect(self.transport))

    async def _connect(self, transport: asyncio.Transport) -> None:
        inner = _End()
        inner.other = self
        loop = asyncio.get_running_loop()
        try:
            connected, _ = await loop.create_unix_connection(lambda: inner, str(self._at))
        except OSError:
            transport.close()
            return
        self.other = inner
        if transport.is_closing():
            connected.close()
        transport.resume_reading()


async def relay(listener: socket.socket, target: Path) -> asyncio.Server:
    """Accept connections and pass them on to the Unix socket `target`; the caller closes."""
    loop = asyncio.get_running_loop()
    return await loop.create_unix_server(lambda: _Outer(target), sock=listener)
