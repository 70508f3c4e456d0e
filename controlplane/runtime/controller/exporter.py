"""The controller's own endpoint: GET /healthz, and GET /metrics, which the monitor's page includes."""

from __future__ import annotations

import contextlib
import http.server
import os
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from controlplane.control.guard.state import GuardState, Phase, phase
from controlplane.domain.errors import GatewayError
from controlplane.domain.observation import Event
from controlplane.files.gateway.accepting import QueuingHTTPServer
from controlplane.gateway import processes
from controlplane.monitor import metrics
from controlplane.monitor.metrics import Page
from controlplane.runtime.autoscaler.autoscaler import Autoscaler
from controlplane.runtime.controller.loop import Controller
from controlplane.runtime.fleet.history import History

_STALE_S = 15.0
_CONTENT = "text/plain; version=0.0.4; charset=utf-8"


class Meters:
    """The controller's metrics, computed from its state at each scrape."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._counts: Counter[tuple[str, str]] = Counter()
        self._redirects: Counter[str] = Counter()
        self._lock = threading.Lock()

    def count(self, event: Event) -> None:
        """Count an event by kind and level."""
        with self._lock:
            self._counts[event.kind, event.level] += 1
            if event.kind == "redirect":
                self._redirects[event.subject] += 1

    def page(self, controller: Controller) -> Page:
        """Return the page."""
        page = Page()
        with self._lock:
            for key, count in sorted(self._counts.items()):
                page.add(metrics.EVENTS, count, *key)
            redirects = Counter(self._redirects)
        page.add(metrics.UNWRITTEN, self._history.lost)
        page.add(metrics.BUSY, controller.busy_s)
        for role in processes.ALL:
            page.add(metrics.GATEWAY_UP, float(role not in controller.gateway.missing), role)
        if controller.autoscaler is not None:
            write_load(page, controller.autoscaler)
        if controller.state is not None:
            _write_guard(page, controller.state, redirects)
        return page


def _write_guard(page: Page, state: GuardState, redirects: Mapping[str, int]) -> None:
    for name, watch in state.watches.items():
        present = phase(watch, state.now_s)
        for each in Phase:
            page.add(metrics.PHASE, float(each is present), name, each.value)
        standby = watch.standby
        page.add(metrics.SHARE, watch.active.percent / 100.0, name, watch.active.gpu)
        page.add(metrics.BREAKER, float(watch.launches.open), name)
        page.add(metrics.STANDBY, float(standby is not None and standby.since_s <= state.now_s), name)
        # From zero on: an increase over a time cannot be seen of a series that begins with it.
        page.add(metrics.REDIRECTS, redirects.get(name, 0), name)
        for queue in watch.queues:
            where = name, queue.promise.endpoint
            page.add(metrics.ARRIVALS, queue.rates_rps[-1], *where)
            page.add(metrics.QUEUE_PLANNED, queue.promise.rate_rps, *where)
            page.add(metrics.EVIDENCE, queue.lateness, *where)


def write_load(page: Page, autoscaler: Autoscaler) -> None:
    """Add the metrics of load control."""
    for kind, (used, free) in autoscaler.gpus.items():
        page.add(metrics.GPUS, used, kind, "used")
        page.add(metrics.GPUS, free, kind, "free")
    if autoscaler.seen is not None:
        state, found = autoscaler.seen
        for workload, upper in zip(state.workloads, found.upper.tolist(), strict=True):
            page.add(metrics.FORECAST, upper, workload.name)


class _UnixServer(QueuingHTTPServer):
    """A server on a Unix socket, for the monitor, which serves these metrics with its own."""

    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(str(self.server_address))
        socketserver.TCPServer.server_bind(self)
        os.chmod(str(self.server_address), 0o600)

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        request, _ = super().get_request()
        return request, ("controller", 0)


def serve(controller: Controller, meters: Meters, at: Path | tuple[str, int]) -> QueuingHTTPServer:
    """Listen in a thread of its own until `shutdown`. Raises GatewayError for a taken address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, meters.page(controller).text().encode())
            elif self.path == "/healthz":
                late_s = time.monotonic() - controller.ticked_s
                fine = late_s < _STALE_S
                self._answer(200 if fine else 503, f"last looked {late_s:.1f} s ago\n".encode())
            else:
                self._answer(404, b"/healthz or /metrics\n")

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", _CONTENT)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: scrapes would fill the log."""

    try:
        if isinstance(at, Path):
            server: QueuingHTTPServer = _UnixServer(str(at), Handler)  # type: ignore[arg-type]
        else:
            server = QueuingHTTPServer(at, Handler)
    except OSError as error:
        place = str(at) if isinstance(at, Path) else f"port {at[1]} on {at[0]}"
        raise GatewayError(f"{place} cannot be used: {error.strerror}; choose another") from error
    threading.Thread(target=server.serve_forever, name="exporter", daemon=True).start()
    return server
