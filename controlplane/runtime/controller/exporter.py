"""The controller's own endpoint: GET /healthz, and GET /metrics for Prometheus."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controlplane.control.guard import sequential
from controlplane.control.guard.state import Phase, phase
from controlplane.domain.errors import GatewayError
from controlplane.runtime.controller.following.follower import Follower
from controlplane.runtime.controller.loop import Controller
from controlplane.runtime.fleet.history import Event, History

_STALE_S = 15.0
_CONTENT = "text/plain; version=0.0.4; charset=utf-8"


class Meters(Collector):
    """The metrics for Prometheus, computed from the controller's state at each scrape."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.controller: Controller | None = None
        self._counts: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    def count(self, event: Event) -> None:
        """Count an event by kind and level."""
        with self._lock:
            key = (event.kind, event.level)
            self._counts[key] = self._counts.get(key, 0) + 1

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families."""
        events = CounterMetricFamily("trisect_events", "Events of the guard.", labels=["kind", "level"])
        with self._lock:
            for key, count in self._counts.items():
                events.add_metric(key, count)
        yield events
        unwritten = CounterMetricFamily("trisect_unwritten", "Writes to the history that the disk refused.")
        unwritten.add_metric([], self._history.lost)
        yield unwritten
        if self.controller is None:
            return
        busy = CounterMetricFamily("trisect_controller_busy_seconds", "Time the deciding thread spent.")
        busy.add_metric([], self.controller.busy_s)
        yield busy
        if self.controller.follower is not None:
            yield from _load(self.controller.follower)
        state = self.controller.state
        if state is None:
            return
        names = ["partition"]
        phases = GaugeMetricFamily(
            "trisect_partition_phase", "1 for the present phase.", labels=[*names, "phase"]
        )
        shares = GaugeMetricFamily("trisect_partition_percent", "The active share.", labels=[*names, "gpu"])
        labels = [*names, "endpoint"]
        rates = GaugeMetricFamily(
            "trisect_rate_rps", "Arrivals of the endpoint's queue, moving mean.", labels=labels
        )
        planned = GaugeMetricFamily("trisect_planned_rps", "Planned arrivals of its queue.", labels=labels)
        evidence = GaugeMetricFamily(
            "trisect_evidence", "Against the SLO; 1 is a broken promise.", labels=labels
        )
        for name, watch in state.watches.items():
            present = phase(watch, state.now_s)
            for each in Phase:
                phases.add_metric([name, each.value], float(each is present))
            shares.add_metric([name, watch.active.gpu], watch.active.percent)
            for promise, seen, rate in zip(
                watch.partition.promises, watch.evidence, watch.rates_rps, strict=True
            ):
                where = [name, promise.endpoint]
                rates.add_metric(where, rate[-1])
                planned.add_metric(where, promise.rate_rps)
                evidence.add_metric(where, sequential.strength(seen, promise))
        yield from (phases, shares, rates, planned, evidence)


def _load(follower: Follower) -> Iterator[Metric]:
    """The metrics of load control."""
    gpus = GaugeMetricFamily("trisect_gpus", "GPUs of this host.", labels=["type", "state"])
    for kind, (used, free) in follower.gpus.items():
        gpus.add_metric([kind, "used"], used)
        gpus.add_metric([kind, "free"], free)
    yield gpus
    seen = follower.seen
    if seen is None:
        return
    state, found = seen
    forecast = GaugeMetricFamily(
        "trisect_forecast_rps", "The upper bound of a workload's forecast rate.", labels=["workload"]
    )
    for workload, upper in zip(state.workloads, found.upper.tolist(), strict=True):
        forecast.add_metric([workload.name], upper)
    yield forecast


def serve(controller: Controller, meters: Meters, host: str, port: int) -> http.server.ThreadingHTTPServer:
    """Listen in a thread of its own until `shutdown`. Raises GatewayError for a taken port."""
    meters.controller = controller
    registry = CollectorRegistry()
    registry.register(meters)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, generate_latest(registry))
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
        server = http.server.ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise GatewayError(
            f"port {port} on {host} cannot be used: {error.strerror}; choose another"
        ) from error
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="exporter", daemon=True).start()
    return server
