"""A guarded fleet for a test: `ctl apply` with its controller, a load that remembers, ways to break it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http.aio as http_aio
from gateway_rig import NOBODY_READY, NOTICED_S
from host_ports import free_ports

from controlplane.domain.fleet import Server, ServerState
from controlplane.domain.observation import Event, Guarding
from controlplane.files.fleets import read_guarding
from controlplane.runtime.fleet.history import History
from launchers.docker.launcher import DockerLauncher
from launchers.process import ProcessLauncher

ROOT = Path(__file__).parents[2]
CTL = Path(sys.executable).parent / "ctl"
MODELS = Path(__file__).parent / "guard_models"
CGROUPS = Path("/sys/fs/cgroup")
KILLED_CONTROLLER = Path(__file__).parent / "killed_controller.py"


def partition(
    name: str,
    percent: float,
    *,
    rate_rps: float,
    slo_ms: float,
    extra: float = 10.0,
    device: str = "cpu-0",
    batch: int = 4,
) -> dict[str, Any]:
    return {
        "id": name,
        "percent": percent,
        "shadow": {"policy": "hot", "gpu": device, "extra_percent": extra, "percent": percent + extra},
        "models": [{"model": "spin", "batch": batch}],
        "workloads": [
            {"name": name, "endpoint": name, "model": "spin", "rate_rps": rate_rps, "slo_ms": slo_ms}
        ],
    }


def plan(*partitions: dict[str, Any], device: str = "cpu-0") -> dict[str, Any]:
    return {
        "schema_version": 1,
        "strategy": "igniter",
        "rule": "half-slo",
        "latency_model": "igniter",
        "gpus": [{"id": device, "type": "cpu", "partitions": list(partitions)}],
    }


@dataclass
class Guarded:
    """One fleet in directories of its own."""

    directory: Path
    fleet: str
    http: int
    grpc: int
    metrics: int
    models: Path = MODELS
    engine: dict[str, str] = field(default_factory=dict)
    """The environment that leads to a Docker engine and its image, for a fleet of containers."""

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "XDG_STATE_HOME": str(self.directory / "state"),
            "TRISECT_TRITON_HOME": str(ROOT / ".tools" / "triton"),
            "OPENBLAS_NUM_THREADS": "1",
            **self.engine,
        }

    @property
    def files(self) -> Path:
        return self.directory / "state" / "trisect" / self.fleet

    def ctl(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(CTL), *arguments, "--fleet", self.fleet],
            cwd=self.directory,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def apply(self, document: dict[str, Any], *more: str) -> subprocess.CompletedProcess[str]:
        path = self.directory / "plan.json"
        path.write_text(json.dumps(document))
        ports = ["--http-port", str(self.http), "--grpc-port", str(self.grpc)]
        ports += ["--metrics-port", str(self.metrics)]
        where = ["--repository", str(self.models), "--output", str(self.directory / "rendered")]
        if self.engine:
            where += ["--launcher", "docker"]
        # Other tests' fleets may run on the same core.
        accepted = ["--allow-violations", "--overcommit", "--yes"]
        told = self.ctl("apply", str(path), *accepted, *ports, *where, *more)
        assert told.returncode == 0, told.stderr
        if "--no-serve" not in more:
            self.await_event("adopt")
        return told

    def journal(self) -> list[str]:
        """What each line tells of, oldest first."""
        lines = (self.files / "journal.jsonl").read_text().splitlines()
        return [str(json.loads(line)["event"]) for line in lines]

    def events(self) -> tuple[Event, ...]:
        return History(self.files / "history.sqlite").events()

    def await_event(
        self, kind: str, *, since_s: float = 0.0, deadline_s: float = 60.0, says: str = ""
    ) -> Event:
        deadline = time.monotonic() + deadline_s
        while time.monotonic() < deadline:
            for event in self.events():
                if event.kind == kind and event.at_s >= since_s and says in event.reason:
                    return event
            time.sleep(0.1)
        raise AssertionError(f"no {kind} {says!r} in {deadline_s:g} s: {self.events()}\n{self.log()}")

    def await_guarding(self, partition: str, condition: Callable[[Guarding], bool], what: str) -> None:
        """Poll the file of the controller's state: `ctl status` in a loop would take a core."""

        def holds() -> bool:
            found = read_guarding(self.files / "guard.json")
            return any(g.partition == partition and condition(g) for g in found)

        await_true(holds, 60.0, what)

    def log(self) -> str:
        log = self.files / "controller.log"
        return log.read_text(errors="replace")[-4000:] if log.exists() else ""

    def launcher(self) -> ProcessLauncher | DockerLauncher:
        state = self.directory / "state" / "trisect"
        if self.engine:
            return DockerLauncher(state, address=self.engine["DOCKER_HOST"])
        return ProcessLauncher(state)

    def servers(self) -> tuple[Server, ...]:
        return self.launcher().servers(self.fleet)

    def is_guarded(self, partitions: int = 1) -> bool:
        """Whether every partition has a routed server, another that backs it up, and nothing else runs.

        A backup that is smaller is about to take a lent share back.
        """
        slots = json.loads((self.files / "gateway" / "slots.json").read_text())["slots"]
        rows = [s for s in slots if not s["draining"]]
        if len(rows) != partitions or not all(r["members"] and r["backup"] for r in rows):
            return False
        ports = {m["http_port"] for r in rows for m in (*r["members"], r["backup"])}
        percents = {s.http_port: s.spec.percent for s in self.servers() if s.state is ServerState.RUNNING}
        return ports == percents.keys() and all(
            percents[r["backup"]["http_port"]] >= percents[m["http_port"]] for r in rows for m in r["members"]
        )

    def await_guarded(self, partitions: int = 1) -> None:
        deadline = time.monotonic() + 60.0
        while not self.is_guarded(partitions):
            assert time.monotonic() < deadline, f"not guarded: {self.servers()}\n{self.log()}"
            time.sleep(0.2)

    def active(self, endpoint: str) -> str:
        slots = json.loads((self.files / "gateway" / "slots.json").read_text())["slots"]
        (server,) = [
            m["server"]
            for s in slots
            if s["endpoint"] == endpoint and not s["draining"]
            for m in s["members"]
        ]
        return str(server)

    def processes(self, **environment: str) -> list[psutil.Process]:
        """This fleet's processes that carry these variables."""
        found = []
        for process in psutil.process_iter(["environ", "name"]):
            environ = process.info["environ"] or {}
            if all(environ.get(key) == value for key, value in environment.items()):
                found.append(process)
        return found

    def tree(self, server: str) -> list[psutil.Process]:
        """Triton and its stubs, Triton first."""
        mine = self.processes(TRISECT_FLEET=self.fleet, TRISECT_NAME=server)
        mine = [p for p in mine if p.info["name"] != "sh"]  # waits for Triton's end
        return sorted(mine, key=lambda p: "tritonserver" not in p.info["name"])

    def start_controller(self) -> None:
        """Start it detached, as `ctl apply` does."""
        code = "import sys; from controlplane.files.fleets import FleetFiles, state_root; "
        code += "from controlplane.runtime.fleet import controller_process; "
        code += "controller_process.start_detached(FleetFiles(state_root(), sys.argv[1]))"
        subprocess.run([sys.executable, "-c", code, self.fleet], env=self.environment, check=True, timeout=60)

    def serving(self, *more: str) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        """A controller in the foreground, ended afterwards."""
        return self._running(str(CTL), "serve", *more)

    def serving_until(self, point: str) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        """A controller that kills itself at one of `killed_controller.POINTS`."""
        return self._running(sys.executable, str(KILLED_CONTROLLER), point)

    @contextlib.contextmanager
    def _running(self, *command: str) -> Iterator[subprocess.Popen[bytes]]:
        with (self.directory / "serve.log").open("ab") as log:
            process = subprocess.Popen(
                [*command, "--fleet", self.fleet],
                cwd=self.directory,
                env=self.environment,
                stdout=log,
                stderr=log,
            )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def controller(self) -> psutil.Process:
        return psutil.Process(int((self.files / "controller.pid").read_text()))

    def gateway_processes(self, role: str) -> list[psutil.Process]:
        return self.processes(TRISECT_GATEWAY_ROLE=role, TRISECT_GATEWAY=str(self.files / "gateway"))

    def cut_quota(self, percent: float, to_percent: float) -> None:
        """Hold the one server that has `percent` of a core to `to_percent`, behind everybody's back."""
        (server,) = [s for s in self.servers() if s.spec.percent == percent]
        self.launcher().resize(server, to_percent)

    def leftovers(self) -> list[str]:
        found = []
        for process in psutil.process_iter(["cmdline", "environ"]):
            environ = process.info["environ"] or {}
            command = " ".join(process.info["cmdline"] or [])
            if (
                environ.get("TRISECT_FLEET") == self.fleet
                or str(self.directory) in command
                or f"--fleet {self.fleet}" in command
            ):
                found.append(f"{process.pid} {command[:120]}")
        found += [str(p) for p in Path("/dev/shm").iterdir() if self.fleet in p.name]
        return found + cgroups_of(self.fleet)

    def destroy(self) -> None:
        told = self.ctl("destroy", "--yes")
        left = self.leftovers()
        for process in self.processes(TRISECT_FLEET=self.fleet):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        assert told.returncode == 0, told.stderr
        assert left == []


def cgroups_of(fleet: str) -> list[str]:
    """Of any hierarchy, while other programs' groups come and go."""
    return [folder for folder, _, _ in os.walk(CGROUPS) if fleet in os.path.basename(folder)]


@contextlib.contextmanager
def guarded(directory: Path, engine: dict[str, str] | None = None) -> Iterator[Guarded]:
    """A fleet that is gone afterwards, whatever happened."""
    name = f"g{os.getpid()}x{time.monotonic_ns() % 10**6}"
    http, grpc, metrics = free_ports(3)
    here = Guarded(directory, name, http, grpc, metrics, engine=engine or {})
    try:
        yield here
    finally:
        with contextlib.suppress(FileNotFoundError, psutil.Error, ValueError):
            here.controller().send_signal(signal.SIGCONT)
        here.destroy()
        shutil.rmtree(directory / "rendered", ignore_errors=True)


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
class Load:
    """Poisson arrivals, open loop, in a thread of its own; every request is remembered."""

    port: int
    endpoint: str
    rate_rps: float
    work_s: float
    seed: int = 1
    protocol: str = "grpc"
    connections: int = 1
    requests: list[Request] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Load:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=60)

    def await_answers(self, count: int, since_s: float = 0.0) -> None:
        """Until so many of the requests that started from then on were answered."""

        def answered() -> bool:
            return sum(r.error is None and r.started_s >= since_s for r in [*self.requests]) >= count

        await_true(answered, 60.0, f"{count} answers of {self.endpoint}")

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

    async def _run(self) -> None:
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


def kill(processes: Iterable[psutil.Process]) -> tuple[float, float]:
    """End them as the kernel's out-of-memory killer would: when that began, and when all were dead."""
    processes, began_s = list(processes), time.time()
    for process in processes:
        process.kill()
    await_true(lambda: all(map(is_dead, processes)), 30.0, "killed")
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


def await_true(condition: Callable[[], bool], deadline_s: float, what: str) -> None:
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not in {deadline_s:g} s"
        time.sleep(0.05)
