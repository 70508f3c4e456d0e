"""A controller without gateway, the work of a process of its own.

It applies each plan whose file is named on its standard input, says how long that took, and guards the fleet
meanwhile. Its fleet, its loop and its launcher are the real ones. RPS requests a second end at each
partition, all in time.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

from fake_host import GatewayInMemory

from controlplane.control.converge.devices import map_devices
from controlplane.domain.fleet import Cluster
from controlplane.files.documents import Document
from controlplane.files.fleets import FleetFiles, FleetSettings
from controlplane.files.plans import plan_of
from controlplane.monitor.records import Record
from controlplane.runtime import SystemClock
from controlplane.runtime.controller import serve
from controlplane.runtime.devices import devices_of
from controlplane.runtime.fleet.fleet import Fleet
from controlplane.runtime.fleet.preflight import ApplyRequest
from launchers.kubernetes.launcher import KubernetesLauncher
from launchers.kubernetes.options import ModelVolume, PodOptions

NAMESPACE = "scale"
_TOOK_MS = 20.0


class ClaimedRequests:
    """A log of requests that no client sends: so many a second to each route, in turns."""

    heard_since_s = 0.0

    def __init__(self, gateway: GatewayInMemory, rate_rps: float) -> None:
        self._gateway = gateway
        self._rate_rps = rate_rps
        self._due = 0.0
        self._taken_s = time.time()
        self._number = 0

    def take(self) -> list[Record]:
        routes = sorted(self._gateway.routes().items())
        now_s, before_s = time.time(), self._taken_s
        self._taken_s = now_s
        self._due += self._rate_rps * len(routes) * (now_s - before_s)
        count, ended = int(self._due), []
        self._due -= count
        for i in range(count):
            self._number += 1
            endpoint, route = routes[self._number % len(routes)]
            at_s = before_s + (now_s - before_s) * (i + 1) / count
            server = route.members[0]
            where = "grpc", self._number, endpoint, server.instance
            ended.append(Record(*where, 200, None, 100, 100, at_s, _TOOK_MS, False))
        return ended

    def close(self) -> None:
        pass


def main() -> None:
    """Apply the plans that the input names until it ends; the arguments are the folder and requests/s."""
    state, rate_rps = Path(sys.argv[1]), float(sys.argv[2])
    options = PodOptions("claimed", "Never", ModelVolume.parse("host:/models"))
    launcher = KubernetesLauncher(state, Cluster(namespace=NAMESPACE), options)
    gateway = GatewayInMemory()
    fleet = Fleet(FleetFiles(state, "scale"), launcher, gateway, SystemClock(), lambda text: None)
    requests = ClaimedRequests(gateway, rate_rps)
    stop, guarding = threading.Event(), None
    for line in sys.stdin:
        wanted = plan_of(Document("plan", "", json.loads(Path(line.strip()).read_text())))
        devices = dict(map_devices(wanted, devices_of(launcher)))
        settings = FleetSettings(launcher.name, str(state / "models"), str(state / "rendered"), devices)
        began = time.monotonic()
        fleet.apply(ApplyRequest(wanted, settings))
        print(json.dumps({"apply_s": time.monotonic() - began}), flush=True)
        if guarding is None:
            guarding = threading.Thread(target=serve.guard, args=(fleet, note, requests, stop))
            guarding.start()
    stop.set()
    os._exit(0)


def note(event: object) -> None:
    print(event, file=sys.stderr, flush=True)
