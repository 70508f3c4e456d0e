"""`python -m controlplane.gateway.facade STATE_DIR [HTTP_FD GRPC_FD] [--facade HTTP_FD GRPC_FD]`.

The first descriptors are HAProxy's sockets, held for the next supervisor; the others are where this process
listens, until SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

import aiohttp
from aiohttp import web

from controlplane.domain.errors import TrisectError
from controlplane.files.gateway import accepting
from controlplane.files.gateway_paths import GatewayPaths, open_log
from controlplane.gateway import processes, store
from controlplane.gateway.facade import over_grpc
from controlplane.gateway.facade.answers import FleetAnswers, Parts
from controlplane.gateway.facade.callers import Callers
from controlplane.gateway.facade.fleet import Fleet
from controlplane.gateway.facade.fleet_wide.broadcast import Broadcast, Kept
from controlplane.gateway.facade.over_http import Http
from controlplane.gateway.facade.records import Records
from controlplane.gateway.facade.upstream import Upstream, relay
from controlplane.gateway.processes import Held, Listeners
from controlplane.render.haproxy import MOST_HEADERS
from controlplane.triton.sessions import TritonSessions

Reload = Callable[[], Awaitable[None]]

_GRACE_S = 2.0
_LOOK_S = 1.0
_WORTH_BYTES = 32 * 2**20


async def _run(paths: GatewayPaths, held: Held) -> None:
    own = held.facade = held.facade or Listeners.for_haproxy(paths)
    stopped = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stopped.set)
    sessions = TritonSessions(
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=2.0),
        auto_decompress=False,
        skip_auto_headers=("Accept-Encoding", "User-Agent", "Content-Type"),
    )
    async with contextlib.aclosing(sessions):
        fleet, upstream = Fleet(paths, sessions), Upstream()
        settings = store.settings_of(paths)
        broadcast = Broadcast(sessions, Kept(paths.broadcasts), allowed=settings.fleet_wide_calls)
        callers = Callers(paths.clients, settings)
        records = Records(open_log(paths.log_pipe))
        parts = Parts(fleet, FleetAnswers(fleet, paths.discounts), broadcast, records, callers)
        order = asyncio.Lock()

        async def reload() -> None:
            """Read options and routes; servers that join know what was broadcast before they serve."""
            async with order:
                callers.take(present := store.settings_of(paths))
                generation, table = store.load(paths, present)
                routes = table.routes().values()
                servers = tuple(dict.fromkeys(server for route in routes for server in route.servers))
                await broadcast.tell_joining(servers)
                fleet.take(generation, table)
                upstream.keep_only(servers)
                await sessions.keep_only(servers)

        # Before the first reading: a later commit sends a reload, an earlier one is in the file.
        commands = await _serve_control(fleet, reload, str(paths.control_socket))
        await reload()
        server = await over_grpc.serve(over_grpc.Service(parts, upstream), f"unix:{paths.relayed_socket}")
        relayed = await relay(own.grpc, paths.relayed_socket)
        app = Http(parts, sessions).application()
        runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,
            auto_decompress=False,
            max_headers=MOST_HEADERS,
        )
        await runner.setup()
        await web.SockSite(runner, own.http).start()
        chores = [
            asyncio.create_task(fleet.watch()),
            asyncio.create_task(parts.answers.read_last()),
            asyncio.create_task(_give_memory_back(records)),
            asyncio.create_task(keep_supervisor(paths, held)),
        ]
        await stopped.wait()
        for chore in chores:
            chore.cancel()
        commands.close()
        relayed.close()
        await server.stop(_GRACE_S)
        await runner.cleanup()
        await upstream.close()
        records.close()


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


async def _serve_control(fleet: Fleet, reload: Reload, path: str) -> asyncio.AbstractServer:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError), contextlib.closing(writer):
            while line := await reader.readline():
                try:
                    answer = await _answer(fleet, reload, json.loads(line))
                except (TrisectError, ValueError) as error:
                    answer = {"error": str(error)}
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()

    return await asyncio.start_unix_server(talk, path)


async def keep_supervisor(paths: GatewayPaths, held: Held) -> None:
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


async def _give_memory_back(records: Records) -> None:
    """Return freed memory to the kernel after every 32 MB handled; the process keeps it otherwise."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    done = 0
    while trim is not None:
        await asyncio.sleep(_LOOK_S)
        if records.handled_bytes - done > _WORTH_BYTES:
            done = records.handled_bytes
            await asyncio.to_thread(trim, 0)


def main() -> int:
    """Serve one gateway."""
    state, held = Held.inherited(sys.argv[1:])
    accepting.run(_run(GatewayPaths.of(state), held))
    return 0


if __name__ == "__main__":
    sys.exit(main())
