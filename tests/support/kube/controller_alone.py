"""A controller without gateway and requests, as a process: `python -m kube.controller_alone FOLDER`.

It applies each plan whose file is named on its standard input, says how long that took, and guards the fleet
meanwhile. Its launcher, its fleet and its loop are the real ones.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

from controlplane.control.converge.devices import map_devices
from controlplane.domain.fleet import Backend, Endpoints, Routes
from controlplane.domain.order import Order
from controlplane.files.documents import Document
from controlplane.files.fleets import FleetFiles, FleetSettings
from controlplane.files.plans import plan_of
from controlplane.runtime.clock import SystemClock
from controlplane.runtime.controller import serve
from controlplane.runtime.devices import devices_of
from controlplane.runtime.fleet.fleet import Fleet
from launchers.kubernetes.api import ClusterPlace
from launchers.kubernetes.launcher import KubernetesLauncher
from launchers.kubernetes.options import ModelVolume, PodOptions

NAMESPACE = "scale"


class NoGateway:
    """Routes in memory: the gateway's own cost is another table."""

    def __init__(self) -> None:
        self._routes: Routes = {}

    def start(self, wanted: Endpoints, endpoints: int = 0) -> None:
        pass

    def routes(self) -> Routes:
        return self._routes

    def commit(self, routes: Routes) -> None:
        self._routes = dict(routes)

    def arrange(self, order: Order) -> None:
        pass

    def in_flight(self, backend: Backend) -> int:
        return 0

    def stop(self) -> None:
        self._routes = {}


class NoRequests:
    """A log without a request."""

    heard_since_s = 0.0

    def take(self) -> tuple[()]:
        return ()

    def close(self) -> None:
        pass


def main(state: Path) -> None:
    """Apply the named plans until the input ends."""
    options = PodOptions("claimed", "Never", ModelVolume.parse("host:/models"))
    launcher = KubernetesLauncher(state, ClusterPlace(namespace=NAMESPACE), options)
    fleet = Fleet(FleetFiles(state, "scale"), launcher, NoGateway(), SystemClock(), lambda text: None)
    stop, guarding = threading.Event(), None
    for line in sys.stdin:
        wanted = plan_of(Document("plan", "", json.loads(Path(line.strip()).read_text())))
        devices = map_devices(wanted, devices_of(launcher))
        settings = FleetSettings("kubernetes", str(state / "models"), str(state / "rendered"), devices)
        began = time.monotonic()
        fleet.apply(wanted, settings)
        print(json.dumps({"apply_s": time.monotonic() - began}), flush=True)
        if guarding is None:
            guarding = threading.Thread(target=serve.guard, args=(fleet, note, NoRequests(), stop))
            guarding.start()
    stop.set()
    os._exit(0)


def note(event: object) -> None:
    print(event, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
