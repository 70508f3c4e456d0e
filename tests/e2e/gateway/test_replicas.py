"""Two replicas of a gateway behind one service, as in a Deployment."""

import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import gateway_rig as rig
import pytest
from background import until
from host_ports import free_ports
from service import service

from controlplane.domain.fleet import GatewayConfig, Route
from controlplane.gateway.haproxy import HaproxyGateway
from controlplane.gateway.replicas import control_port
from controlplane.gateway.replicas.gateway import ReplicatedGateway

TOKEN = "the-token"
RATE_RPS = 100


@dataclass
class Replica:
    """One replica as a process of this host."""

    state: Path
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        token = self.state.with_suffix(".token")
        token.write_text(f"{TOKEN}\n")
        self.http, self.grpc, self.metrics, self.control = free_ports(4)
        ports = {"http": self.http, "grpc": self.grpc, "metrics": self.metrics, "control": self.control}
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "controlplane.gateway.replicas.agent"),
                *("--state", str(self.state), "--token-file", str(token), "--notice-s", "1"),
                *(part for name, port in ports.items() for part in (f"--{name}-port", str(port))),
            ]
        )

    @property
    def address(self) -> str:
        return f"{rig.HOST}:{self.control}"

    @property
    def ready(self) -> bool:
        try:
            urllib.request.urlopen(f"http://{self.address}{control_port.READY}", timeout=5).close()
        except (OSError, urllib.error.URLError):
            return False
        return True

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(90)

    def clear(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(30)
        HaproxyGateway(self.state).stop()


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[dict[str, Replica]]:
    running = {name: Replica(tmp_path / name) for name in ("first", "second")}
    try:
        yield running
    finally:
        for replica in running.values():
            replica.clear()


def test_replaced_replicas_lose_no_request(
    replicas: dict[str, Replica], pair: dict[str, rig.Triton], tmp_path: Path
) -> None:
    living = dict(replicas)
    gateway = ReplicatedGateway(lambda: [r.address for r in living.values()], TOKEN)
    gateway.start(GatewayConfig())
    until(lambda: all(_answers(r) for r in living.values()))
    gateway.commit({"echo": Route((pair["one"].backend,), pair["two"].backend)})
    ready = {name: replica for name, replica in living.items() if replica.ready}
    assert set(ready) == {"first", "second"}

    with service(
        lambda: [(rig.HOST, r.http) for r in list(ready.values())],
        lambda: [(rig.HOST, r.grpc) for r in list(ready.values())],
    ) as (http, grpc):
        load = rig.Load(rig.Ports(http, grpc, 0))

        def replace(name: str) -> None:
            """As a rolling update does: a new one until it is ready, then the old one ends."""
            new = replicas[f"{name}-new"] = living[f"{name}-new"] = Replica(tmp_path / f"{name}-new")
            until(lambda: gateway.routes() is not None and new.ready)
            ready[f"{name}-new"] = new
            del ready[name]
            assert replicas[name].end() == 0
            del living[name]

        with rig.under_load(partial(load.unary, RATE_RPS), partial(load.anew, RATE_RPS / 4)):
            until(lambda: len(load.outcomes) > RATE_RPS)
            for name in ("first", "second"):
                replace(name)
            done = time.monotonic()
            until(lambda: load.answered("one", done) != [])
    print(f"\nboth replicas replaced under load: {len(load.outcomes)} requests, {len(load.failed())} failed")
    assert load.failed() == []
    gateway.stop()
    assert gateway.routes() == {}


def _answers(replica: Replica) -> bool:
    try:
        urllib.request.urlopen(f"http://{replica.address}{control_port.READY}", timeout=5).close()
    except urllib.error.HTTPError as error:
        return error.code == 503
    except OSError:
        return False
    return True
