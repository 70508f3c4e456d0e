"""Another user of the host reaches no server, and takes the place of none that died."""

import json
import os
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Self

import psutil
import pytest
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from background import until
from ctl_fleet import Ctl, infer_grpc, infer_http, partition, plan
from geventhttpclient.response import HTTPConnectionClosed

from controlplane.domain.fleet import Backend, socket_path
from controlplane.files.gateway import read_slots
from controlplane.sockets import connect

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs a second user")

NOBODY = 65534
KILLS = 4


@pytest.fixture
def fleet() -> Iterator[Ctl]:
    """Every user may enter the folder, unlike a test's own: a fleet's own folders keep them out."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        with Ctl(Path(name)) as ctl:
            yield ctl


def servers(fleet: Ctl) -> tuple[Backend, ...]:
    """The active one and its backup, as only the fleet's user can read them."""
    (slot,) = (one for one in read_slots(fleet.files / "gateway" / "slots.json").slots if not one.draining)
    return slot.route.servers


def places(found: tuple[Backend, ...]) -> list[tuple[str, int]]:
    return [(s.host, p) for s in found for p in (s.http_port, s.grpc_port, s.metrics_port) if p is not None]


def take(host: str, port: int) -> socket.socket:
    """Listen where a server listens, or listened. Raises OSError."""
    path = socket_path(host, port)
    taken = socket.socket(socket.AF_INET if path is None else socket.AF_UNIX)
    taken.bind((host, port) if path is None else path)
    taken.listen()
    taken.setblocking(False)
    return taken


def attack(known: Path, stop: Path, told: Path) -> None:
    """Connect to every server, and listen in the place of every dead one, until `stop` is there."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    done: Counter[str] = Counter()
    held: dict[tuple[str, int], socket.socket] = {}
    while not stop.exists():
        for host, port in json.loads(known.read_text()):
            done["tries"] += 1
            with suppress(OSError), connect(host, port, 0.2):
                done["connections"] += (host, port) not in held
            with suppress(OSError):
                held[host, port] = take(host, port)
                done["places"] += 1
        for taken in held.values():
            with suppress(OSError):
                taken.accept()[0].close()
                done["calls"] += 1
    told.write_text(json.dumps(done))


def kill(fleet: Ctl, server: Backend) -> None:
    for process in fleet.processes(TRISECT_NAME=server.server):
        if process.info["name"] == "tritonserver":
            process.kill()


def more_than(outcomes: Counter[str], least: int) -> bool:
    return outcomes["answered"] > least


def mended(fleet: Ctl, before: tuple[Backend, ...]) -> bool:
    """Whether another server is active, and has a backup."""
    now = servers(fleet)
    return len(now) == 2 and now[0] != before[0]


class Stranger:
    """Another user of the host, with the place of each server."""

    def __init__(self, public: Path) -> None:
        public.mkdir()
        public.chmod(0o777)
        self._next, self._known, self._stop, self._told = (public / n for n in ("n", "known", "stop", "told"))
        self._places: list[tuple[str, int]] = []
        self.tell(())
        told = self._known, self._stop, self._told
        self._process = get_context("fork").Process(target=attack, args=told)

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.touch()
        self._process.join(30)
        self._process.kill()

    def tell(self, found: tuple[Backend, ...]) -> None:
        self._places += places(found)
        self._next.write_text(json.dumps(self._places))
        self._next.rename(self._known)

    def achieved(self) -> dict[str, int]:
        self.__exit__()
        found: dict[str, int] = json.loads(self._told.read_text())
        return found


@pytest.mark.parametrize("controller", [True, False])
def test_another_user_gets_no_connection_no_request_and_no_place_of_a_server(
    fleet: Ctl, controller: bool
) -> None:
    more = () if controller else ("--no-controller",)
    fleet.apply(plan(partition("p", 20)), *more)
    tritons = [p for p in fleet.processes(TRISECT_FLEET=fleet.fleet) if p.info["name"] == "tritonserver"]
    assert len(tritons) == 2
    open_ports = [c for p in tritons for c in psutil.Process(p.pid).net_connections("inet")]
    assert open_ports == [], "a port that becomes free is any user's"
    outcomes: Counter[str] = Counter()
    ends = False

    def infer(module: Any, one: Callable[[Any, str], None], port: int) -> None:
        """Requests one after the other: each answer must be the model's."""
        with module.InferenceServerClient(f"127.0.0.1:{port}") as client:
            while not ends:
                try:
                    one(client, "p")
                    outcomes["answered"] += 1
                except (module.InferenceServerException, HTTPConnectionClosed):
                    outcomes["failed"] += 1
                    time.sleep(0.01)

    with Stranger(fleet.directory / "public") as stranger, ThreadPoolExecutor(2) as pool:
        stranger.tell(servers(fleet))
        loads = [
            pool.submit(infer, over_http, infer_http, fleet.http),
            pool.submit(infer, over_grpc, infer_grpc, fleet.grpc),
        ]
        try:
            for _ in range(KILLS):
                before, least = servers(fleet), outcomes["answered"] + 20
                until(partial(more_than, outcomes, least))
                for server in before[: 1 if controller else 2]:
                    kill(fleet, server)
                stranger.tell(servers(fleet))
                if controller:
                    until(partial(mended, fleet, before), 60.0)
                else:
                    fleet.apply(plan(partition("p", 20)), *more)
        finally:
            ends = True
        for load in loads:
            load.result(60)
        found = stranger.achieved()
    assert found.pop("tries") > 100
    assert found == {}
    assert outcomes["answered"] > 20 * KILLS
