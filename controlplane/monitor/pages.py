"""The pages of the metrics port: the fleet's own, and HAProxy's as its native exporter makes it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import web
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector

from controlplane.domain.fleet import Backend
from controlplane.monitor import exposition
from controlplane.monitor.metrics import CONTROLLER_UP, Page
from controlplane.monitor.state import Monitor

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_SCRAPE_S = 3.0
_LARGEST_PAGE_BYTES = 4 * 2**20
_CONTENT = "text/plain; version=0.0.4"
# The names of these hosts mean nothing: both connections are Unix sockets.
_CONTROLLERS_PAGE = "http://controller/metrics"
_HAPROXYS_PAGE = "http://haproxy/metrics"
_IN_USE = "scope=global&scope=frontend&scope=server&no-maint"
"""Without a query. Far more backends exist than are in use: each slot has two, with some hundred rows."""
_NO_EXPORTER = "HAProxy does not answer here: it is being started, or `haproxy -vv` has no +PROMEX\n"


@dataclass(frozen=True, slots=True)
class Sources:
    """Connections to the servers, to the controller and to HAProxy's exporter."""

    servers: aiohttp.ClientSession
    controller: aiohttp.ClientSession
    haproxy: aiohttp.ClientSession


@contextlib.asynccontextmanager
async def sources(controller: Path | None, exporter: Path | None) -> AsyncIterator[Sources]:
    """Connections that are closed with the context; a missing path is one that does not answer."""
    timeout = aiohttp.ClientTimeout(total=_SCRAPE_S)
    controllers, exporters = (aiohttp.UnixConnector(str(path or "")) for path in (controller, exporter))
    async with (
        aiohttp.ClientSession(timeout=timeout) as servers,
        aiohttp.ClientSession(timeout=timeout, connector=controllers) as of_controller,
        aiohttp.ClientSession(timeout=timeout, connector=exporters) as of_haproxy,
    ):
        yield Sources(servers, of_controller, of_haproxy)


class Pages:
    """Handlers of both pages."""

    def __init__(self, monitor: Monitor, found: Sources) -> None:
        self._monitor = monitor
        self._from = found

    async def fleet(self, _: web.Request) -> web.Response:
        """Serve Trisect's metrics and those of every Triton."""
        monitor = self._monitor
        monitor.refresh()
        present = [server for server in monitor.addresses.present if server.metrics_port is not None]
        pages = await asyncio.gather(*(self._of_server(server) for server in present))
        guard = await _read(self._from.controller, _CONTROLLERS_PAGE)
        minute = monitor.windows.by_endpoint(time.time(), 60.0)
        page = Page()
        exposition.write_own(page, monitor.totals, monitor.losses, minute, monitor.promises)
        page.add(CONTROLLER_UP, float(guard is not None))
        routes, carried = monitor.addresses.routes, monitor.addresses.endpoints
        answered = [(s, p) for s, p in zip(present, pages, strict=True) if p is not None]

        def write() -> bytes:
            exposition.write_routes(page, routes)
            exposition.write_slots(page, carried)
            registry = CollectorRegistry()
            registry.register(_Tritons(list(exposition.tritons(answered))))
            return page.text().encode() + (guard or "").encode() + generate_latest(registry)

        # In a thread, since the pages of many servers are long and the log must be read meanwhile.
        return web.Response(body=await asyncio.to_thread(write), headers={"Content-Type": _CONTENT})

    async def haproxy(self, request: web.Request) -> web.StreamResponse:
        """Pass HAProxy's page on as it comes; a query goes with the request."""
        address = f"{_HAPROXYS_PAGE}?{request.query_string or _IN_USE}"
        try:
            page = await self._from.haproxy.get(address)
        except (aiohttp.ClientError, OSError, TimeoutError):
            return web.Response(status=503, text=_NO_EXPORTER)
        async with page:
            answer = web.StreamResponse(
                status=page.status, headers={"Content-Type": page.headers.get("Content-Type", _CONTENT)}
            )
            await answer.prepare(request)
            async for part in page.content.iter_any():
                await answer.write(part)
            await answer.write_eof()
            return answer

    async def _of_server(self, server: Backend) -> str | None:
        return await _read(self._from.servers, f"http://{server.host}:{server.metrics_port}/metrics")


class _Tritons(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


async def _read(session: aiohttp.ClientSession, address: str) -> str | None:
    try:
        async with session.get(address) as answer:
            page = await answer.content.read(_LARGEST_PAGE_BYTES)
            return page.decode(errors="replace")
    except (aiohttp.ClientError, OSError, TimeoutError):
        return None
