"""The controller's process: its lock, the request log and the metrics endpoint around the loop."""

from __future__ import annotations

import contextlib
import signal
import threading
from pathlib import Path
from typing import Protocol

from controlplane.control.guard.state import Limits
from controlplane.domain.observation import Event
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.runtime.autoscaler.autoscaler import Autoscaler
from controlplane.runtime.autoscaler.running import InCluster
from controlplane.runtime.controller.actor import Actor, Notice
from controlplane.runtime.controller.answers import Requests
from controlplane.runtime.controller.executor import Executor
from controlplane.runtime.controller.exporter import Meters, serve
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
                exporters.append(serve(controller, meters, (host, port)))
            if not (once or plan_only):
                exporters.append(serve(controller, meters, _socket(fleet)))
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


def _socket(fleet: Fleet) -> Path:
    """Return the socket of the controller's metrics, in a directory that exists from now on."""
    places = GatewayPaths.of(fleet.files.gateway)
    places.make()
    return places.controller_socket
