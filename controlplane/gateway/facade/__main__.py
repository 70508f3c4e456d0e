"""`python -m controlplane.gateway.facade STATE_DIR`: until SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import aiohttp
from aiohttp import web

from controlplane.gateway.facade import control, over_grpc, over_http
from controlplane.gateway.facade.fleet import Fleet
from controlplane.gateway.places import Places

_GRACE_S = 2.0


async def _run(places: Places) -> None:
    stopped = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stopped.set)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        fleet = Fleet(places, session)
        # Before the first reading: a commit in between is then told to us, one before is in the file.
        commands = await control.serve(fleet, str(places.control_socket))
        fleet.reload()
        service = over_grpc.Service(fleet)
        server = await over_grpc.serve(service, f"unix:{places.facade_grpc_socket}")
        runner = web.AppRunner(over_http.application(fleet), access_log=None)
        await runner.setup()
        await web.UnixSite(runner, str(places.facade_http_socket), shutdown_timeout=_GRACE_S).start()
        await stopped.wait()
        commands.close()
        await runner.cleanup()
        await server.stop(_GRACE_S)
        await service.close()


def main() -> int:
    """Serve one gateway."""
    asyncio.run(_run(Places.of(Path(sys.argv[1]))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
