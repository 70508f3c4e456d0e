"""What the facade does beside requests: its control socket, a supervisor that runs, and memory given back."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from controlplane.domain.errors import TrisectError
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.gateway import processes
from controlplane.gateway.facade.fleet import Fleet

Reload = Callable[[], Awaitable[None]]

_LOOK_S = 1.0
_WORTH_BYTES = 32 * 2**20


async def _answer(fleet: Fleet, reload: Reload, request: dict[str, Any]) -> dict[str, Any]:
    match request.get("do"):
        case "reload":
            await reload()
            return {"endpoints": len(fleet.routes)}
        case "open":
            return {server: asdict(found) for server, found in fleet.in_flight().items()}
        case "ping":
            return {"pid": os.getpid()}
        case unknown:
            return {"error": f"unknown request {unknown!r}"}


async def serve_control(fleet: Fleet, reload: Reload, path: str) -> asyncio.AbstractServer:
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


async def keep_supervisor(paths: GatewayPaths, held: processes.Held) -> None:
    """Start a supervisor whenever none runs, and keep the sockets open for it. Never returns."""
    while True:
        await asyncio.sleep(_LOOK_S)
        if processes.supervisor_is_missing(paths):
            # What the host refuses now is tried again; a thread that it refuses is a RuntimeError.
            with contextlib.suppress(OSError, RuntimeError):
                await asyncio.to_thread(processes.start_supervisor, paths, held)
            deadline = time.monotonic() + processes.STARTING_S
            while _is_starting(paths) and time.monotonic() < deadline:
                await asyncio.sleep(_LOOK_S)


def _is_starting(paths: GatewayPaths) -> bool:
    """Return whether a supervisor lives that has no lock yet."""
    with contextlib.suppress(OSError):
        return processes.supervisor_is_missing(paths) and bool(processes.find(paths, processes.SUPERVISOR))
    return False


async def give_memory_back(handled_bytes: Callable[[], int]) -> None:
    """Return freed memory to the kernel after every 32 MB handled; the process keeps it otherwise."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return
    done = 0
    while True:
        await asyncio.sleep(_LOOK_S)
        if handled_bytes() - done > _WORTH_BYTES:
            done = handled_bytes()
            await asyncio.to_thread(trim, 0)
