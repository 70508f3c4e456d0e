"""A guarded fleet for a test: `ctl apply` with its controller, a load that remembers, ways to break it."""

import asyncio
import contextlib
import json
import os
import random
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import ctl_fleet
import docker
import numpy as np
import psutil
import pytest
import triton_image
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as triton_http
import tritonclient.http.aio as http_aio
from background import Background, until
from ctl_fleet import Ctl
from gateway_rig import NOBODY_READY, NOTICED_S

from controlplane.domain.fleet import Server, ServerState
from controlplane.domain.observation import Guarding
from controlplane.files.fleets import read_guarding
from launchers.docker.launcher import DockerLauncher
from launchers.process import ProcessLauncher

MODELS = Path(__file__).parent / "guard_models"
KILLED_CONTROLLER = Path(__file__).parent / "killed_controller.py"
partition = partial(ctl_fleet.partition, model="spin")
"""Of the model that works as long as a request says."""


SHARERS = {"a": 22.0, "b": 20.0, "c": 18.0}
SHARED_PERCENT = 40.0
SHARED_ID = "standby"


def three(
    policy: str, rates_rps: Mapping[str, float], slo_ms: float, memory_limit_mb: float | None = None
) -> dict[str, Any]:
    """A plan of three partitions of a core, with a shadow each of this policy, or one for all."""
    partitions = []
    for name, percent in SHARERS.items():
        extra = SHARED_PERCENT - percent
        made = partition(name, percent, extra=extra, rate_rps=rates_rps[name], slo_ms=slo_ms)
        made["shadow"]["policy"] = policy
        made["memory_limit_mb"] = memory_limit_mb
        partitions.append(made)
    document = ctl_fleet.plan(*partitions)
    if policy == "shared":
        document["gpus"][0]["shared"] = {"id": SHARED_ID, "percent": SHARED_PERCENT}
    return document


class Guarded(Ctl):
    """A fleet whose controller acts."""

    def __init__(self, directory: Path, models: Path = MODELS) -> None:
        super().__init__(directory, "g", models)

    def apply(self, document: dict[str, Any], *more: str, **how: Any) -> subprocess.CompletedProcess[str]:
        """Returns once the controller has adopted what was changed."""
        began_s = time.time()
        told = super().apply(document, *more, **how)
        if "--no-controller" not in more and told.stdout.strip() != "nothing to do":
            self.await_event("adopt", since_s=began_s)
        return told

    def journal(self) -> list[str]:
        """What each line tells of, oldest first."""
        lines = (self.files / "journal.jsonl").read_text().splitlines()
        return [str(json.loads(line)["event"]) for line in lines]

    def await_guarding(self, partition: str, condition: Callable[[Guarding], bool], what: str) -> None:
        """Poll the file of the controller's state: `ctl status` in a loop would take a core."""

        def holds() -> bool:
            found = read_guarding(self.files / "guard.json")
            return any(g.partition == partition and condition(g) for g in found)

        until(holds, 60.0, what)

    def launcher(self) -> ProcessLauncher | DockerLauncher:
        state = self.files.parent
        if self.launcher_options:
            return DockerLauncher(state, address=self.environment["DOCKER_HOST"])
        return ProcessLauncher(state)

    def launched(self) -> tuple[Server, ...]:
        return self.launcher().servers(self.fleet)

    def running_servers(self) -> tuple[Server, ...]:
        """Without those that have ended and are yet to be cleared away."""
        return tuple(s for s in self.launched() if s.state is ServerState.RUNNING)

    def is_guarded(self, partitions: int = 1) -> bool:
        """Whether every partition has a routed server, another that backs it up, and nothing else runs.

        A backup that is smaller is about to take a lent share back.
        """
        rows = self.slots()
        if len(rows) != partitions or not all(r["members"] and r["backup"] for r in rows):
            return False
        hosts = {m["host"] for r in rows for m in (*r["members"], r["backup"])}
        percents = {s.host: s.spec.percent for s in self.running_servers()}
        return hosts == percents.keys() and all(
            percents[r["backup"]["host"]] >= percents[m["host"]] for r in rows for m in r["members"]
        )

    def await_guarded(self, partitions: int = 1) -> None:
        until(lambda: self.is_guarded(partitions), 60.0, "guarded")

    def active(self, endpoint: str) -> str:
        (server,) = [m["server"] for s in self.slots() if s["endpoint"] == endpoint for m in s["members"]]
        return str(server)

    def tree(self, server: str) -> list[psutil.Process]:
        """Triton and its stubs, Triton first; of a container all that runs in it."""
        if self.launcher_options:
            with contextlib.closing(docker.DockerClient(base_url=self.environment["DOCKER_HOST"])) as client:
                first = psutil.Process(client.containers.get(server).attrs["State"]["Pid"])
            return [first, *first.children(recursive=True)]
        mine = self.processes(TRISECT_FLEET=self.fleet, TRISECT_NAME=server)
        mine = [p for p in mine if p.info["name"] != "sh"]  # waits for Triton's end
        return sorted(mine, key=lambda p: "tritonserver" not in p.info["name"])

    def start_controller(self) -> None:
        """Start it detached, as `ctl apply` does."""
        code = "import sys; from controlplane.files.fleets import FleetFiles, state_root; "
        code += "from controlplane.runtime.fleet import controller_process; "
        code += "controller_process.start_detached(FleetFiles(state_root(), sys.argv[1]))"
        subprocess.run([sys.executable, "-c", code, self.fleet], env=self.environment, check=True, timeout=60)

    def serving_until(self, point: str) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        """A controller that kills itself at one of `killed_controller.POINTS`."""
        return self.running(point, program=(sys.executable, str(KILLED_CONTROLLER)))

    def gateway_processes(self, role: str) -> list[psutil.Process]:
        return self.processes(TRISECT_GATEWAY_ROLE=role, TRISECT_GATEWAY=str(self.files / "gateway"))

    def cut_quota(self, percent: float, to_percent: float) -> None:
        """Hold the one server that has `percent` of a core to `to_percent`, behind everybody's back."""
        (server,) = [s for s in self.launched() if s.spec.percent == percent]
        self.launcher().resize(server, to_percent)


@dataclass(frozen=True)
class Request:
    """One request as its client saw it; times since the epoch."""

    started_s: float
    ended_s: float
    error: str | None

    @property
    def latency_ms(self) -> float:
        return 1000.0 * (self.ended_s - self.started_s)


@dataclass
class Load(Background):
    """Poisson arrivals, open loop, in a thread of its own; every request is remembered."""

    port: int
    endpoint: str
    rate_rps: float
    work_s: float
    seed: int = 1
    protocol: str = "grpc"
    connections: int = 1
    requests: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def await_answers(self, count: int, since_s: float = 0.0) -> None:
        """Until so many of the requests that started from then on were answered."""

        def answered() -> bool:
            return sum(r.error is None and r.started_s >= since_s for r in [*self.requests]) >= count

        until(answered, 60.0, f"{count} answers of {self.endpoint}")

    def failed(self) -> list[Request]:
        return [r for r in self.requests if r.error is not None]

    def unexplained(self, hit_s: float, dead_s: float) -> list[Request]:
        """What failed though the server that died from `hit_s` to `dead_s` cannot have held it.

        Whoever passes requests on has read that its connection was closed when the host lets it: as late as
        any request may end here. And with a shadow alive nobody is told that there is no server.
        """
        calm_s = max(r.ended_s - r.started_s for r in self.requests if r.ended_s < hit_s)
        held_s = dead_s + NOTICED_S + calm_s
        return [
            r
            for r in self.failed()
            if r.ended_s < hit_s or r.started_s > held_s or NOBODY_READY in str(r.error)
        ]

    def between(self, start_s: float, end_s: float) -> list[Request]:
        return sorted((r for r in self.requests if start_s <= r.started_s < end_s), key=lambda r: r.started_s)

    def _run(self) -> None:
        asyncio.run(self._send())

    async def _send(self) -> None:
        chance = random.Random(self.seed)
        module: Any = grpc_aio if self.protocol == "grpc" else http_aio
        x = module.InferInput("X", [1, 1], "FP32")
        x.set_data_from_numpy(np.array([[self.work_s]], dtype=np.float32))
        async with contextlib.AsyncExitStack() as opened:
            pool = [
                await opened.enter_async_context(module.InferenceServerClient(f"127.0.0.1:{self.port}"))
                for _ in range(self.connections)
            ]
            group = await opened.enter_async_context(asyncio.TaskGroup())
            due = time.time()
            while not self._stop.is_set():
                due += chance.expovariate(self.rate_rps)
                await asyncio.sleep(max(0.0, due - time.time()))
                group.create_task(self._one(chance.choice(pool), x))

    async def _one(self, client: Any, x: Any) -> None:
        started = time.time()
        error = None
        try:
            await asyncio.wait_for(client.infer(self.endpoint, [x]), 30.0)
        except Exception as problem:
            error = str(problem)[:200]
        self.requests.append(Request(started, time.time(), error))


def infer(target: str, model: str, value: float, *, protocol: str = "grpc", timeout_s: float = 60.0) -> None:
    """One inference with this value, whose client leaves after the timeout."""
    module: Any = triton_grpc if protocol == "grpc" else triton_http
    x = module.InferInput("X", [1, 1], "FP32")
    x.set_data_from_numpy(np.full((1, 1), value, dtype=np.float32))
    over = {"network_timeout": timeout_s} if protocol == "http" else {}
    call = {} if protocol == "http" else {"client_timeout": timeout_s}
    with module.InferenceServerClient(target, **over) as client:
        client.infer(model, [x], **call)


def needs_quota(fleet: Guarded) -> None:
    """Skip a test that cuts a quota behind the guard's back where there is none."""
    if fleet.launcher().enforcement() is None:
        pytest.skip("CAPABILITY MISSING: no cgroup quota on this host to cut behind the guard's back")


@contextlib.contextmanager
def guarded(directory: Path, launcher: str, models: Path = MODELS) -> Iterator[Guarded]:
    """A fleet of processes or, on an engine of its own, of containers (`docker`)."""
    with contextlib.ExitStack() as stack:
        made = Guarded(directory, models)
        if launcher == "docker":
            made.in_containers(*stack.enter_context(triton_image.docker_engine()))
        yield stack.enter_context(made)


def kill(processes: Iterable[psutil.Process]) -> tuple[float, float]:
    """End them as the kernel's out-of-memory killer would: when that began, and when all were dead."""
    processes, began_s = list(processes), time.time()
    for process in processes:
        process.kill()
    until(lambda: all(map(is_dead, processes)), 30.0, "killed")
    return began_s, time.time()


def is_dead(process: psutil.Process) -> bool:
    """With all its threads, whose files stay open until then, and whether or not somebody waited for it."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], 0)[0])
    finally:
        os.close(handle)
