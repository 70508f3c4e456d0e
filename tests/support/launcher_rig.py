"""Launchers under test: what they left behind, how their servers are killed, and a small model to serve."""

import contextlib
import os
import signal
import threading
from abc import ABC, abstractmethod
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import direct
import docker
import pytest
from background import until

from controlplane.domain.fleet import BATCH_LIBRARY, Labels, Role, Server, ServerSpec, ShareUsage, socket_path
from controlplane.ports import GivesWay, Launcher, always
from controlplane.sockets import connect
from controlplane.triton.client import TritonClient
from launchers.cpu_quota import CHAIN
from launchers.docker.containers import FLEET_LABEL, ContainerOptions, Pull
from launchers.docker.launcher import DockerLauncher
from launchers.host import process_table
from launchers.process import ProcessLauncher

ROOT = Path(__file__).parents[2]

CONFIG = """
backend: "python"
max_batch_size: 8
input [ { name: "X", data_type: TYPE_FP32, dims: [ 2 ] } ]
output [ { name: "Y", data_type: TYPE_FP32, dims: [ 2 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""

MODEL = """
import time

import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        pass

    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            time.sleep(float(x[0, 0]))
            end = time.thread_time() + float(x[0, 1])
            while time.thread_time() < end:
                pass
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]))
        return answers
"""

BROKEN = MODEL.replace("        pass\n", "        raise RuntimeError('the weights are not here')\n", 1)
_TRIES = 5
HANGING = MODEL.replace("        pass\n", "        time.sleep(600)\n", 1)


_MARKS = {
    "process": pytest.mark.e2e,
    "docker": pytest.mark.docker,
    "kubernetes": pytest.mark.e2e,
    "cluster": pytest.mark.kubernetes,
}


def engines(*names: str) -> list[Any]:
    """The parameters of the fixture `engine`; by default each launcher there is, once."""
    return [pytest.param(name, marks=_MARKS[name]) for name in names or _MARKS]


class Engine(ABC):
    """What a test needs of a launcher beyond its port."""

    @abstractmethod
    def launcher(self) -> Launcher:
        """A launcher as a newly started program has it."""

    @abstractmethod
    def pid(self, server: Server) -> int:
        """The server's Triton as a process of this host."""

    @abstractmethod
    def end(self, server: Server) -> None:
        """Begin to end the server as another program would, in the usual way of its engine."""

    @abstractmethod
    def leftovers(self, fleet: str) -> list[str]:
        """What of this fleet is still on the host."""

    def kill(self, server: Server) -> None:
        """End the server's Triton as the kernel's out-of-memory killer would."""
        pid = self.pid(server)
        os.kill(pid, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{pid}").exists(), 30.0)

    def device(self, core: str) -> str:
        """The launcher's name for a core."""
        return core

    def usage(self, server: Server) -> ShareUsage:
        """The counters of a share, also where only its engine may read them."""
        return self.launcher().usage(server)


@dataclass
class ProcessEngine(Engine):
    """Plain processes, with one quota mechanism or the whole chain."""

    state: Path
    mechanism: str | None = None

    def launcher(self) -> Launcher:
        chosen = [m for m in CHAIN if self.mechanism in (None, m.name)]
        return ProcessLauncher(self.state, chosen)

    def pid(self, server: Server) -> int:
        return int(server.id)

    def kill(self, server: Server) -> None:
        os.kill(int(server.id), signal.SIGKILL)
        until(lambda: process_table.find(int(server.id)) is None, 30.0)

    def end(self, server: Server) -> None:
        os.kill(int(server.id), signal.SIGTERM)

    def leftovers(self, fleet: str) -> list[str]:
        found = [f"process {m.pid}" for m in process_table.members(fleet=fleet)]
        found += [str(p) for p in Path("/sys/fs/cgroup").glob(f"*/trisect~{fleet}~*")]
        return found + [str(p) for p in Path("/dev/shm").iterdir() if f"~{fleet}~" in p.name]


@dataclass
class DockerEngine(Engine):
    """Containers of a private engine that has the test image."""

    state: Path
    address: str
    image: str

    def launcher(self) -> Launcher:
        options = ContainerOptions(image=self.image, pull=Pull.NEVER)
        return DockerLauncher(self.state, options, address=self.address)

    def pid(self, server: Server) -> int:
        with contextlib.closing(docker.DockerClient(base_url=self.address)) as client:
            return int(client.containers.get(server.id).attrs["State"]["Pid"])

    def end(self, server: Server) -> None:
        def stop() -> None:
            with contextlib.closing(docker.DockerClient(base_url=self.address)) as client:
                client.containers.get(server.id).stop()

        threading.Thread(target=stop).start()

    def leftovers(self, fleet: str) -> list[str]:
        with contextlib.closing(docker.DockerClient(base_url=self.address)) as client:
            found = client.containers.list(all=True, filters={"label": f"{FLEET_LABEL}={fleet}"})
            told = [f"container {c.name} {c.status}" for c in found]
        return told + [str(p) for p in Path("/dev/shm").iterdir() if f"~{fleet}~" in p.name]


@dataclass
class Fleet:
    """A fleet of one test."""

    name: str
    engine: Engine
    directory: Path
    launcher: Launcher
    seen: list[Server] = field(default_factory=list)

    def spec(
        self,
        partition: str = "p",
        *,
        percent: float = 100.0,
        device: str = "cpu-0",
        source: str = MODEL,
        role: Role = Role.ACTIVE,
    ) -> ServerSpec:
        repository = self.directory / "models" / partition
        version = repository / "spin" / "1"
        version.mkdir(parents=True, exist_ok=True)
        (version / "model.py").write_text(source)
        (repository / "spin" / "config.pbtxt").write_text(CONFIG)
        labels = Labels(self.name, "plan1", partition, role, "rev1")
        return ServerSpec(labels, str(repository), ("spin",), self.engine.device(device), percent)

    def start(self, spec: ServerSpec, deadline_s: float = 150.0, gives_way: GivesWay = always) -> Server:
        server = self.launcher.start(spec, deadline_s=deadline_s, gives_way=gives_way)
        self.seen.append(server)
        return server

    def leftovers(self) -> list[str]:
        found = self.engine.leftovers(self.name)
        for server in self.seen:
            for port in (server.http_port, server.grpc_port, server.metrics_port):
                path = socket_path(server.host, port)
                if path is not None and Path(path).exists():
                    found.append(path)
                # The address of a pod that is gone refuses nothing.
                with contextlib.suppress(OSError), connect(server.host, port, 1.0):
                    found.append(f"{server.host}:{port}")
        return found


def infer(server: Server, *, sleep_s: float = 0.0, burn_s: float = 0.0) -> list[float]:
    body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 2], "data": [sleep_s, burn_s]}]}
    return list(direct.post(server, "/v2/models/spin/infer", body)["outputs"][0]["data"])


def live(fleet: Fleet, batch: int, partition: str = "p") -> ServerSpec:
    """A server whose library is in place, as it is rendered."""
    spec = replace(fleet.spec(partition), batches=(("spin", batch),))
    library = fleet.launcher.batch_library()
    assert library is not None
    (Path(spec.repository) / "spin" / BATCH_LIBRARY).symlink_to(library)
    config = Path(spec.repository) / "spin" / "config.pbtxt"
    config.write_text(config.read_text() + "dynamic_batching { preferred_batch_size: [ 8 ] }\n")
    return spec


def has_batch(server: Server, batch: int) -> bool:
    """Whether batches become so large and no larger. Requests that a host holds up may be too few for one."""
    found = (_largest(server) for _ in range(_TRIES))
    return next((size for size in found if size >= batch), 0) == batch


def _largest(server: Server, requests: int = 16) -> int:
    """The largest batch of so many requests at once, by Triton's own statistics."""
    before = _counts(server)
    with ThreadPoolExecutor(requests) as pool:
        list(pool.map(lambda _: infer(server, sleep_s=0.05), range(requests)))

    def grown() -> Counter[int]:
        return _counts(server) - before

    # A batch is counted after its answers.
    until(lambda: sum(size * count for size, count in grown().items()) == requests)
    return max(grown())


def _counts(server: Server) -> Counter[int]:
    batches = TritonClient(server).statistics("spin").batches
    return Counter({size: one.executions for size, one in batches.items()})
