"""The live page of a fleet: read-only, on loopback or with the gateway's protection, by server-sent events.

It is read from the fleet's files, engine and monitor, once a second for all viewers together, and only while
there are any; no controller is needed. A viewer gets a document when it differs from the last one.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Middleware

from controlplane.domain.errors import GatewayError, InputError, TrisectError
from controlplane.domain.fleet import AccessConfig
from controlplane.files.fleets import FleetFiles
from controlplane.files.gateway import read_settings
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.files.reading import exists
from controlplane.gateway.security.certificate import is_loopback
from controlplane.monitor.page_access import PageAccess
from controlplane.report.page import page
from controlplane.report.page.document import Json, Point, fleet_document, with_timeline
from controlplane.report.tables.status_table import Status
from controlplane.runtime.fleet.history import History, Key, Minute, events

_SHOWN_EVENTS = 50
_REPORTED_EVENTS = 1000
_BUSY_S = 180.0
"""The record's minutes that the measured utilisation is of."""


def live_document(files: FleetFiles, look: Callable[[], Status]) -> Json:
    """Return the fleet as it is now. Raises InputError where nothing is applied."""
    return _document(files, look, since_s=0.0, limit=_SHOWN_EVENTS)


def fleet_report(files: FleetFiles, look: Callable[[], Status], since_s: float) -> str:
    """Return a fleet's report as one HTML file, with its record and events from `since_s` on."""
    document = _document(files, look, since_s=since_s, limit=_REPORTED_EVENTS)
    points = [
        Point(m.at_s, m.endpoint, m.partition, m.percent, m.requests, m.failed, m.p99_ms)
        for m in History(files.history).minutes(since_s)
    ]
    return page(document["title"], with_timeline(document, points))


def _document(files: FleetFiles, look: Callable[[], Status], *, since_s: float, limit: int) -> Json:
    plan = files.plan()
    if plan is None:
        raise InputError(f"fleet {files.fleet!r} has no plan; `ctl apply` gives it one", field="--fleet")
    found = events(files, since_s=since_s, limit=limit)
    recent = History(files.history).minutes(time.time() - _BUSY_S)
    return fleet_document(files.fleet, plan, look(), found, busy_of(recent))


def busy_of(minutes: Iterable[Minute]) -> dict[Key, float]:
    """Return the part of the counted time in which each partition executed batches of an endpoint."""
    executed_s: dict[Key, float] = {}
    counted_s: dict[Key, float] = {}
    for one in minutes:
        if one.batches is None or one.seconds <= 0.0:
            continue
        times_ns = (
            (b.compute_input_ns, b.compute_infer_ns, b.compute_output_ns) for b in one.batches.values()
        )
        executed_s[one.key] = executed_s.get(one.key, 0.0) + sum(map(sum, times_ns)) / 1e9
        counted_s[one.key] = counted_s.get(one.key, 0.0) + one.seconds
    return {key: executed_s[key] / counted_s[key] for key in counted_s}


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_EVERY_S = 1.0
_ALIVE_S = 15.0
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


@dataclass(frozen=True, slots=True)
class Listening:
    """Where the page listens. `access` is what it demands of its viewers; None on loopback."""

    host: str
    port: int
    access: PageAccess | None = None

    @property
    def address(self) -> str:
        """The page's address."""
        secured = self.access is not None and self.access.tls is not None
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if secured else ''}://{host}:{self.port}/"


class Feed:
    """The newest document, looked up again while anybody waits for one."""

    def __init__(self, look: Callable[[], Json]) -> None:
        self._look = look
        self._changed = asyncio.Condition()
        self.viewers = 0
        self.number = 0
        self.text = ""

    async def run(self) -> None:
        """Look once a second while there are viewers, until cancelled."""
        while True:
            if self.viewers:
                await self.renew()
            await asyncio.sleep(_EVERY_S)

    async def renew(self) -> None:
        """Look now. A fleet that cannot be read now keeps its last document."""
        try:
            document = await asyncio.to_thread(self._look)
        except TrisectError as error:
            document = {"troubles": [str(error)]}
        text = json.dumps(document, allow_nan=False, separators=(",", ":"))
        if text != self.text:
            async with self._changed:
                self.text, self.number = text, self.number + 1
                self._changed.notify_all()

    async def after(self, number: int) -> tuple[int, str] | None:
        """Return the first document newer than `number`; None if none comes for a while."""
        try:
            async with asyncio.timeout(_ALIVE_S), self._changed:
                await self._changed.wait_for(lambda: self.number > number)
                return self.number, self.text
        except TimeoutError:
            return None


def application(title: str, look: Callable[[], Json], access: PageAccess | None) -> web.Application:
    """Return the server's routes: the page and its events."""
    feed = Feed(look)

    async def whole(request: web.Request) -> web.Response:
        await feed.renew()
        document = {**json.loads(feed.text), "title": title, "live": "events"}
        return web.Response(text=page(title, document, live=True), content_type="text/html", headers=_HEADERS)

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={**_HEADERS, "Content-Type": "text/event-stream"})
        await response.prepare(request)
        number = 0
        feed.viewers += 1
        try:
            while True:
                found = await feed.after(number)
                if found is None:
                    await response.write(b":\n\n")  # finds a viewer that has left
                else:
                    number, text = found
                    await response.write(f"data: {text}\n\n".encode())
        except ConnectionError:
            return response
        finally:
            feed.viewers -= 1

    async def renewing() -> None:
        while access is not None:
            access.renew()
            await asyncio.sleep(_EVERY_S)

    async def running(app: web.Application) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(feed.run()), asyncio.create_task(renewing())]
        yield
        for task in tasks:
            task.cancel()

    app = web.Application(middlewares=[_from_here if access is None else _admitted(access)])
    app.router.add_get("/", whole)
    app.router.add_get("/events", stream)
    app.cleanup_ctx.append(running)
    return app


@web.middleware
async def _from_here(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse requests under another name: a page of the web may have its name lead to loopback."""
    if (request.host.rpartition(":")[0] or request.host) not in _LOOPBACK:
        return web.Response(status=421, text="this page is served under its loopback address only\n")
    return await handler(request)


def _admitted(access: PageAccess) -> Middleware:
    """Refuse viewers without an operator's credential. A wrong name needs no check: TLS refuses it."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = access.refusal(request)
        return await handler(request) if refusal is None else refusal

    return check


async def serve(
    title: str, look: Callable[[], Json], listening: Listening, ready: Callable[[str], None]
) -> None:
    """Serve until SIGTERM or SIGINT; `ready` gets the address. Raises GatewayError for a taken port."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    access = listening.access
    runner = web.AppRunner(application(title, look, access), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        tls = None if access is None else access.tls
        await web.TCPSite(runner, listening.host, listening.port, ssl_context=tls).start()
    except OSError as error:
        await runner.cleanup()
        problem = f"port {listening.port} cannot be used: {error.strerror}; choose another: --port"
        raise GatewayError(problem) from error
    ready(listening.address)
    await stopped.wait()
    await runner.cleanup()


def page_access(files: FleetFiles, host: str) -> PageAccess | None:
    """Return what the gateway demands on its own ports; None for a page on loopback.

    Raises InputError where the page would pass in plain text and the fleet does not accept that.
    """
    if is_loopback(host):
        return None
    places = GatewayPaths.of(files.gateway)
    protection = read_settings(places.settings).protection if exists(places.settings) else AccessConfig()
    if protection.certificate is None and not protection.plain_text:
        raise InputError(
            f"{host} can be reached from other hosts, and the page would pass in plain text; give the "
            "fleet a certificate (serve.tls), or leave --host out and use `ssh -L`",
            field="--host",
        )
    return PageAccess(protection, places.certificate, places.clients)
