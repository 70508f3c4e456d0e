"""Bare Tritons with trivial models, and gateways of their own in front of them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from controlplane.domain.fleet import Backend
from controlplane.gateway.haproxy import HaproxyGateway, Ports

ROOT = Path(__file__).parents[3]
TOOLS = ROOT / ".tools"
MODELS = Path(__file__).parent / "models"


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@dataclass(frozen=True)
class Triton:
    name: str
    process: subprocess.Popen[bytes]
    http_port: int
    grpc_port: int
    log: Path

    @property
    def backend(self) -> Backend:
        return Backend(self.name, "127.0.0.1", self.http_port, self.grpc_port)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)


def launch(directory: Path, name: str, models: dict[str, str]) -> Triton:
    """A Triton that serves each endpoint with one of the models beside this file."""
    repository = directory / name
    for endpoint, model in models.items():
        shutil.copytree(MODELS / model, repository / endpoint)
    http_port, grpc_port, metrics_port = free_ports(3)
    log = directory / f"{name}.log"
    command = [
        str(TOOLS / "triton/bin/tritonserver"),
        f"--id={name}",
        f"--model-repository={repository}",
        f"--backend-directory={TOOLS / 'triton/backends'}",
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1",
        "--metrics-address=127.0.0.1",
        f"--http-port={http_port}",
        f"--grpc-port={grpc_port}",
        f"--metrics-port={metrics_port}",
        "--allow-gpu-metrics=false",
        "--http-thread-count=4",
        "--exit-timeout-secs=5",
        f"--backend-config=python,shm-region-prefix-name=gw-{os.getpid()}-{name}-",
    ]
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(TOOLS / "triton/lib"),
        "PATH": f"{ROOT / '.venv/bin'}:{os.environ['PATH']}",
        "SERVER_NAME": name,
        "OPENBLAS_NUM_THREADS": "1",
    }
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)
    return Triton(name, process, http_port, grpc_port, log)


def await_ready(triton: Triton, deadline_s: float = 40.0) -> None:
    deadline = time.monotonic() + deadline_s
    url = f"http://127.0.0.1:{triton.http_port}/v2/health/ready"
    while time.monotonic() < deadline:
        if triton.process.poll() is not None:
            break
        with contextlib.suppress(OSError, urllib.error.URLError), urllib.request.urlopen(url, timeout=1):
            return
        time.sleep(0.05)
    raise AssertionError(f"{triton.name} is not ready:\n{triton.log.read_text(errors='replace')[-3000:]}")


Launch = Callable[[str, dict[str, str]], Triton]


@contextlib.contextmanager
def tritons(directory: Path, **servers: dict[str, str]) -> Iterator[dict[str, Triton]]:
    running: dict[str, Triton] = {}
    try:
        for name, models in servers.items():
            running[name] = launch(directory, name, models)
        for triton in running.values():
            await_ready(triton)
        yield running
    finally:
        for triton in running.values():
            triton.kill()
        for left in Path("/dev/shm").glob(f"gw-{os.getpid()}-*"):
            left.unlink(missing_ok=True)


@contextlib.contextmanager
def a_gateway(directory: Path) -> Iterator[tuple[HaproxyGateway, Ports]]:
    ports = Ports(*free_ports(3))
    gateway = HaproxyGateway(directory / "gateway", ports)
    try:
        gateway.start()
        yield gateway, ports
    finally:
        gateway.stop()


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Triton]]:
    """Two Tritons with the same models: one active, one shadow."""
    models = {"echo": "echo", "slow": "slow"}
    with tritons(tmp_path_factory.mktemp("tritons"), one=models, two=models) as running:
        yield running


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[tuple[HaproxyGateway, Ports]]:
    with a_gateway(tmp_path) as made:
        yield made
