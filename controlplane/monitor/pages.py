"""The pages of the metrics port: the fleet's own, and HAProxy's as its native exporter makes it.

The fleet's has the gateway's requests, the plan's promises and each Triton's own page, without what the fleet
itself asked of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import aiohttp
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from controlplane.domain.fleet import Backend
from controlplane.domain.observation import Entry, LatencyWindow
from controlplane.files.gateway.discounts import Discounts, read_discounts
from controlplane.monitor import metrics
from controlplane.monitor.metrics import Page, number
from controlplane.monitor.records import Losses
from controlplane.monitor.state import Monitor, Promises, Totals, placed
from controlplane.triton.sessions import TritonSessions

_HEAD = re.compile(r"# (?:HELP|TYPE) (\S+)")
_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})? +(.+)")
"""Of a well-formed page: the name, the labels and the value with what follows it."""


def write_own(
    page: Page, totals: Totals, losses: Losses, minute: Mapping[str, LatencyWindow], promises: Promises
) -> None:
    """Add what the monitor counted, the last minute, and the plan's promises."""
    page.add(metrics.BUILD, 1, version("trisect"))
    if promises.made_by is not None:
        page.add(metrics.PLAN, 1, *promises.made_by)
    for kind, count in promises.gpus.items():
        page.add(metrics.PLANNED_GPUS, count, kind)
    for endpoint, promise in sorted(promises.by_endpoint.items()):
        page.add(metrics.SLO, promise.slo_s, endpoint)
        page.add(metrics.PROMISED, promise.planned_rps, endpoint)
    totals.write(page)
    for endpoint, window in minute.items():
        page.add(metrics.SEEN, window.requests / window.seconds, endpoint)
        for family, value_ms in ((metrics.P50, window.p50_ms), (metrics.P99, window.p99_ms)):
            if value_ms is not None:
                page.add(family, value_ms / 1e3, endpoint)
    page.add(metrics.LINES, losses.received)
    page.add(metrics.LOST, losses.ever_lost)


def write_routes(page: Page, routes: Mapping[str, Iterable[str]]) -> None:
    """Add where each endpoint's requests go: `routes` has the servers by endpoint."""
    for endpoint, servers in sorted(routes.items()):
        for partition, role in sorted({placed(server) for server in servers}):
            page.add(metrics.ROUTE, 1, endpoint, partition, role)


def write_slots(page: Page, endpoints: Mapping[str, Sequence[str]]) -> None:
    """Add the endpoints of each of HAProxy's backends, whose requests cannot be told apart there."""
    for proxy, names in endpoints.items():
        page.add(metrics.SLOT, 1, proxy, ",".join(names))


_MODEL = re.compile(r'model="([^"]*)",(?:reason="(?:BACKEND|OTHER)",)?version="([^"]*)"')
"""Failures of the fleet's own have the first reason, of ensembles the second; a model counts one of both."""
_TIMED = {
    "nv_inference_request": "success",
    "nv_inference_queue": "queue",
    "nv_inference_compute_input": "compute_input",
    "nv_inference_compute_infer": "compute_infer",
    "nv_inference_compute_output": "compute_output",
}
_STATISTIC_OF = {
    "nv_inference_request_success": ("success", "count"),
    "nv_inference_request_failure": ("fail", "count"),
    **{
        f"{name}_{end}": (of, "ns")
        for name, of in _TIMED.items()
        for end in ("duration_us", "summary_us_sum")
    },
    **{f"{name}_summary_us_count": (of, "count") for name, of in _TIMED.items()},
    "nv_cache_num_hits_per_model": ("cache_hit", "count"),
    "nv_cache_hit_duration_per_model": ("cache_hit", "ns"),
    "nv_cache_num_misses_per_model": ("cache_miss", "count"),
    "nv_cache_miss_duration_per_model": ("cache_miss", "ns"),
}
_COUNTER_OF = {"nv_inference_count": "inference_count", "nv_inference_exec_count": "execution_count"}
_NANOS_PER_MICRO = 1000


class ClientsCounters:
    """Counters of clients' inferences alone, which never decrease while a server's own do not.

    The fleet's inferences are noted before the server counts them: meanwhile a counter stays as it was.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last: dict[tuple[str, str, str], tuple[float, float]] = {}

    def of(self, server: str) -> Discounts:
        """Return what is left out of a server's counters now."""
        return read_discounts(self._folder, server)

    def value(self, server: str, own: Discounts, name: str, labels: str, value: str) -> str:
        """Return a metric's value as clients' inferences make it; that of any other metric as it is."""
        found = _MODEL.search(labels) if name in _STATISTIC_OF or name in _COUNTER_OF else None
        entry = None if found is None else own.get((found.group(1), found.group(2)))
        if entry is None:
            return value
        raw = float(value)
        before, last = self._last.get((server, name, labels), (0.0, 0.0))
        clients = max(raw - _own(entry, name), last if raw >= before else 0.0)
        self._last[server, name, labels] = raw, clients
        return number(clients)

    def keep_only(self, servers: Mapping[str, object]) -> None:
        """Forget all other servers."""
        self._last = {key: value for key, value in self._last.items() if key[0] in servers}


def _own(entry: Entry, name: str) -> int:
    if name in _COUNTER_OF:
        return int(entry[_COUNTER_OF[name]])
    statistic, unit = _STATISTIC_OF[name]
    counted = int(entry["inference_stats"].get(statistic, {}).get(unit, 0))
    return counted // _NANOS_PER_MICRO if unit == "ns" else counted


def tritons(pages: Sequence[tuple[Backend, str]], clients: ClientsCounters) -> str:
    """Return the Tritons' own pages as one, with partition and role as labels; a malformed one is left out.

    Of two servers with one partition and role, as while one replaces the other, the first one counts. Lines
    stay as they are but for their labels: `prometheus_client` would add `_total` to the names of counters.
    `clients` leaves out what the fleet itself asked of a server.
    """
    heads: defaultdict[str, dict[str, None]] = defaultdict(dict)
    samples: defaultdict[str, list[str]] = defaultdict(list)
    first = {placed(backend.server): (backend, text) for backend, text in reversed(pages)}
    clients.keep_only({backend.server: None for backend, _ in pages})
    for (partition, role), (backend, text) in first.items():
        try:
            list(text_string_to_metric_families(text))
        except ValueError:
            continue
        own = f'partition="{partition}",role="{role}"'
        discounts = clients.of(backend.server)
        family = ""
        for line in text.splitlines():
            if head := _HEAD.match(line):
                family = head.group(1)
                heads[family][line] = None
            elif sample := _SAMPLE.match(line):
                name, labels, value = sample.groups()
                value = clients.value(backend.server, discounts, name, labels or "", value)
                if not family or not name.startswith(family):
                    family = name
                samples[family].append(
                    f"{name}{{{labels.rstrip(',')},{own}}} {value}" if labels else f"{name}{{{own}}} {value}"
                )
    return "".join(f"{line}\n" for family, rows in samples.items() for line in (*heads[family], *rows))


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_SCRAPE_S = 3.0
_LARGEST_PAGE_BYTES = 4 * 2**20
_CONTENT = "text/plain; charset=utf-8"
# The names of these hosts mean nothing: both connections are Unix sockets.
_CONTROLLERS_PAGE = "http://controller/metrics"
_HAPROXYS_PAGE = "http://haproxy/metrics"
_IN_USE = "scope=global&scope=frontend&scope=server&no-maint"
"""Without a query. Far more backends exist than are in use: each slot has two, with some hundred rows."""
_NO_EXPORTER = "HAProxy does not answer here: it is being started, or `haproxy -vv` has no +PROMEX\n"


@dataclass(frozen=True, slots=True)
class Sources:
    """Connections to the servers, to the controller and to HAProxy's exporter."""

    servers: TritonSessions
    controller: aiohttp.ClientSession
    haproxy: aiohttp.ClientSession


@contextlib.asynccontextmanager
async def sources(controller: Path, exporter: Path) -> AsyncIterator[Sources]:
    """Connections that are closed with the context."""
    timeout = aiohttp.ClientTimeout(total=_SCRAPE_S)
    controllers, exporters = (aiohttp.UnixConnector(str(path)) for path in (controller, exporter))
    async with (
        contextlib.aclosing(TritonSessions(timeout=timeout)) as servers,
        aiohttp.ClientSession(timeout=timeout, connector=controllers) as of_controller,
        aiohttp.ClientSession(timeout=timeout, connector=exporters) as of_haproxy,
    ):
        yield Sources(servers, of_controller, of_haproxy)


class Pages:
    """Handlers of both pages."""

    def __init__(self, monitor: Monitor, found: Sources, discounts: Path) -> None:
        self._monitor = monitor
        self._clients = ClientsCounters(discounts)
        self._one_at_a_time = threading.Lock()
        self._from = found

    async def fleet(self, _: web.Request) -> web.Response:
        """Serve Trisect's metrics and those of every Triton."""
        monitor = self._monitor
        monitor.refresh()
        present = [server for server in monitor.served.present if server.metrics_port is not None]
        await self._from.servers.keep_only(present)
        pages = await asyncio.gather(*(self._of_server(server) for server in present))
        guard = await read_page(self._from.controller.get(_CONTROLLERS_PAGE))
        minute = monitor.windows.by_endpoint(time.time(), 60.0)
        page = Page()
        write_own(page, monitor.totals, monitor.losses, minute, monitor.promises)
        page.add(metrics.CONTROLLER_UP, float(guard is not None))
        routes, carried = monitor.served.routes, monitor.served.endpoints
        answered = [(s, p) for s, p in zip(present, pages, strict=True) if p is not None]

        def write() -> bytes:
            write_routes(page, routes)
            write_slots(page, carried)
            with self._one_at_a_time:
                own = tritons(answered, self._clients)
            return (page.text() + (guard or "") + own).encode()

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
        assert server.metrics_port is not None
        port = server.host, server.metrics_port
        return await read_page(self._from.servers.request(port, "GET", "/metrics"))


async def read_page(call: AbstractAsyncContextManager[aiohttp.ClientResponse]) -> str | None:
    """Return a page of metrics; None where there is none, or one that is too long."""
    try:
        async with call as answer:
            page = b""
            async for part in answer.content.iter_any():
                page += part
                if len(page) > _LARGEST_PAGE_BYTES:
                    return None
            return page.decode(errors="replace")
    except (aiohttp.ClientError, OSError, TimeoutError):
        return None
