"""The facade's control socket: `reload`, `open` and `ping`, one JSON object a line."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from controlplane.domain.errors import TrisectError
from controlplane.gateway.facade.routing.fleet import Fleet

Reload = Callable[[], Awaitable[None]]


async def _answer(fleet: Fleet, reload: Reload, request: dict[str, Any]) -> dict[str, Any]:
    match request.get("do"):
        case "reload":
            await reload()
            return {"endpoints": len(fleet.routes), "sockets": True}
        case "open":
            return {server: asdict(found) for server, found in fleet.in_flight().items()}
        case "ping":
            return {"pid": os.getpid()}
        case unknown:
            return {"error": f"unknown request {unknown!r}"}


async def serve(fleet: Fleet, reload: Reload, path: str) -> asyncio.AbstractServer:
    """Listen; the caller closes."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                try:
                    answer = await _answer(fleet, reload, json.loads(line))
                except (TrisectError, ValueError) as error:
                    answer = {"error": str(error)}
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    return await asyncio.start_unix_server(talk, path)
