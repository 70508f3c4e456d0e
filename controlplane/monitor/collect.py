"""The gateway's monitor, a process of its own: `python -m controlplane.monitor.collect STATE`.

It reads the gateway's log from a pipe, answers queries on a Unix socket, forwards the log to followers, and
serves the fleet's metrics. The gateway's supervisor restarts it, and holds the pipe too, so lines wait there
during a restart. Traffic does not depend on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from aiohttp import web

from controlplane.files.gateway import GatewaySettings, accepting, read_settings
from controlplane.files.gateway_paths import GatewayPaths, open_log
from controlplane.monitor.audit import AuditLog
from controlplane.monitor.client import AGAIN_S, BEAT_S, FOLLOW
from controlplane.monitor.page_access import PageAccess
from controlplane.monitor.pages import Handler, Pages, sources
from controlplane.monitor.records import BACKENDS
from controlplane.monitor.state import Monitor, ServedRoutes

_AT_ONCE_BYTES = 2**16
_GATHER_S = 0.05
_FOLLOWER_LIMIT_BYTES = 16 * 2**20
_SCRAPE_S = 3.0
_UNLOGGED_EVERY_S = 5.0
"""A thousand endpoints have six thousand backends; HAProxy writes some hundred rows in a millisecond."""
_TIDY_BEATS = 5


Reader = Callable[[Sequence[bytes]], None]
"""Reads lines of the log beside the monitor. It does not wait for anything."""


class Log:
    """The pipe that receives a line for every request, and its followers."""

    def __init__(self, pipe: int, monitor: Monitor, readers: Sequence[Reader] = ()) -> None:
        self._pipe = pipe
        self._begun = b""
        self._readers = readers
        self._monitor = monitor
        self._followers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.get_running_loop()

    def listen(self, looks: int = 3) -> None:
        """Begin to read once the followers of the process before had time to return: they need the lines too.

        The wait has several parts, so that a delay of this process does not use it up.
        """
        if looks:
            self._loop.call_later(0.5 * AGAIN_S, self.listen, looks - 1)
        else:
            self._drain()

    @contextlib.contextmanager
    def followed(self, by: asyncio.StreamWriter) -> Iterator[None]:
        """Forward every line to `by`, inside the context."""
        self._followers.add(by)
        try:
            yield
        finally:
            self._followers.discard(by)

    def tell(self, lines: Sequence[bytes]) -> None:
        """Count these lines and forward them."""
        self.hand_on(b"\n".join((*lines, b"")))
        for line in lines:
            self._monitor.take(line)
        for read in self._readers:
            read(lines)

    def hand_on(self, lines: bytes) -> None:
        """Forward lines to the followers; close the connection of a follower that is too slow."""
        for follower in tuple(self._followers):
            if follower.transport.get_write_buffer_size() > _FOLLOWER_LIMIT_BYTES:
                self._followers.discard(follower)
                follower.transport.abort()
            else:
                follower.write(lines)

    def _woken(self) -> None:
        # A wake-up for every line would cost more than reading it, and would slow the sender down.
        self._loop.remove_reader(self._pipe)
        self._loop.call_later(_GATHER_S, self._drain)

    def _drain(self) -> None:
        received = b""
        with contextlib.suppress(BlockingIOError):
            received = os.read(self._pipe, _AT_ONCE_BYTES)
        *lines, self._begun = (self._begun + received).split(b"\n")
        self.tell(lines)
        if len(received) < _AT_ONCE_BYTES:
            self._loop.add_reader(self._pipe, self._woken)
        else:  # leave time to answer queries
            self._loop.call_soon(self._drain)


async def _statistics(path: Path, command: str) -> list[dict[str, str]]:
    try:
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(command.encode() + b"\n")
        text = (await asyncio.wait_for(reader.read(), _SCRAPE_S)).decode()
        writer.close()
    except (OSError, TimeoutError):
        return []
    if not text.endswith("\n\n"):  # HAProxy died over it: its last number may be cut short
        return []
    return list(csv.DictReader(io.StringIO(text.removeprefix("# "))))


async def _make_up_for(monitor: Monitor, log: Log, haproxy: Path) -> None:
    while True:
        rows = await _statistics(haproxy, BACKENDS)
        monitor.served.refresh()
        log.tell(monitor.unlogged.lines(rows, monitor.served.endpoints, time.time()))
        await asyncio.sleep(_UNLOGGED_EVERY_S if rows else BEAT_S)


def _readers(given: GatewaySettings, audit: Path) -> list[Reader]:
    found: list[Reader] = [AuditLog(audit).take] if given.protection.audit else []
    if given.trace_endpoint:
        try:
            from controlplane.monitor.spans import Spans  # its packages are an extra
        except ModuleNotFoundError as error:
            # `ctl apply` found them. Metrics and the guard go on without spans.
            with contextlib.suppress(OSError):
                print(f"no spans are sent: {error}; pip install 'trisect[otel]'", flush=True)
        else:
            found.append(Spans(given.trace_endpoint).take)
    return found


async def _run(places: GatewayPaths) -> None:
    given = read_settings(places.settings)
    access = PageAccess(given.protection, places.certificate, places.clients)
    monitor = Monitor(ServedRoutes(places.slots), places.plan)
    monitor.refresh()
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stopped.set)
    with open(open_log(places.log_pipe), "rb", buffering=0) as incoming:
        log = Log(incoming.fileno(), monitor, _readers(given, places.audit))

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError, ValueError):
                while line := await reader.readline():
                    question = json.loads(line)
                    if question == FOLLOW:
                        with log.followed(by=writer):
                            await reader.read()
                        break
                    writer.write(json.dumps(monitor.answer(question)).encode() + b"\n")
                    await writer.drain()
            writer.close()

        async with sources(places.controller_socket, places.exporter_socket) as found:
            pages = Pages(monitor, found, places.discounts)

            def served(page: Handler) -> Handler:
                async def answer(request: web.Request) -> web.StreamResponse:
                    refusal = access.refusal(request)
                    return await page(request) if refusal is None else refusal

                return answer

            app = web.Application()
            app.router.add_get("/metrics/haproxy", served(pages.haproxy))
            # As a Triton has it, whatever the path.
            app.router.add_get("/{path:.*}", served(pages.fleet), allow_head=False)
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            await web.TCPSite(runner, given.host, given.metrics_port, ssl_context=access.tls).start()
            questions = await asyncio.start_unix_server(talk, str(places.monitor_socket))
            log.listen()
            made_up = asyncio.create_task(_make_up_for(monitor, log, places.runtime_socket))
            beats = 0
            while not stopped.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopped.wait(), BEAT_S)
                log.hand_on(b"\n")
                beats += 1
                if beats % _TIDY_BEATS == 0:
                    monitor.refresh()
                    monitor.windows.forget(time.time())
                    access.renew()
            made_up.cancel()
            questions.close()
            await runner.cleanup()


def main() -> int:
    """Watch the gateway whose state folder is given until SIGTERM."""
    accepting.run(_run(GatewayPaths.of(Path(sys.argv[1]))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
