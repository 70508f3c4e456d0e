"""The facade's control socket: `reload`, `open` and `ping`, one JSON object a line."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from controlplane.domain.errors import TrisectError
from controlplane.gateway.facade.fleet import Fleet


def _answer(fleet: Fleet, request: dict[str, Any]) -> dict[str, Any]:
    match request.get("do"):
        case "reload":
            fleet.reload()
            return {"endpoints": len(fleet.routes)}
        case "open":
            return {server: count for server, count in fleet.open.items() if count}
        case "ping":
            return {"pid": os.getpid()}
        case unknown:
            return {"error": f"unknown request {unknown!r}"}


async def serve(fleet: Fleet, path: str) -> asyncio.AbstractServer:
    """Listen; the caller closes."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                try:
                    answer = _answer(fleet, json.loads(line))
                except (TrisectError, ValueError) as error:
                    answer = {"error": str(error)}
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    return await asyncio.start_unix_server(talk, path)
