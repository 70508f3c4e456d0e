"""HTTP to each Triton from an event loop, over its Unix sockets where it has some."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from typing import Any

import aiohttp

from controlplane.domain.fleet import Backend, socket_path

_Port = tuple[str, int]
"""A host, and a port of it."""


@dataclass(slots=True)
class _Session:
    client: aiohttp.ClientSession
    calls: int = 0
    ended: bool = False


class TritonSessions:
    """A session for each port of a server. `options` are those of `aiohttp.ClientSession`."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._sessions: dict[_Port, _Session] = {}

    @contextlib.asynccontextmanager
    async def request(
        self, port: _Port, method: str, path: str, **options: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Call a server as `aiohttp.ClientSession.request` does, and raise what that raises."""
        unix = socket_path(*port)
        if port not in self._sessions:
            connector = (
                aiohttp.TCPConnector(limit=0) if unix is None else aiohttp.UnixConnector(unix, limit=0)
            )
            self._sessions[port] = _Session(aiohttp.ClientSession(connector=connector, **self._options))
        session = self._sessions[port]
        session.calls += 1
        try:
            # The host of a Unix socket means nothing.
            at = f"{port[0]}:{port[1]}" if unix is None else "triton"
            async with session.client.request(method, f"http://{at}{path}", **options) as answer:
                yield answer
        finally:
            session.calls -= 1
            if session.ended and not session.calls:
                await session.client.close()

    async def keep_only(self, servers: Collection[Backend]) -> None:
        """Close the connections to all other servers, each once its calls have ended."""
        wanted = {(one.host, port) for one in servers for port in (one.http_port, one.metrics_port)}
        for port in self._sessions.keys() - wanted:
            session = self._sessions.pop(port)
            session.ended = True
            if not session.calls:
                await session.client.close()

    async def aclose(self) -> None:
        """Close all connections."""
        await self.keep_only(())
