"""A host in memory: an engine, a gateway, a clock, and programs that can be killed between any two effects.

Marked as a fake: it holds the logic of an engine, not its behaviour. A program is a command or a controller.
Its slow work runs in tasks, of which one at a time goes on, and only when the test says so: every run is the
same.
"""

import contextlib
import itertools
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from controlplane.domain.errors import EngineError, GatewayError, InputError
from controlplane.domain.fleet import (
    NOTHING_IN_FLIGHT,
    Backend,
    GatewayConfig,
    InFlight,
    Route,
    Routes,
    Server,
    ServerSpec,
    ServerState,
)
from controlplane.domain.observation import News
from controlplane.domain.serving import Order
from controlplane.ports import GivesWay
from launchers.triton import labels


class Killed(BaseException):
    """The program was killed here: nothing of it runs on, and nothing catches it."""


@dataclass(eq=False)
class Program:
    """A process of ours: killed after `fuse` more effects, or by the test."""

    fuse: int | None = None
    dead: bool = False

    def effect(self) -> None:
        """Called before and after each effect."""
        if self.fuse is not None:
            self.fuse -= 1
            self.dead = self.dead or self.fuse < 0
        if self.dead:
            raise Killed


class Clock:
    """Time that passes only when somebody waits."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return 1.7e9 + self.now_s

    wall = time

    def sleep(self, seconds: float) -> None:
        self.now_s += max(seconds, 1e-3)


class Task:
    """A call in a thread of its own, which goes on only while `resume` waits for it."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.done = False
        self._call = call
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def resume(self) -> None:
        """Let it run to its next pause, or to its end."""
        self._go.release()
        self._stopped.acquire()

    def pause(self) -> None:
        """From inside: stand still until the next `resume`."""
        self._stopped.release()
        self._go.acquire()

    def _run(self) -> None:
        self._go.acquire()
        with contextlib.suppress(BaseException):  # a pool keeps it in a future that nobody reads
            self._call()
        self.done = True
        self._stopped.release()


class Host:
    """What outlives programs: servers, routes, time; and whose turn it is."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.servers: dict[str, Server] = {}
        self.loaded: dict[str, set[str]] = {}
        self.routes: dict[str, Route] = {}
        self.gateway_runs = False
        self.failing_starts = 0
        self.program = Program()
        self.task: Task | None = None
        self.tasks: list[tuple[Program, Task]] = []
        self.wrong: list[str] = []
        self._numbers = itertools.count(1)

    def number(self) -> int:
        return next(self._numbers)

    def running(self, name: str) -> Server | None:
        server = self.servers.get(name)
        return server if server is not None and server.state is ServerState.RUNNING else None

    def kill(self, name: str) -> None:
        """A server's process, by a signal."""
        self.servers[name] = replace(self.servers[name], state=ServerState.EXITED)

    def infer(self, server: Server, endpoint: str) -> None:
        """Raise EngineError where no model of that name answers."""
        present = self.running(server.name)
        if (
            present is None
            or present.http_port != server.http_port
            or endpoint not in self.loaded[server.name]
        ):
            raise EngineError(f"{server.name} does not answer for {endpoint}")

    def run_tasks(self) -> None:
        """Let every task go on to its next pause; those of dead programs end."""
        for program, task in tuple(self.tasks):
            before, self.program, self.task = self.program, program, task
            task.resume()
            self.program, self.task = before, None
        self.tasks = [(program, task) for program, task in self.tasks if not task.done]

    @contextlib.contextmanager
    def running_as(self, program: Program) -> Iterator[None]:
        """What happens meanwhile is done by `program`; its death ends it and is no error."""
        before, self.program = self.program, program
        try:
            yield
        except Killed:
            pass
        finally:
            self.program = before


class Pool:
    """`ThreadPoolExecutor` whose calls are tasks of the host; what has begun is not cancelled."""

    def __init__(self, host: Host, *_: object, **__: object) -> None:
        self._host = host
        self._closed = False

    def submit(self, call: Callable[..., object], *given: Any, **named: Any) -> None:
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        task = Task(lambda: call(*given, **named))
        self._host.tasks.append((self._host.program, task))

    def shutdown(self, *, wait: bool = True, cancel_futures: bool = False) -> None:
        self._closed = True


class InlinePool:
    """`ThreadPoolExecutor` that calls at once."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, call: Callable[..., Any], *given: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*given, **named))
        except BaseException as error:
            future.set_exception(error)
        return future

    def shutdown(self, *, wait: bool = True, cancel_futures: bool = False) -> None:
        pass


class Engine:
    """`Launcher` on the host. A server's labels go through their text, as on a process or a container."""

    name = "process"

    def __init__(self, host: Host) -> None:
        self._host = host

    def start(self, spec: ServerSpec, *, deadline_s: float, gives_way: GivesWay) -> Server:
        host = self._host
        host.program.effect()
        running = host.running(spec.name)
        if running is not None:
            for field_, (wanted, has) in labels.spec_difference(spec, running.spec).items():
                raise InputError(f"already runs with {has!r}, not {wanted!r}", field=field_)
            return running
        missing = [e for e in spec.endpoints if not Path(spec.repository, e, "config.pbtxt").is_file()]
        if missing or host.failing_starts:
            host.failing_starts = max(0, host.failing_starts - 1)
            host.servers.pop(spec.name, None)
            raise EngineError(f"{spec.name} ended before it was ready: {missing}")
        port = 3 * host.number()
        made = Server("1", spec, ServerState.RUNNING, "127.0.0.1", port, port + 1, port + 2)
        host.servers[spec.name] = labels.server_of(labels.text_of(made), id=str(port), state=made.state)
        host.loaded[spec.name] = set(spec.endpoints)
        if host.task is not None:
            host.task.pause()  # it loads; other programs see it
        host.program.effect()
        if host.running(spec.name) is None:
            host.servers.pop(spec.name, None)
            raise EngineError(f"{spec.name} ended before it was ready")
        return host.servers[spec.name]

    def servers(self, fleet: str) -> tuple[Server, ...]:
        return tuple(self._host.servers[name] for name in sorted(self._host.servers))

    def stop(self, server: Server, *, drain_s: float) -> None:
        host = self._host
        host.program.effect()
        present = host.servers.get(server.name)
        if present is not None and present.http_port == server.http_port:
            routed = {(m.server, m.http_port) for r in host.routes.values() for m in r.members}
            if present.state is ServerState.RUNNING and (server.name, server.http_port) in routed:
                host.wrong.append(f"{server.name} was stopped while routes led to it")
            del host.servers[server.name]
        host.program.effect()

    def sweep(self, fleet: str) -> tuple[str, ...]:
        self._host.program.effect()
        for name in [n for n in self._host.servers if self._host.running(n) is None]:
            del self._host.servers[name]
        return ()

    def watch(self, fleet: str) -> "Deaths":
        return Deaths(self._host)


@dataclass
class Deaths:
    """`Watch`: every death once."""

    host: Host
    told: set[str] = field(default_factory=set)

    def news(self, servers: Collection[Server]) -> tuple[News, ...]:
        dead = [s.name for s in servers if self.host.running(s.name) is None and s.name not in self.told]
        self.told.update(dead)
        return tuple(News((name,), "ended by signal 9") for name in dead)

    def close(self) -> None:
        pass


class NoServers:
    """`Launcher` and its `Watch` of a fleet without servers."""

    name = "process"

    def servers(self, fleet: str) -> tuple[Server, ...]:
        return ()

    def sweep(self, fleet: str) -> tuple[str, ...]:
        return ()

    def watch(self, fleet: str) -> "NoServers":
        return self

    def news(self, servers: Collection[Server]) -> tuple[News, ...]:
        return ()

    def close(self) -> None:
        pass


class GatewayInMemory:
    """Routes, and nothing behind them."""

    def __init__(self, routes: Routes | None = None) -> None:
        self.present = routes or {}
        self.stopped = False

    def start(self, wanted: GatewayConfig, endpoints: int = 0) -> None:
        pass

    def stop(self) -> None:
        self.stopped = True

    def routes(self) -> Routes:
        return self.present

    def commit(self, routes: Routes) -> None:
        self.present = routes

    def missing(self) -> tuple[str, ...]:
        return ()

    def restore(self) -> None:
        pass

    def arrange(self, order: Order) -> None:
        pass

    def refuse(self, endpoint: str, client: str, until_s: float) -> None:
        pass

    def discount(self, server: str, counters: object) -> None:
        pass

    def in_flight(self, backend: Backend) -> InFlight:
        return NOTHING_IN_FLIGHT

    def in_flights(self, backends: Sequence[Backend]) -> dict[str, InFlight]:
        return {backend.server: self.in_flight(backend) for backend in backends}


class FakeGateway(GatewayInMemory):
    """`Gateway` on the host: routes outlive it, as its files do."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def start(self, wanted: GatewayConfig, endpoints: int = 0) -> None:
        self._host.program.effect()
        self._host.gateway_runs = True

    def routes(self) -> Routes:
        return dict(self._host.routes)

    def commit(self, routes: Routes) -> None:
        self._host.program.effect()
        if not self._host.gateway_runs:
            raise GatewayError("waited 10 s for HAProxy to come back")
        self._host.routes = dict(routes)
        self._host.program.effect()

    def in_flight(self, backend: Backend) -> InFlight:
        if not self._host.gateway_runs:
            raise GatewayError("HAProxy does not answer")
        return NOTHING_IN_FLIGHT
