"""Threads that start, load, drain and stop servers for the controller's loop.

`conditions` reports what has started, is starting or failed.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from controlplane.control.converge.desired import successor
from controlplane.control.guard.effects import DrainAndStop, Ending, Launch, Load
from controlplane.domain.errors import EngineError, GatewayError, LogOnce, MissingTool, NotNow, is_own_lack
from controlplane.domain.fleet import InFlight, Server, ServerSpec, ServerState
from controlplane.domain.observation import Health
from controlplane.ports import Gateway, GivesWay, Launcher, always
from controlplane.runtime.controller.probes import read_counters
from controlplane.runtime.fleet.execute import Limits, backend
from controlplane.triton import client as triton
from controlplane.triton import own

_LIVE_S = 0.5
"""The longest wait for an answer that needs no model."""
_THREADS = 6
_RETRY_S = 5.0
_DRAIN_EVERY_S = 0.2
_MOST_MEMORY = 8.0
"""How many times its planned memory limit a server may have after others ran out of theirs."""
_REFUSAL_S = 1.0
"""Triton 2.51 checks once a second whether a model's process lives."""

Failed = Callable[[str, str], None]
"""Called with a subject and what went wrong."""


@dataclass(frozen=True, slots=True)
class Condition:
    """The state of a server, as far as the workers know; canaries may refine READY.

    STARTING with a `reason` means that the start was put off, because the engine or the disk fails now.
    """

    health: Health
    reason: str = ""


Endings = Mapping[str, Mapping[str, str]]
"""How servers end, by partition and name."""


@dataclass(frozen=True, slots=True)
class _PutOff:
    """Work for a thread of `pool`, from `due_s` on. `drains`: it waits for a server that ends."""

    due_s: float
    pool: ThreadPoolExecutor
    again: Callable[[], None]
    drains: bool = False


def spec_for(launch: Launch, planned: ServerSpec, device: str) -> ServerSpec:
    """Return the server of a launch by its name: as planned, with another share."""
    spec = successor(planned, launch.server.rpartition("-")[2])
    return replace(spec, device=device, percent=launch.percent)


def memory_limit_mb(
    planned: ServerSpec, running: Iterable[ServerSpec], exhausted_mb: float | None
) -> float | None:
    """Return the next server's limit: twice that of which one ran out, but a leak must meet an end."""
    if planned.memory_limit_mb is None:
        return None
    same = [s for s in running if s.labels.partition == planned.labels.partition]
    present = [s.memory_limit_mb for s in (planned, *same) if s.memory_limit_mb is not None]
    return min(_MOST_MEMORY * planned.memory_limit_mb, max(*present, 2.0 * (exhausted_mb or 0.0)))


@dataclass(slots=True)
class Drain:
    """A server that ends as the guard decided (`how`), when it last answered and its requests in flight then.

    `answers` is how many its models had given by then, `silent_since_s` is when it stopped answering calls,
    `used_s` the time of a core that it had used when it was last silent. Times are monotonic.
    """

    server: Server
    how: DrainAndStop
    gateway: Gateway
    launcher: Launcher
    answered_s: float
    in_flight: int = 0
    answers: int | None = None
    silent_since_s: float | None = None
    used_s: float | None = None

    def may_answer(self, now_s: float, grace_s: float) -> bool:
        """Return whether the server may still answer requests in flight.

        A hung one may not while its process does nothing, which takes `grace_s` to see where nothing counts.
        """
        found: InFlight | None = None
        with contextlib.suppress(GatewayError):
            found = self.gateway.in_flight(backend(self.server))
        if found is not None:
            if found.total < self.in_flight:
                self.answered_s = now_s
            self.in_flight = found.total
        if self.how.ending is Ending.DRAINED:
            if found is not None and (found.streaming + found.sequences or not found.requests):
                return found.total > 0
        elif found is not None and (not found.total or self._does_nothing(now_s, grace_s)):
            return False
        return now_s - self.answered_s <= self.how.patience_s

    def _does_nothing(self, now_s: float, grace_s: float) -> bool:
        """Return whether the process answers no call and uses no time of a core.

        Counters of answers that move give it its time again: a stream ends late, but answers all the while.
        Those of failures show nothing, for they may be their requests' own fault. Where the process's use of
        a core is not counted, its silence counts after `grace_s`.
        """
        reading = read_counters(self.server, self.server.spec.endpoints, _LIVE_S)
        if reading.error is not None and isinstance(reading.error.__cause__, TimeoutError | ConnectionError):
            return self._is_idle(now_s, grace_s)
        self.silent_since_s, self.used_s = None, None
        if reading.counted is not None:
            before = self.answers
            self.answers = sum(m.successes + m.responses for m in reading.counted.values())
            if before is not None and self.answers != before:
                self.answered_s = now_s
        return False

    def _is_idle(self, now_s: float, grace_s: float) -> bool:
        try:
            used_s = self.launcher.usage(self.server).cpu_seconds
        except EngineError:
            used_s = None
        before_s, self.used_s = self.used_s, used_s
        if self.silent_since_s is None:
            self.silent_since_s = now_s
        if used_s is not None and before_s is not None:
            return used_s <= before_s
        return now_s - self.silent_since_s >= grace_s


class Workers:
    """Starts and stops one fleet's servers."""

    def __init__(self, launcher: Launcher, gateway: Gateway, failed: Failed, limits: Limits) -> None:
        self._launcher = launcher
        self._gateway = gateway
        self._failed = failed
        self._limits = limits
        self._starts = ThreadPoolExecutor(_THREADS, thread_name_prefix="start")
        # A redirect may wait for a load, which needs no engine, so it must not queue behind a silent engine.
        self._loads = ThreadPoolExecutor(_THREADS, thread_name_prefix="load")
        # The start of an unserved partition must not queue behind drains.
        self._ends = ThreadPoolExecutor(_THREADS, thread_name_prefix="end")
        self._lock = threading.Lock()
        self._servers: dict[str, Server] = {}
        self._conditions: dict[str, Condition] = {}
        self._given_up: set[str] = set()
        self._ending: dict[str, dict[str, str]] = {}
        self._taken_over: Collection[str] | None = None
        self._put_off: list[_PutOff] = []
        self._said = LogOnce()

    def adopt(self, server: Server, health: Health = Health.READY) -> None:
        """Add a server that runs already."""
        with self._lock:
            self._servers[server.name] = server
            self._conditions[server.name] = Condition(health)

    def resume(self, server: Server, gives_way: GivesWay = always) -> None:
        """Add a server that runs and may not be ready yet; wait for it and test it like a new one."""
        with self._lock:
            self._conditions[server.name] = Condition(Health.STARTING)
        self._starts.submit(self._launch, server.spec, gives_way, server)

    def resume_warm(self, server: Server) -> None:
        """Add a warm shadow that runs, and unload its models, which a killed controller may have left."""
        with self._lock:
            self._servers[server.name] = server
            self._conditions[server.name] = Condition(Health.STARTING)
        self._loads.submit(self._change, server.name, partial(self._unload, server), Health.UNLOADED)

    def server(self, name: str) -> Server | None:
        """Return the server of this name; None while it starts."""
        with self._lock:
            return self._servers.get(name)

    def conditions(self) -> dict[str, Condition]:
        """Return the condition of every server that was added or launched and not stopped."""
        with self._lock:
            return dict(self._conditions)

    def servers(self) -> dict[str, Server]:
        """Return the servers that run, by name."""
        with self._lock:
            return dict(self._servers)

    def ending(self) -> Endings:
        """Return the servers that end, for a next controller."""
        with self._lock:
            return {partition: dict(found) for partition, found in self._ending.items()}

    def launch(self, spec: ServerSpec, gives_way: GivesWay = always) -> None:
        """Start a server and test it; one that reloads is a warm shadow, and its models are unloaded then."""
        with self._lock:
            self._conditions[spec.name] = Condition(Health.STARTING)
        self._starts.submit(self._launch, spec, gives_way, unload=spec.reloads)

    def load(self, load: Load) -> None:
        """Load a warm shadow's models."""
        with self._lock:
            server = self._servers.get(load.server)
            if server is None or self._conditions[load.server].health is not Health.UNLOADED:
                return
            self._conditions[load.server] = Condition(Health.STARTING)
        self._loads.submit(self._change, load.server, partial(self._load, server), Health.READY)

    def stop(self, stop: DrainAndStop) -> None:
        """Drain and stop a server; a starting one is stopped as soon as it has started."""
        with self._lock:
            self._conditions.pop(stop.server, None)
            server = self._servers.pop(stop.server, None)
            if server is None:
                self._given_up.add(stop.server)
                return
            partition = server.spec.labels.partition
            self._ending.setdefault(partition, {})[server.name] = stop.ending.name
        if stop.ending in (Ending.DRAINED, Ending.HUNG):
            answered_s = time.monotonic() - stop.silent_s
            self._ends.submit(self._drain, Drain(server, stop, self._gateway, self._launcher, answered_s))
        else:
            self._ends.submit(self._stop, server, stop.ending)

    def retry(self, now_s: float) -> None:
        """Go on with what was put off and is due: drains, and what the engine or the disk prevented."""
        with self._lock:
            due = [one for one in self._put_off if one.due_s <= now_s]
            self._put_off = [one for one in self._put_off if one.due_s > now_s]
        for one in due:
            one.pool.submit(one.again)

    @property
    def draining(self) -> bool:
        """Whether a server is waited for that has not drained."""
        with self._lock:
            return any(one.drains for one in self._put_off)

    def close(self, *, wait: bool) -> None:
        """Begin nothing more; with `wait`, wait for what is under way."""
        for pool in (self._starts, self._loads, self._ends):
            pool.shutdown(wait=wait, cancel_futures=not wait)

    def hand_over(self, servers: Collection[str]) -> None:
        """Begin nothing more; other workers take `servers`. Stop any other server that is starting."""
        with self._lock:
            self._taken_over = frozenset(servers)
        self.close(wait=False)

    def _wanted(self, name: str) -> bool:
        """Return whether a start is still wanted, here or by the next workers. Needs the lock."""
        if self._taken_over is not None:
            return name in self._taken_over
        return name not in self._given_up

    def _launch(
        self, spec: ServerSpec, gives_way: GivesWay, server: Server | None = None, *, unload: bool = False
    ) -> None:
        """Start a server, or wait for it where it runs; that one ends where it is unwanted by now.

        With `unload`, its models are unloaded then.
        """
        name = spec.name
        with self._lock:
            wanted = self._wanted(name)
        if not wanted:
            if server is not None:
                self._stop(server, Ending.AT_ONCE)
            return
        try:
            server = self._launcher.start(spec, deadline_s=self._limits.start_s, gives_way=gives_way)
            for endpoint in spec.endpoints:
                self._prove(server, endpoint)
            if unload:
                self._unload(server)
        except Exception as error:  # any error ends the start, but for one of the host
            if _is_hosts(error):
                # The server counts as starting until the host can start it.
                with self._lock:
                    if name not in self._given_up:
                        self._conditions[name] = Condition(Health.STARTING, str(error))
                again = partial(self._launch, spec, gives_way, server, unload=unload)
                self._later(name, f"cannot be started now: {error}", self._starts, again)
                return
            if server is not None:
                self._stop(server, Ending.AT_ONCE)
            with self._lock:
                if name not in self._given_up:
                    self._conditions[name] = Condition(Health.GONE, str(error) or repr(error))
            return
        with self._lock:
            wanted = self._wanted(name)
            if wanted:
                self._servers[name] = server
                self._conditions[name] = Condition(Health.UNLOADED if unload else Health.READY)
        if not wanted:
            self._stop(server, Ending.AT_ONCE)

    def _prove(self, server: Server, endpoint: str) -> None:
        discount = partial(self._gateway.discount, server.name)
        own.prove(server, endpoint, discount, deadline_s=self._limits.prove_s)

    def _load(self, server: Server) -> None:
        self._gateway.discount(server.name, None)
        for endpoint in server.spec.endpoints:
            triton.load(server, endpoint, deadline_s=self._limits.start_s)
            self._prove(server, endpoint)

    def _unload(self, server: Server) -> None:
        for endpoint in server.spec.endpoints:
            triton.unload(server, endpoint, deadline_s=self._limits.prove_s)

    def _change(self, name: str, change: Callable[[], None], then: Health) -> None:
        """Load or unload a server's models; `then` is its health, unless that fails."""
        try:
            change()
            found = Condition(then)
        except Exception as error:  # as in a launch
            if _is_hosts(error):
                again = partial(self._change, name, change, then)
                self._later(name, f"cannot be changed now: {error}", self._loads, again)
                return
            found = Condition(Health.GONE, str(error) or repr(error))
        with self._lock:
            if name in self._conditions:
                self._conditions[name] = found

    def _drain(self, drain: Drain) -> None:
        """Stop a server that has drained or cannot answer any more; look at any other one again soon.

        No thread waits for it: a stream may last for hours.
        """
        now, again = time.monotonic(), partial(self._drain, drain)
        try:
            waits = drain.may_answer(now, self._limits.grace_s)
        except Exception as error:  # any error: a server must not be left behind
            problem = f"its open requests cannot be read: {error or repr(error)}"
            self._later(drain.server.name, problem, self._ends, again)
            return
        if waits:
            with self._lock:
                self._put_off.append(_PutOff(now + _DRAIN_EVERY_S, self._ends, again, drains=True))
        else:
            self._stop(drain.server, drain.how.ending)

    def _stop(self, server: Server, ending: Ending) -> None:
        allowed_s = {
            Ending.DRAINED: self._limits.drain_s,
            Ending.HUNG: self._limits.grace_s,
            Ending.REFUSED: _REFUSAL_S,
            Ending.AT_ONCE: 0.0,
        }
        try:
            # What has ended cannot serve, though a route may lead to it for a moment.
            if server.state is ServerState.EXITED or not self._is_routed(server):
                self._launcher.stop(server, drain_s=allowed_s[ending])
        except Exception as error:  # any error: a server must not be left behind
            again = partial(self._stop, server, Ending.AT_ONCE)
            self._later(server.name, f"could not be stopped: {error or repr(error)}", self._ends, again)
            return
        with self._lock:
            partition = server.spec.labels.partition
            self._ending.get(partition, {}).pop(server.name, None)
            if not self._ending.get(partition):
                self._ending.pop(partition, None)

    def _is_routed(self, server: Server) -> bool:
        """Return whether a command has routed to the server since its stop was decided; then it stays."""
        routes = self._gateway.routes().values()
        return any(member.server == server.name for route in routes for member in route.members)

    def _later(self, subject: str, problem: str, pool: ThreadPoolExecutor, again: Callable[[], None]) -> None:
        """Put off work that the engine or the disk prevents now; report the same problem once."""
        with self._lock:
            self._put_off.append(_PutOff(time.monotonic() + _RETRY_S, pool, again))
            new = self._said.is_new(problem, subject)
        if new:
            self._failed(subject, f"{problem}; tried again every {_RETRY_S:g} s")


def _is_hosts(error: Exception) -> bool:
    """Return whether an error is the host's or the controller's own, and no fault of the server."""
    return isinstance(error, (NotNow, MissingTool)) or is_own_lack(error)
