"""Calls that must reach every Triton or none, and are told again to every one that joins later.

Shared memory is registered with a process, not with a fleet; trace and log settings likewise.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp

from controlplane.domain.errors import TrisectError
from controlplane.domain.fleet import Backend
from controlplane.files.documents import read, write_json
from controlplane.gateway.facade.fleet import Fleet
from controlplane.gateway.places import Places

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What a server said over HTTP."""

    status: int
    body: bytes
    content_type: str


class Refused(Exception):
    """A server said no. `first` says that it was the first one asked, so its own words tell all."""

    def __init__(self, backend: Backend, cause: Exception, *, first: bool) -> None:
        super().__init__(str(cause))
        self.backend = backend
        self.cause = cause
        self.first = first


class HttpRefused(Exception):
    """A server's HTTP answer that is no success."""

    def __init__(self, answer: HttpAnswer) -> None:
        super().__init__(answer.body.decode(errors="replace"))
        self.answer = answer


class Broadcast:
    """One broadcast at a time, so that every server hears them in the same order."""

    def __init__(self, fleet: Fleet, session: aiohttp.ClientSession, places: Places) -> None:
        self._fleet = fleet
        self._session = session
        self._file = places.broadcasts
        self._lock = asyncio.Lock()
        self._kept: dict[str, Any] = read(self._file).content if self._file.exists() else {}
        self._told: set[Backend] = set()

    async def send(
        self,
        targets: Sequence[Backend],
        tell: Callable[[Backend], Awaitable[Answer]],
        undo: Callable[[Backend], Awaitable[object]],
    ) -> Answer:
        """Every target's answer is a success, and the first one's is returned; or nothing has changed.

        Raises Refused. The first server is asked alone: what it refuses, nobody else hears.
        """
        async with self._lock:
            first, *others = targets
            try:
                answer = await tell(first)
            except Exception as cause:
                raise Refused(first, cause, first=True) from cause
            told = await asyncio.gather(*(tell(other) for other in others), return_exceptions=True)
            refusals = [(b, e) for b, e in zip(others, told, strict=True) if isinstance(e, Exception)]
            if refusals:
                done = [
                    first,
                    *(b for b, e in zip(others, told, strict=True) if not isinstance(e, Exception)),
                ]
                await asyncio.gather(*(undo(backend) for backend in done), return_exceptions=True)
                raise Refused(*refusals[0], first=False)
            return answer

    def keep(self, path: str, body: object) -> None:
        """Tell this to every server that joins from now on; settings for one path are put together."""
        old = self._kept.get(path)
        if isinstance(old, dict) and isinstance(body, dict) and path.endswith(("/setting", "/logging")):
            body = {**old, **body}
        self._kept[path] = body
        self._write()

    def forget(self, prefix: str) -> None:
        """Tell nothing below this path any more."""
        self._kept = {path: body for path, body in self._kept.items() if not path.startswith(prefix)}
        self._write()

    async def tell_joining(self, servers: Sequence[Backend]) -> None:
        """Bring servers that were not there before to what was told, before any request reaches them."""
        async with self._lock:
            joining = [server for server in servers if server not in self._told]
            for path, body in self._kept.items():
                for server in joining:
                    try:
                        await self.http(server, "POST", path, json.dumps(body).encode())
                    except (HttpRefused, aiohttp.ClientError, TimeoutError) as refusal:
                        print(f"{server.server} does not take {path}: {refusal}", flush=True)
            self._told = set(servers)

    async def http(self, backend: Backend, method: str, path: str, body: bytes) -> HttpAnswer:
        """One server's answer. Raises HttpRefused, or aiohttp.ClientError where there is none."""
        url = f"http://{backend.host}:{backend.http_port}{path}"
        async with self._session.request(method, url, data=body or None) as response:
            answer = HttpAnswer(response.status, await response.read(), response.content_type)
        if answer.status >= 300:
            raise HttpRefused(answer)
        return answer

    def _write(self) -> None:
        with contextlib.suppress(TrisectError):
            write_json(self._file, self._kept)
