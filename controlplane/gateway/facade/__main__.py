"""`python -m controlplane.gateway.facade STATE_DIR [HTTP_FD GRPC_FD] [--facade HTTP_FD GRPC_FD]`.

The first descriptors are HAProxy's sockets, held for the next supervisor; the others are where this process
listens, until SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys

import aiohttp
from aiohttp import web

from controlplane.files.gateway import accepting
from controlplane.files.gateway_paths import GatewayPaths, open_log
from controlplane.gateway import store
from controlplane.gateway.facade import over_grpc
from controlplane.gateway.facade.answers import FleetAnswers, Parts
from controlplane.gateway.facade.callers import Callers
from controlplane.gateway.facade.chores import give_memory_back, keep_supervisor, serve_control
from controlplane.gateway.facade.fleet import Fleet
from controlplane.gateway.facade.fleet_wide.broadcast import Broadcast, Kept
from controlplane.gateway.facade.over_http import Http
from controlplane.gateway.facade.records import Records
from controlplane.gateway.facade.upstream import Upstream, relay
from controlplane.gateway.processes import Held, Listeners
from controlplane.render.haproxy import MOST_HEADERS
from controlplane.triton.sessions import TritonSessions

_GRACE_S = 2.0


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
        commands = await serve_control(fleet, reload, str(paths.control_socket))
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
            asyncio.create_task(give_memory_back(lambda: records.handled_bytes)),
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


def main() -> int:
    """Serve one gateway."""
    state, held = Held.inherited(sys.argv[1:])
    accepting.run(_run(GatewayPaths.of(state), held))
    return 0


if __name__ == "__main__":
    sys.exit(main())
