"""The controller's process: its lock, the request log, and GET /healthz and /metrics.

The monitor's page includes the latter.
"""

from __future__ import annotations

import contextlib
import http.server
import os
import signal
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from controlplane.control.guard.state import GuardState, Limits, Phase, phase
from controlplane.domain.errors import GatewayError
from controlplane.domain.observation import Event
from controlplane.files.gateway.accepting import QueuingHTTPServer
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.gateway import processes
from controlplane.monitor import metrics
from controlplane.monitor.metrics import Page
from controlplane.runtime.autoscaler.autoscaler import Autoscaler
from controlplane.runtime.autoscaler.running import InCluster
from controlplane.runtime.controller.answers import Requests
from controlplane.runtime.controller.executor import Actor, Executor, Notice
from controlplane.runtime.controller.loop import Controller
from controlplane.runtime.controller.watches import DriftWatch
from controlplane.runtime.fleet.controller_process import kept_up, only_controller
from controlplane.runtime.fleet.fleet import Fleet
from controlplane.runtime.fleet.history import History


class Log(Requests, Protocol):
    """The source of ended requests, which the controller closes."""

    def close(self) -> None:
        """Stop following."""


def stop_at_signals() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    return stopping


def guard(
    fleet: Fleet,
    notice: Notice,
    log: Log,
    stopping: threading.Event,
    *,
    once: bool = False,
    plan_only: bool = False,
    host: str = "",
    port: int = 0,
    cluster: InCluster | None = None,
) -> None:
    """Run the fleet's controller until `stopping` is set, or with `once` until nothing is left to do.

    With `plan_only`, decisions are only announced; a controller may run beside it. The first tick starts the
    gateway under the fleet's lock, so a fleet that is being destroyed gets no gateway.
    Raises EngineError where the fleet has a controller, GatewayError for a taken port.
    """
    ended = threading.Event()
    with (
        contextlib.closing(log),
        contextlib.nullcontext() if plan_only else only_controller(fleet.files) as died,
        contextlib.nullcontext() if once or plan_only else kept_up(fleet.files),
    ):
        history = History(fleet.files.history)
        meters = Meters(history)

        def both(event: Event) -> None:
            meters.count(event)
            notice(event)

        if died is not None:
            reason = f"the controller before (pid {died}) did not end by itself; this one continues"
            event = Event(fleet.clock.wall(), "warning", "controller", fleet.name, reason)
            history.write(event)
            both(event)
        actor = Actor(fleet, both) if plan_only else Executor(fleet, history, both)
        autoscaler = None if once else Autoscaler(fleet, actor.note, plan_only=plan_only, cluster=cluster)
        controller = Controller(fleet, log, actor, Limits(), autoscaler)
        exporters = []
        try:
            if port:
                exporters.append(export(controller, meters, (host, port)))
            if not (once or plan_only):
                places = GatewayPaths.of(fleet.files.gateway)
                places.make()
                exporters.append(export(controller, meters, places.controller_socket))
                DriftWatch(fleet, actor.note).start(ended)
            if once:
                controller.repair(stopping)
            else:
                controller.run(stopping)
        finally:
            ended.set()
            controller.close()
            for exporter in exporters:
                exporter.shutdown()


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


def export(controller: Controller, meters: Meters, at: Path | tuple[str, int]) -> QueuingHTTPServer:
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
