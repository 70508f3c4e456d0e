"""The life of a server under any launcher: started or adopted, awaited, resized, watched.

A launcher is a `Lifecycle` (of this host: `host_lifecycle`) that adds what its engine does: the abstract
methods, in the order in which a start calls them. The labels are on the servers, so the engine is the only
source of what runs: the program that started a server may end, and the next one finds it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from controlplane.domain.device import DeviceReading, HeldDevice
from controlplane.domain.errors import EngineError, InputError, LaunchTimeout
from controlplane.domain.fleet import Batches, Server, ServerSpec, ServerState, ShareUsage
from controlplane.ports import GivesWay, Launcher, Watch, always
from launchers.cpu_quota.mechanism import Weight
from launchers.gpu import gpus, mps
from launchers.patience import Patience
from launchers.triton import batches, labels, program, readiness
from launchers.watch import LauncherWatch

_ATTEMPTS = 5
"""Tries of a start that fails by chance."""

Place = TypeVar("Place")


@dataclass(frozen=True, slots=True)
class StartState:
    """How far a start is: the server once it is `ready`, or why it `ended` (empty: only its log says it).

    `waits_for` is the reason of a server that is neither, as far as its engine gives one.
    """

    ready: Server | None = None
    ended: str | None = None
    waits_for: str = ""


class Lifecycle(Launcher, Generic[Place]):
    """The common part of every launcher. Logs go to `state`/<fleet>/logs."""

    _poll_s = 0.1

    def __init__(self, state: Path) -> None:
        self._state = state
        self._starts: dict[str, threading.Lock] = {}
        self._mps = mps.MpsDaemons()

    def start(self, spec: ServerSpec, *, deadline_s: float, gives_way: GivesWay = always) -> Server:
        """Start one Triton and wait until it is ready; where it already runs, wait for that one.

        A start that makes progress may take longer than `deadline_s` (`Patience`). Raises InputError for a
        device that there is not, or a name that runs with another spec.
        """
        # `setdefault` is one step, so that starts of one name in several threads wait for each other.
        with self._starts.setdefault(spec.name, threading.Lock()), self._holding(spec):
            for _ in range(_ATTEMPTS):
                adopted = self._adopted(spec, Patience(deadline_s, gives_way))
                if adopted is not None:
                    return adopted
                started = self._started(spec, self._place(spec, start=True), Patience(deadline_s, gives_way))
                if started is not None:
                    return started
            problem = f"{spec.name}: {_ATTEMPTS} times Triton aborted in a race of its own; try again"
            raise EngineError(problem)

    def command(self, spec: ServerSpec) -> str:
        """Return what is equivalent to a start, one option a line. Starts and changes nothing."""
        key = program.KEY_PLACEHOLDER if spec.reloads else None
        server = replace(self._server(spec), reload_key=key)
        return self._shown(server, self._place(spec, start=False))

    def resize(self, server: Server, percent: float) -> None:
        """Change the share of a running server. Raises InputError where it is fixed, EngineError."""
        if self._on_gpu(server.spec):
            raise InputError(gpus.FIXED, field="percent")
        self._change_share(server, percent)

    def log(self, server: Server) -> str:
        """Return what a server has logged."""
        return readiness.said(self._log(server))

    def watch(self, fleet: str) -> Watch:
        """Listen for ends of the fleet's servers, and for faults of their GPUs."""
        return LauncherWatch(self._watchers(fleet), self._mps)

    def batch_library(self) -> str | None:
        """Return None: batches are fixed."""
        return None

    def set_batches(self, server: Server, batches: Batches) -> None:
        """Raise EngineError: batches are fixed."""
        raise EngineError(f"the batches of {server.name} are fixed while it runs")

    def inventory(self) -> tuple[HeldDevice, ...] | None:
        """Return None: its devices are this host's."""
        return None

    def reading(self, device: str) -> DeviceReading:
        """Return NVML's readings of a GPU."""
        return gpus.reading(device)

    def _holding(self, spec: ServerSpec) -> AbstractContextManager[None]:
        """Keep what a start needs from being swept by other programs until it is over."""
        return contextlib.nullcontext()

    @abstractmethod
    def _find(self, spec: ServerSpec) -> Server | None:
        """Return the server of that name that runs or starts, without a host while it cannot be reached."""

    @abstractmethod
    def _clear(self, spec: ServerSpec, deadline: float) -> None:
        """Remove what ended servers of that name left, once one that is ending has ended."""

    @abstractmethod
    def _place(self, spec: ServerSpec, *, start: bool) -> Place:
        """Return where a server will run; with `start`, prepare it. Raises InputError, EngineError."""

    @abstractmethod
    def _create(self, server: Server, place: Place) -> Server | None:
        """Create a server and return it with its id; None where only chance was against it."""

    @abstractmethod
    def _start_state(self, server: Server) -> StartState:
        """Return how far the start of a created server is."""

    def _weigh(self, server: Server, weight: Weight) -> None:
        """Change a server's weight against the others of its core, where it has one."""

    def _confirm(self, server: Server) -> None:
        """Give a server that is ready its full weight."""
        self._weigh(server, Weight.FULL)

    def _check_share(self, server: Server) -> None:
        """Raise EngineError where a server that is ready has not its share of a GPU."""

    @abstractmethod
    def _log(self, server: Server) -> str:
        """Return what a server has logged; empty where nothing can be read."""

    def _discard(self, server: Server) -> None:
        """Remove a server whose start failed; without an id, what was made before it failed."""
        self._clear(server.spec, time.monotonic())

    @abstractmethod
    def _shown(self, server: Server, place: Place) -> str:
        """Return the command, or the object, that creates a server."""

    @abstractmethod
    def _change_share(self, server: Server, percent: float) -> None:
        """Change the share of a server that does not run on a GPU."""

    @abstractmethod
    def _watchers(self, fleet: str) -> Sequence[Watch]:
        """Return the sources of events of the fleet's servers."""

    def _host(self, spec: ServerSpec) -> str:
        """Return where a server that is about to start will listen; empty where only its engine will say."""
        return ""

    def _starting(self) -> frozenset[str]:
        """Return the names of the servers that threads of this program start."""
        return frozenset(name for name, lock in [*self._starts.items()] if lock.locked())

    def _on_gpu(self, spec: ServerSpec) -> bool:
        return gpus.is_gpu(spec.device)

    def _server(self, spec: ServerSpec) -> Server:
        """Return a server that is about to start, with a key of its own where it `reloads`."""
        return Server(
            "",
            spec,
            ServerState.RUNNING,
            self._host(spec),
            *program.PORTS,
            enforced_by=mps.MECHANISM if self._on_gpu(spec) else self.enforcement(),
            reload_key=program.new_reload_key(spec),
        )

    def _log_path(self, spec: ServerSpec) -> Path:
        return self._state / spec.labels.fleet / "logs" / f"{labels.folder_name(spec.name)}.log"

    def _adopted(self, spec: ServerSpec, patience: Patience) -> Server | None:
        """Return the server that runs already, once it is ready; None, with nothing left, without one.

        One whose sockets are gone, with the state folder, can never be reached again: it is removed.
        """
        while (running := self._find(spec)) is not None:
            for field, (wanted, has) in labels.spec_difference(spec, running.spec).items():
                problem = f"{spec.name} already runs with {has!r}, not {wanted!r}: stop it first"
                raise InputError(problem, field=field)
            if running.host and readiness.is_ready(running):
                try:
                    self._check_share(running)
                except EngineError:
                    self._discard(running)
                    raise
                self._confirm(running)
                return running
            if readiness.is_lost(running):
                self._discard(running)
                continue
            if late := self._late(running, patience):
                self._discard(running)
                raise LaunchTimeout(f"{spec.name} ran already and was not ready {late}: it is removed")
            time.sleep(self._poll_s)
        self._clear(spec, time.monotonic() + patience.limit_s)
        return None

    def _started(self, spec: ServerSpec, place: Place, patience: Patience) -> Server | None:
        """Start a server and return it once it is ready; None, with nothing left, where chance failed it."""
        server, ready = self._server(spec), None
        try:
            created = self._create(server, place)
            if created is not None:
                server = created
                awaited = self._awaited(server, patience)
                if awaited is not None:
                    self._confirm(awaited)
                ready = awaited
        finally:
            if ready is None:
                self._discard(server)
        return ready

    def _awaited(self, server: Server, patience: Patience) -> Server | None:
        while True:
            state = self._start_state(server)
            if state.ready is not None:
                self._check_share(state.ready)
                return state.ready
            if state.ended is not None:
                log = self._log(server)
                # Another program's sweep may have removed their folder before Triton used it.
                if readiness.failed_by_chance(log) or readiness.is_lost(server):
                    return None
                failure = self._failure(server, "ended before it was ready", state.ended, log)
                if readiness.failed_on_library(log):
                    raise batches.without_library(failure)
                raise EngineError(failure)
            if late := self._late(server, patience):
                log = self._log(server)
                raise LaunchTimeout(self._failure(server, f"was not ready {late}", state.waits_for, log))
            time.sleep(self._poll_s)

    def _late(self, server: Server, patience: Patience) -> str:
        """Return after how long the start of a server has failed, in words; empty while it may go on."""
        weight = patience.weight
        if patience.wants_a_look():
            usage = ShareUsage(None, None, None)
            with contextlib.suppress(OSError, EngineError):  # it ended just now: its log says why
                usage = self.usage(server)
            weight = patience.look(len(readiness.said(self._log(server))), usage, server.spec.percent)
        if not patience.gives_way():
            weight = Weight.FULL
        if weight is not patience.weight:
            with contextlib.suppress(EngineError):  # as above
                self._weigh(server, weight)
                patience.weight = weight
        return patience.over()

    def _failure(self, server: Server, problem: str, reason: str, log: str) -> str:
        """Return the message of a failed start, and keep its log, which an engine removes with the server."""
        if reason and not log:
            return f"{server.name} {problem}: {reason}"
        kept = self._log_path(server.spec)
        if server.log_path is None:
            with contextlib.suppress(OSError):
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(log)
        why = "; ".join(readiness.reasons(log)) or readiness.SILENT
        return f"{server.name} {problem}{f' ({reason})' if reason else ''}: {why} (log: {kept})"
