"""Execution of converge's actions with a launcher and a gateway, with a journal.

Before the routes move, a failure stops the servers that this run started. After that only drains and stops
are left, which the next run finishes from the state that it finds.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from controlplane.control.converge.actions import (
    Action,
    Actual,
    Commit,
    Drain,
    Prove,
    Remove,
    SetBatches,
    Start,
    Stop,
    Unload,
)
from controlplane.control.converge.desired import NamedRoute
from controlplane.domain.errors import EngineError, GatewayError, TrisectError
from controlplane.domain.fleet import Backend, Batches, Route, Routes, Server, ServerState
from controlplane.files.waiting import wait_until
from controlplane.ports import Gateway, Launcher

if TYPE_CHECKING:
    from controlplane.runtime.fleet.fleet import Fleet


@dataclass(frozen=True, slots=True)
class Limits:
    """The longest waits, in seconds, and the number of parallel starts.

    `end_s` is for a drained server, whose end an idle connection would delay. `grace_s` is for a server that
    hangs: it may recover when it is stopped.
    """

    start_s: float = 90.0
    prove_s: float = 30.0
    drain_s: float = 30.0
    end_s: float = 3.0
    grace_s: float = 2.0
    parallel_starts: int = 4


Say = Callable[[str], None]


def backend(server: Server) -> Backend:
    """Return the server as the target of a route."""
    return Backend(server.name, server.host, server.http_port, server.grpc_port, server.metrics_port)


def named(routes: Routes) -> dict[str, NamedRoute]:
    """Return the routes by their servers' names."""
    return {
        endpoint: NamedRoute(
            tuple(m.server for m in route.members), route.backup.server if route.backup else None
        )
        for endpoint, route in routes.items()
    }


def observe(launcher: Launcher, gateway: Gateway, fleet: str) -> Actual:
    """Return what runs now. A route to a server that is gone, or to an earlier start, does not count."""
    servers = launcher.servers(fleet)
    alive = {s.name: backend(s) for s in servers if s.state is ServerState.RUNNING}
    present = dict(gateway.routes())
    routes = {e: r for e, r in present.items() if all(alive.get(m.server) == m for m in r.members)}
    routes = {
        e: r if r.backup is None or alive.get(r.backup.server) == r.backup else Route(r.members)
        for e, r in routes.items()
    }
    return Actual(servers, named(routes), stale=routes != present)


@dataclass(slots=True)
class Executor:
    """One run over one list of actions."""

    fleet: Fleet
    controlled: bool = False
    """Whether a controller ends what has not drained in time, as `runtime/controller/workers` says."""
    _limits: Limits = field(init=False)
    _servers: dict[str, Server] = field(default_factory=dict)
    _routed: Collection[str] = ()
    _started: list[Server] = field(default_factory=list)
    _drained: set[str] = field(default_factory=set)
    _left: set[str] = field(default_factory=set)

    def run(self, actions: Sequence[Action], actual: Actual) -> None:
        """Run the actions in order; adjacent starts in parallel, and drains and stops likewise.

        Raises EngineError or GatewayError, after it stopped the servers of this run that have no route.
        """
        self._limits = self.fleet.waits
        self._servers = {s.name: s for s in actual.servers}
        self._routed = actual.routes.keys()
        committed = False
        try:
            for kind, group in groupby(actions, key=type):
                if kind is Start:
                    self._start([a for a in group if isinstance(a, Start)])
                elif kind is Drain:
                    self._drain([a.server for a in group if isinstance(a, Drain)])
                elif kind is Stop:
                    self._stop([a.server for a in group if isinstance(a, Stop)])
                else:
                    for action in group:
                        self._run(action)
                        committed = committed or isinstance(action, Commit)
        except TrisectError as error:
            self.fleet.journal("failed", reason=str(error))
            if committed:
                raise
            for server in self._started:
                try:
                    self.fleet.launcher.stop(server, drain_s=0.0)
                except EngineError as left:
                    self.fleet.say(f"warning: could not stop {server.name}: {left}")
            raise

    def _start(self, actions: list[Start]) -> None:
        before = {name for name, s in self._servers.items() if s.state is ServerState.RUNNING}
        for action in actions:
            self.fleet.journal("start", server=action.spec.name)
            spec = action.spec
            self.fleet.say(
                f"start {spec.labels.partition} ({spec.labels.role}) {spec.percent:g} % of {spec.device}"
            )
        failures: list[TrisectError] = []
        with ThreadPoolExecutor(self._limits.parallel_starts) as pool, _no_more_where_interrupted(pool):
            waiting = [
                pool.submit(
                    self.fleet.launcher.start,
                    a.spec,
                    deadline_s=self._limits.start_s,
                    gives_way=partial(self._are_served, a.spec.endpoints),
                )
                for a in actions
            ]
            for future in waiting:
                try:
                    server = future.result()
                except TrisectError as error:
                    failures.append(error)
                    continue
                self._servers[server.name] = server
                if server.name not in before:
                    self._started.append(server)
                    self.fleet.gateway.discount(server.name, None)
                self.fleet.journal("started", server=server.name, id=server.id)
        if failures:
            raise failures[0]

    def _are_served(self, endpoints: Iterable[str]) -> bool:
        return all(endpoint in self._routed for endpoint in endpoints)

    def _stop(self, names: list[str]) -> None:
        names = [name for name in names if name not in self._left]
        for name in names:
            self.fleet.journal("stop", server=name)
            self.fleet.say(f"stop {name}")
        with ThreadPoolExecutor(max(1, len(names))) as pool:
            stopping = [
                pool.submit(
                    self.fleet.launcher.stop,
                    self._servers[name],
                    drain_s=self._limits.end_s if name in self._drained else self._limits.drain_s,
                )
                for name in names
            ]
            for future in stopping:
                future.result()

    def _run(self, action: Action) -> None:
        from controlplane.triton import client, own  # which reading commands do not need

        match action:
            case Remove(name):
                self.fleet.journal("remove", server=name)
                self.fleet.launcher.stop(self._servers[name], drain_s=0.0)
            case Prove(name, endpoints):
                discount = partial(self.fleet.gateway.discount, name)
                for endpoint in endpoints:
                    own.prove(self._servers[name], endpoint, discount, deadline_s=self._limits.prove_s)
            case Unload(name, endpoints):
                for endpoint in endpoints:
                    client.unload(self._servers[name], endpoint, deadline_s=self._limits.prove_s)
            case Commit(routes):
                self.fleet.journal("commit", routes={e: list(r.members) for e, r in routes.items()})
                self.fleet.say(f"route {', '.join(sorted(routes)) or 'nothing'}")
                self.fleet.gateway.commit(self._routes(routes))
            case SetBatches(name, batches):
                server = self._servers[name]
                self.fleet.journal("batches", server=name, batches=dict(batches))
                change = f"{server.spec.labels.role}: {_change(server, batches)}"
                self.fleet.say(f"{server.spec.labels.partition}, {change}")
                try:
                    self.fleet.launcher.set_batches(server, batches)
                except EngineError as error:  # the routes lead to it already, and it serves
                    self.fleet.say(f"warning: {name}: {error}: it stays until the server is replaced")
                else:
                    self.fleet.note("info", "batch", server.spec.labels.partition, change)
            case Start() | Drain() | Stop():
                raise AssertionError("starts, drains and stops run in parallel, not here")

    def _routes(self, routes: Mapping[str, NamedRoute]) -> Routes:
        return {
            endpoint: Route(
                tuple(backend(self._servers[m]) for m in route.members),
                None if route.backup is None else backend(self._servers[route.backup]),
            )
            for endpoint, route in routes.items()
        }

    def _drain(self, names: list[str]) -> None:
        """Wait for all servers at once, within the time of one."""
        for name in names:
            self.fleet.journal("drain", server=name)
        deadline = time.monotonic() + self._limits.drain_s

        def has_drained(server: Server) -> bool:
            with contextlib.suppress(GatewayError):  # while it does not answer, nothing is known
                return self.fleet.gateway.in_flight(backend(server)).total == 0
            return False

        for name in names:
            drained = partial(has_drained, self._servers[name])
            if wait_until(drained, deadline_s=deadline - time.monotonic()):
                self._drained.add(name)
                continue
            open_yet = f"{name} still has requests in flight"
            if self.controlled:
                self._left.add(name)
                self.fleet.say(f"{open_yet}: the controller ends it when it has drained")
            else:
                self.fleet.say(f"warning: {open_yet} after {self._limits.drain_s:g} s")


def _change(server: Server, batches: Batches) -> str:
    before = dict(server.spec.batches)
    return ", ".join(f"batch of {m} {before.get(m)} -> {b}" for m, b in batches if b != before.get(m))


def commands(actions: Iterable[Action], launcher: Launcher) -> list[str]:
    """Return the command of each start, for `--dry-run`."""
    return [launcher.command(action.spec) for action in actions if isinstance(action, Start)]


def describe(actions: Iterable[Action]) -> list[str]:
    """Return the actions as lines, for `--dry-run`."""
    lines = []
    for action in actions:
        match action:
            case Start(spec):
                share = f"{spec.percent:g} % of {spec.device}"
                lines.append(f"start   {spec.name}  {share}  serving {', '.join(spec.endpoints)}")
            case Prove(name, endpoints) | Unload(name, endpoints):
                verb = "prove" if isinstance(action, Prove) else "unload"
                lines.append(f"{verb:7} {name}  {', '.join(endpoints)}")
            case Commit(routes):
                lines.append(f"route   {', '.join(sorted(routes)) or 'nothing'}")
            case SetBatches(name, batches):
                lines.append(f"batch   {name}  {', '.join(f'{model} {batch}' for model, batch in batches)}")
            case Remove(name) | Drain(name) | Stop(name):
                lines.append(f"{type(action).__name__.lower():7} {name}")
    return lines


@contextlib.contextmanager
def _no_more_where_interrupted(pool: ThreadPoolExecutor) -> Iterator[None]:
    """Start nothing of what waits where Ctrl-C comes: the pool's own end waits for all that was submitted."""
    try:
        yield
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
