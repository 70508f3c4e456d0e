"""Does what the guard says, off the deciding thread: starts, loads, drains and stops servers.

Everything slow runs in small pools. What was started, under way or failed is told back by `condition`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from controlplane.control.converge.desired import descendant
from controlplane.control.guard.state import DrainAndStop, Ending, Launch, Load
from controlplane.domain.errors import MissingTool, NotNow
from controlplane.domain.fleet import Role, Server, ServerSpec
from controlplane.domain.observation import Health
from controlplane.monitor import inference
from controlplane.ports import Gateway, Launcher
from controlplane.runtime.clock import wait_until
from controlplane.runtime.fleet.execute import Limits, owes_nothing

_THREADS = 6
_RETRY_S = 5.0
_REFUSAL_S = 1.0
"""Triton 2.51 looks once a second whether the process that executes for it lives."""

Failed = Callable[[str, str], None]
"""Called with a subject and what went wrong."""


@dataclass(frozen=True, slots=True)
class Condition:
    """What the crew knows of a server; READY until a canary says otherwise.

    One that is STARTING for a `reason` was put off: the engine or the disk does not let it start now.
    """

    health: Health
    reason: str = ""


def spec_for(launch: Launch, planned: ServerSpec, device: str) -> ServerSpec:
    """The server of a launch: as planned, on another share. The guard's name makes its revision unique."""
    revision = descendant(planned, device, f"{launch.percent:g}", launch.server)
    labels = replace(planned.labels, role=Role.SHADOW, revision=revision)
    return replace(planned, labels=labels, device=device, percent=launch.percent)


class Crew:
    """One fleet's hands. `servers` are those it knows by the guard's names."""

    def __init__(self, launcher: Launcher, gateway: Gateway, failed: Failed, limits: Limits) -> None:
        self._launcher = launcher
        self._gateway = gateway
        self._failed = failed
        self._limits = limits
        self._starts = ThreadPoolExecutor(_THREADS, thread_name_prefix="start")
        # A redirect may wait for a load, which needs no engine: it must not wait for one that is silent.
        self._loads = ThreadPoolExecutor(_THREADS, thread_name_prefix="load")
        # Nor may a partition that nothing serves wait until others have drained.
        self._ends = ThreadPoolExecutor(_THREADS, thread_name_prefix="end")
        self._lock = threading.Lock()
        self._servers: dict[str, Server] = {}
        self._conditions: dict[str, Condition] = {}
        self._given_up: set[str] = set()
        self._taken_over: Collection[str] | None = None
        self._put_off: list[tuple[float, ThreadPoolExecutor, Callable[[], None]]] = []
        self._said: dict[str, str] = {}

    def adopt(self, server: Server, health: Health = Health.READY) -> None:
        """A server that runs already, by its own name."""
        with self._lock:
            self._servers[server.name] = server
            self._conditions[server.name] = Condition(health)

    def resume(self, server: Server) -> None:
        """A server that runs and may not be ready yet: waited for and proved like a new one."""
        with self._lock:
            self._conditions[server.name] = Condition(Health.STARTING)
        self._starts.submit(self._launch, server.name, server.spec, False, server)

    def resume_warm(self, server: Server) -> None:
        """A warm shadow that runs: whoever left it may have been killed before its models were unloaded."""
        with self._lock:
            self._servers[server.name] = server
            self._conditions[server.name] = Condition(Health.STARTING)
        self._loads.submit(self._unload, server)

    def server(self, name: str) -> Server | None:
        """The server behind a name of the guard's; None while it starts."""
        with self._lock:
            return self._servers.get(name)

    def conditions(self) -> dict[str, Condition]:
        """Every name the crew was told of and was not told to stop."""
        with self._lock:
            return dict(self._conditions)

    def servers(self) -> dict[str, Server]:
        """Those of them that run, by the guard's names."""
        with self._lock:
            return dict(self._servers)

    def launch(self, launch: Launch, spec: ServerSpec, *, unload: bool) -> None:
        """Start a server and prove it; `unload`: it stands by warm."""
        with self._lock:
            self._conditions[launch.server] = Condition(Health.STARTING)
        self._starts.submit(self._launch, launch.server, spec, unload)

    def load(self, load: Load) -> None:
        """Load a warm shadow's models."""
        with self._lock:
            server = self._servers.get(load.server)
            if server is None or self._conditions[load.server].health is not Health.UNLOADED:
                return
            self._conditions[load.server] = Condition(Health.STARTING)
        self._loads.submit(self._load, load.server, server)

    def stop(self, stop: DrainAndStop) -> None:
        """Drain and stop a server; one that is still starting goes as soon as it has started."""
        with self._lock:
            self._conditions.pop(stop.server, None)
            server = self._servers.pop(stop.server, None)
            if server is None:
                self._given_up.add(stop.server)
                return
        self._ends.submit(self._stop, server, stop.ending)

    def retry(self, now_s: float) -> None:
        """Try again what was put off, once the engine had time to come back or the disk to be cleared."""
        with self._lock:
            due = [one for one in self._put_off if now_s - one[0] > _RETRY_S]
            self._put_off = [one for one in self._put_off if now_s - one[0] <= _RETRY_S]
        for _, pool, again in due:
            pool.submit(again)

    def close(self, *, wait: bool) -> None:
        """Begin nothing more; `wait`: until what is under way has ended."""
        for pool in (self._starts, self._loads, self._ends):
            pool.shutdown(wait=wait, cancel_futures=not wait)

    def hand_over(self, servers: Collection[str]) -> None:
        """Begin nothing more; another crew sees to `servers`. What starts besides is ended once it has."""
        with self._lock:
            self._taken_over = frozenset(servers)
        self.close(wait=False)

    def _wanted(self, name: str, spec: ServerSpec) -> bool:
        """With the lock held: whether a start is still to become a server of this crew's, or of the next."""
        if self._taken_over is not None:
            return spec.name in self._taken_over
        return name not in self._given_up

    def _launch(self, name: str, spec: ServerSpec, unload: bool, server: Server | None = None) -> None:
        """Start `spec`, or wait for its `server` that runs; that one ends where it is unwanted by now."""
        with self._lock:
            wanted = self._wanted(name, spec)
        if not wanted:
            if server is not None:
                self._stop(server, Ending.AT_ONCE)
            return
        try:
            server = self._launcher.start(spec, deadline_s=self._limits.start_s)
            for endpoint in spec.endpoints:
                inference.prove(server, endpoint, deadline_s=self._limits.prove_s)
            if unload:
                for endpoint in spec.endpoints:
                    inference.unload(server, endpoint, deadline_s=self._limits.prove_s)
        except (NotNow, MissingTool) as error:
            # No failed start: until the host can, it counts as starting.
            with self._lock:
                if name not in self._given_up:
                    self._conditions[name] = Condition(Health.STARTING, str(error))
            again = partial(self._launch, name, spec, unload, server)
            self._later(name, f"cannot be started now: {error}", self._starts, again)
            return
        except Exception as error:  # of any kind: it is not to be taken for a start under way
            if server is not None:
                self._stop(server, Ending.AT_ONCE)
            with self._lock:
                if name not in self._given_up:
                    self._conditions[name] = Condition(Health.GONE, str(error) or repr(error))
            return
        with self._lock:
            wanted = self._wanted(name, spec)
            if wanted:
                self._servers[name] = server
                self._conditions[name] = Condition(Health.UNLOADED if unload else Health.READY)
        if not wanted:
            self._stop(server, Ending.AT_ONCE)

    def _load(self, name: str, server: Server) -> None:
        try:
            for endpoint in server.spec.endpoints:
                inference.load(server, endpoint, deadline_s=self._limits.start_s)
                inference.prove(server, endpoint, deadline_s=self._limits.prove_s)
            found = Condition(Health.READY)
        except Exception as error:  # as in a launch
            found = Condition(Health.GONE, str(error) or repr(error))
        with self._lock:
            if name in self._conditions:
                self._conditions[name] = found

    def _unload(self, server: Server) -> None:
        try:
            for endpoint in server.spec.endpoints:
                inference.unload(server, endpoint, deadline_s=self._limits.prove_s)
            found = Condition(Health.UNLOADED)
        except Exception as error:  # as in a launch
            found = Condition(Health.GONE, str(error) or repr(error))
        with self._lock:
            if server.name in self._conditions:
                self._conditions[server.name] = found

    def _stop(self, server: Server, ending: Ending) -> None:
        allowed_s = {
            Ending.DRAINED: self._limits.drain_s,
            Ending.GRACE: self._limits.grace_s,
            Ending.REFUSED: _REFUSAL_S,
            Ending.AT_ONCE: 0.0,
        }
        try:
            if ending is Ending.DRAINED:
                wait_until(
                    lambda: owes_nothing(self._gateway, server),
                    deadline_s=self._limits.drain_s,
                    interval_s=0.2,
                )
            if not self._is_routed(server):
                self._launcher.stop(server, drain_s=allowed_s[ending])
        except Exception as error:  # of any kind: nothing is to be left behind
            again = partial(self._stop, server, Ending.AT_ONCE)
            self._later(server.name, f"could not be stopped: {error or repr(error)}", self._ends, again)

    def _is_routed(self, server: Server) -> bool:
        """Whether a command has led a route to this name again since its end was decided: it stays then."""
        routes = self._gateway.routes().values()
        return any(member.server == server.name for route in routes for member in route.members)

    def _later(self, subject: str, problem: str, pool: ThreadPoolExecutor, again: Callable[[], None]) -> None:
        """Put off what the engine or the disk does not let be done now; said once."""
        with self._lock:
            self._put_off.append((time.monotonic(), pool, again))
            known = self._said.get(subject) == problem
            self._said[subject] = problem
        if not known:
            self._failed(subject, f"{problem}; tried again every {_RETRY_S:g} s")
