"""Bare Tritons with trivial models, gateways in front of them, and a load that remembers every request."""

import asyncio
import contextlib
import http.client
import itertools
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import bare_triton
import direct
import numpy as np
import pytest
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http.aio as http_aio
from background import until
from host_ports import free_ports

from controlplane.domain.fleet import UNIX, Backend, GatewayConfig
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.gateway import haproxy, processes, startup
from controlplane.gateway.haproxy import HaproxyGateway
from controlplane.render.repository import alias_config
from controlplane.render.source import read_source
from launchers.triton import program
from launchers.triton.readiness import failed_by_chance

MODELS = Path(__file__).parent / "gateway_models"
ALIASES = {"twin": "echo"}
"""Second names, rendered as a plan's are, of models that run under their own name in the same server."""
FORGETFUL_S = {"brief": 1}
"""After so many seconds of silence these have forgotten a sequence; other models remember it for longer."""
POISON: dict[str, Any] = {
    "inputs": [{"name": "INPUT", "datatype": "BYTES", "shape": [1, 1], "data": ["p"]}],
    "outputs": [{"name": "OUTPUT", "parameters": {"classification": 1}}],
}
"""Triton 2.51 ends itself over the classes of texts."""
HOST = "127.0.0.1"
NOTICED_S = 0.02
"""Until somebody has read that a connection was closed, where the host holds nobody up."""
NOBODY_READY = "no server of this model is ready"
"""The gateway's own refusal. What a dead server held ends with its connection, or elsewhere: never so."""
MOST = 128
"""Requests that a load has under way at once."""
HELD = -1.0
"""Seconds of work that `slow` does until nobody holds it (`held`)."""


@dataclass(frozen=True)
class Ports:
    """Of a gateway."""

    http: int
    grpc: int
    metrics: int


@dataclass(frozen=True)
class Triton:
    """A running tritonserver in a process group of its own."""

    name: str
    process: subprocess.Popen[bytes]
    http_port: int
    grpc_port: int
    metrics_port: int
    log: Path
    host: str = HOST

    @property
    def backend(self) -> Backend:
        return Backend(self.name, self.host, self.http_port, self.grpc_port, self.metrics_port)

    @property
    def slow(self) -> Path:
        """The folder of its model `slow`."""
        return self.log.parent / self.name / "slow"

    def kill(self) -> None:
        """End the server and the processes of its models, at once."""
        bare_triton.end(self.process, _regions(self.name))


def launch(
    directory: Path,
    name: str,
    models: Mapping[str, str],
    *,
    ports: Sequence[int] = (),
    flags: tuple[str, ...] = (),
    prefix: tuple[str, ...] = (),
) -> Triton:
    """Start a Triton that serves each endpoint with one of the models beside this file.

    It listens on ports, or on sockets where none are given.

    `prefix` comes before its command line: what holds it to a share.
    """
    repository = directory / name
    for endpoint, model in models.items():
        if not (repository / endpoint).exists():
            shutil.copytree(MODELS / model, repository / endpoint)
            config = repository / endpoint / "config.pbtxt"
            if endpoint in ALIASES:
                source = read_source(MODELS, model)
                config.write_text(alias_config(source, endpoint=endpoint, of=ALIASES[endpoint]))
            if endpoint in FORGETFUL_S:
                idle, here = "max_sequence_idle_microseconds: ", config.read_text()
                config.write_text(here.replace(idle, f"{idle}{FORGETFUL_S[endpoint] * 10**6} # "))
    http_port, grpc_port, metrics_port = ports or program.PORTS
    place = directory / f"{name}.sockets" / "t"
    place.parent.mkdir(exist_ok=True)
    host = HOST if ports else f"{UNIX}{place}"
    log = directory / f"{name}.log"
    options = (
        f"--id={name}",
        f"--http-address={HOST if ports else f'{host}:{http_port}'}",
        f"--grpc-address={host}",
        f"--metrics-address={HOST if ports else f'{host}:{metrics_port}'}",
        f"--http-port={http_port}",
        f"--grpc-port={grpc_port}",
        f"--metrics-port={metrics_port}",
        "--allow-gpu-metrics=false",
        "--http-thread-count=4",
    )
    process = bare_triton.start(
        repository, log, _regions(name), *options, *flags, prefix=prefix, SERVER_NAME=name
    )
    return Triton(name, process, http_port, grpc_port, metrics_port, log, host)


def _regions(name: str) -> str:
    """How the names of a server's shared memory begin."""
    return f"gw-{os.getpid()}-{name}-"


def ready(triton: Triton, start: Callable[[], Triton], deadline_s: float = 120.0) -> Triton:
    """The server, or the one that `start` puts in its place, once all its models are ready.

    2.51's Python backend rarely aborts in a race with the model's process that it starts: launchers start
    such a server again, too.
    """
    deadline = time.monotonic() + deadline_s
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, http.client.HTTPException):
            direct.get(triton.backend, "/v2/health/ready")
            return triton
        if triton.process.poll() is not None:
            said = triton.log.read_text(errors="replace")
            if not failed_by_chance(said):
                break
            triton.kill()
            triton.log.write_text("")
            triton = start()
        time.sleep(0.05)
    triton.kill()
    raise AssertionError(f"{triton.name} is not ready:\n{triton.log.read_text(errors='replace')[-3000:]}")


@contextlib.contextmanager
def tritons(
    directory: Path,
    flags: tuple[str, ...] = (),
    prefix: tuple[str, ...] = (),
    on_sockets: bool = False,
    **servers: Mapping[str, str],
) -> Iterator[dict[str, Triton]]:
    """Servers by name, ready; what is in the dictionary at the end is killed."""
    running: dict[str, Triton] = {}
    try:

        def start(name: str) -> Triton:
            ports = () if on_sockets else free_ports(3)
            running[name] = launch(directory, name, servers[name], ports=ports, flags=flags, prefix=prefix)
            return running[name]

        for name in servers:
            start(name)
        for name in servers:
            ready(running[name], partial(start, name))
        yield running
    finally:
        for name, triton in running.items():
            bare_triton.end(triton.process, _regions(name))


def options(ports: Ports, *, fleet_wide_calls: bool = True, **more: Any) -> GatewayConfig:
    """Where a gateway listens, and its options."""
    where = (HOST, ports.http, ports.grpc, ports.metrics)
    return GatewayConfig(*where, fleet_wide_calls=fleet_wide_calls, **more)


@contextlib.contextmanager
def a_gateway(directory: Path, **asked: Any) -> Iterator[tuple[HaproxyGateway, Ports]]:
    """A started gateway on free ports, with these `options`; stopped at the end.

    A facade that the host holds up for seconds is waited for, and no error.
    """
    ports = Ports(*free_ports(3))
    gateway = HaproxyGateway(directory / "gateway")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(startup, "_RELOAD_DEADLINE_S", 60.0)
        patch.setattr(haproxy, "_OPEN_DEADLINE_S", 60.0)
        try:
            gateway.start(options(ports, **asked))
            yield gateway, ports
        finally:
            gateway.stop()


def only(places: GatewayPaths, role: str) -> int:
    """The pid of a gateway's process, once one that it has replaced is gone."""
    until(lambda: len(processes.find(places, role)) == 1)
    return processes.find(places, role)[0]


def replaced(places: GatewayPaths, role: str) -> None:
    """End the gateway's processes of a role at once, and wait for those that take their place."""
    before = processes.find(places, role)
    for pid in before:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: processes.find(places, role) not in ((), before))


@contextlib.contextmanager
def held(*servers: Triton) -> Iterator[None]:
    """Within, their model `slow` answers nobody who asks with `HELD`; at the end everybody."""
    holds = [triton.slow / "hold" for triton in servers]
    try:
        for hold in holds:
            hold.touch()
        yield
    finally:
        for hold in holds:
            hold.unlink(missing_ok=True)


def noted(slow: Path, what: str) -> int:
    """How many requests the model `slow` in this folder has "begun", or seen "cancelled"."""
    note = slow / what
    return len(note.read_text()) if note.exists() else 0


@dataclass(frozen=True)
class Outcome:
    """One request as its client saw it; times are of the monotonic clock."""

    kind: str
    started: float
    ended: float
    server: str | None
    error: str | None


@dataclass
class Load:
    """Open-loop load on one endpoint, every request remembered."""

    ports: Ports
    endpoint: str = "echo"
    seconds_of_work: float = 0.0
    token: str = ""
    outcomes: list[Outcome] = field(default_factory=list)
    streamed: dict[int, int] = field(default_factory=dict)

    def _inputs(self, module: Any) -> list[Any]:
        tensor = module.InferInput("INPUT", [4], "FP32")
        tensor.set_data_from_numpy(np.full(4, self.seconds_of_work, dtype=np.float32))
        return [tensor]

    @contextlib.asynccontextmanager
    async def _requests(self) -> AsyncIterator[Iterator[Coroutine[Any, Any, None]]]:
        """Requests to be sent, HTTP and gRPC in turn, as many as are taken."""
        async with (
            http_aio.InferenceServerClient(f"{HOST}:{self.ports.http}", conn_limit=256) as over_http,
            grpc_aio.InferenceServerClient(f"{HOST}:{self.ports.grpc}") as over_grpc,
        ):
            clients = (("http", over_http, http_aio), ("grpc", over_grpc, grpc_aio))
            yield (self._one(*client) for client in itertools.cycle(clients))

    async def unary(self, rate_rps: float, stop: asyncio.Event) -> None:
        """Poisson arrivals."""
        async with self._requests() as requests:
            await _arrive(requests, rate_rps, stop)

    async def anew(self, rate_rps: float, stop: asyncio.Event) -> None:
        """Poisson arrivals, each over a connection that is made for it after its start."""
        await _arrive(map(self._alone, itertools.cycle(("http", "grpc"))), rate_rps, stop)

    async def one_by_one(self, stop: asyncio.Event, pause_s: float = 0.02) -> None:
        """The next one soon after the answer to the one before."""
        async with self._requests() as requests:
            while not stop.is_set():
                await next(requests)
                await asyncio.sleep(pause_s)

    async def at_once(self, count: int) -> None:
        """So many, none after the other."""
        async with self._requests() as requests:
            await asyncio.gather(*itertools.islice(requests, count))

    async def _alone(self, kind: str) -> None:
        started = time.monotonic()
        if kind == "http":
            async with http_aio.InferenceServerClient(f"{HOST}:{self.ports.http}") as client:
                await self._one(kind, client, http_aio, started)
        else:
            # Channels of one process share what is connected already.
            apart = [("grpc.use_local_subchannel_pool", 1)]
            url = f"{HOST}:{self.ports.grpc}"
            async with grpc_aio.InferenceServerClient(url, channel_args=apart) as client:
                await self._one(kind, client, grpc_aio, started)

    async def _one(self, kind: str, client: Any, module: Any, started: float | None = None) -> None:
        started = time.monotonic() if started is None else started
        server = error = None
        try:
            headers = {"authorization": f"Bearer {self.token}"} if self.token else None
            result = await client.infer(self.endpoint, self._inputs(module), headers=headers)
            server = result.as_numpy("SERVER")[0].decode()
        except Exception as problem:
            error = repr(problem) + str(problem)
        self.outcomes.append(Outcome(kind, started, time.monotonic(), server, error))

    async def stream(self, pause_s: float, number: int, stop: asyncio.Event) -> int:
        """One open stream, one message in flight; returns how many messages were answered.

        A lost message leaves its stream without an answer, a repeated one answers with an old id.
        """
        sent: asyncio.Queue[str | None] = asyncio.Queue()
        answered = 0

        async def messages() -> AsyncIterator[dict[str, Any]]:
            while (name := await sent.get()) is not None:
                yield {"model_name": self.endpoint, "inputs": self._inputs(grpc_aio), "request_id": name}

        async with grpc_aio.InferenceServerClient(f"{HOST}:{self.ports.grpc}") as client:
            answers = client.stream_infer(messages()).__aiter__()
            try:
                while not stop.is_set():
                    name = f"{number}.{answered}"
                    started = time.monotonic()
                    await sent.put(name)
                    server = error = None
                    try:
                        result, error = await asyncio.wait_for(answers.__anext__(), 20)
                        if error is None:
                            server = result.as_numpy("SERVER")[0].decode()
                            if result.get_response().id != name:
                                error = f"sent {name}, got {result.get_response().id}"
                    except Exception as problem:
                        error = repr(problem) + str(problem)
                    self.outcomes.append(
                        Outcome("stream", started, time.monotonic(), server, error and str(error))
                    )
                    if error is not None:
                        return answered
                    answered += 1
                    self.streamed[number] = answered
                    await asyncio.sleep(pause_s)
            finally:
                await sent.put(None)
            with contextlib.suppress(StopAsyncIteration):
                await asyncio.wait_for(answers.__anext__(), 20)
                raise AssertionError("an answer nobody asked for")
        return answered

    def answered(self, server: str, since: float) -> list[Outcome]:
        """What this server answered of what was sent since then."""
        return [o for o in self.outcomes if o.server == server and o.started >= since]

    def failed(self) -> list[Outcome]:
        """What a client would call an error."""
        return [outcome for outcome in self.outcomes if outcome.error is not None]


async def _arrive(
    requests: Iterator[Coroutine[Any, Any, None]], rate_rps: float, stop: asyncio.Event
) -> None:
    """Those that find `MOST` under way are left out: a host that is too slow is not loaded ever more."""
    chance = random.Random(1)
    under_way: set[asyncio.Task[None]] = set()
    async with asyncio.TaskGroup() as group:
        due = time.monotonic()
        while not stop.is_set():
            due += chance.expovariate(rate_rps)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if len(under_way) < MOST:
                under_way.add(task := group.create_task(next(requests)))
                task.add_done_callback(under_way.discard)


@contextlib.contextmanager
def under_load(*clients: Callable[[asyncio.Event], Coroutine[Any, Any, Any]]) -> Iterator[None]:
    """Clients in a thread beside the test; at the end they are stopped and their errors raised."""
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def run() -> None:
        stop = asyncio.Event()
        started.set_result((asyncio.get_running_loop(), stop))
        await asyncio.gather(*(client(stop) for client in clients))

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lambda: asyncio.run(run()))
        loop, stop = started.result(60)
        try:
            yield
        finally:
            with contextlib.suppress(RuntimeError):  # all have ended by themselves
                loop.call_soon_threadsafe(stop.set)
            running.result()
