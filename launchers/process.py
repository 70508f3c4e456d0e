"""Runs each partition's Triton as a plain process of this host.

The labels are in each process's environment, so /proc alone tells what runs. Every process with a server's
label belongs to it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from controlplane.domain.errors import DISK_FULL, EngineError, InputError, NotNow
from controlplane.domain.fleet import QuotaUse, Server, ServerSpec, ServerState, ShareUsage
from controlplane.ports import Capability
from launchers.cpu_quota import CHAIN, Group, Mechanism, first_that_holds
from launchers.cpu_quota.counters import QuotaCounters
from launchers.cpu_quota.mechanism import Weight, pinned
from launchers.gpu import checks, mps
from launchers.host import process_table, server_sockets, shared_memory
from launchers.host.process_table import Member, ServerProcess
from launchers.host.process_watcher import ProcessWatcher
from launchers.host_lifecycle import HostLifecycle, HostPlace
from launchers.lifecycle import StartState
from launchers.triton import batches, labels, program, readiness
from launchers.triton.readiness import await_read

_KEPT_LOGS = 100
_TERM = "another program sent it SIGTERM"

_PASSED_ON = ("HOME", "USER", "LANG", "TZ", "TMPDIR", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")


class ProcessLauncher(HostLifecycle):
    """`controlplane.ports.Launcher` with plain processes: a server's id is its Triton's pid."""

    name = "process"
    _poll_s = 0.03

    def __init__(self, state: Path, mechanisms: Sequence[Mechanism] = CHAIN) -> None:
        super().__init__(state)
        self._mechanisms = {m.name: m for m in mechanisms}
        self._lock = threading.Lock()
        self._counters = QuotaCounters()
        self._stubs: dict[str, tuple[ServerProcess, ...]] = {}

    def enforcement(self) -> str | None:
        """Return the first mechanism that passes its trial."""
        mechanism = self._mechanism()
        return mechanism.name if mechanism else None

    def capabilities(self) -> tuple[Capability, ...]:
        """Return Triton, every mechanism that enforces shares, each tried, and the GPUs."""
        found = [_triton()]
        for mechanism in self._mechanisms.values():
            obstacle = mechanism.obstacle()
            found.append(Capability(f"quota: {mechanism.name}", obstacle is None, obstacle or "tried, holds"))
        return (*found, _memory(), batches.capability(), *checks.capabilities(self._mps))

    def servers(self, fleet: str) -> tuple[Server, ...]:
        """Return the fleet's servers; one whose Triton is gone while its models run counts as exited."""
        found: dict[str, Server] = {}
        members = process_table.members(fleet=fleet)
        # For the watcher.
        processes = process_table.server_processes({m.pid: m.name for m in members if m.leader})
        self._stubs[fleet] = tuple(p for p in processes if p.pid != p.triton)
        for member in members:
            known = found.get(member.name)
            if not member.starter and (known is None or known.state is ServerState.EXITED):
                found[member.name] = _server(member)
        return self._with_shares(found[name] for name in sorted(found))

    def servers_of_host(self) -> tuple[Server, ...]:
        """Return this user's servers whose Triton runs, of all fleets."""
        return tuple(_server(member) for member in process_table.members() if member.leader)

    def stop(self, server: Server, *, drain_s: float) -> None:
        """Have Triton finish its requests and end, then kill and remove all that the server owned.

        Triton waits for idle connections too: close those first, or the whole of `drain_s` passes. Raises
        EngineError where a process does not even end by SIGKILL.
        """
        deadline = time.monotonic() + drain_s
        members = process_table.members_of(server)
        stopped = any(process_table.is_stopped(member.pid) for member in members)
        for member in members:
            process_table.send(member, process_table.CONTINUE)
        for leader in (m for m in members if m.leader):
            if stopped and drain_s > 0:
                await_read(server, drain_s / 4)
            process_table.send(leader, process_table.END)
            process_table.wait_gone(leader, deadline - time.monotonic())
        self._kill(server.spec, partial(process_table.members_of, server))
        if not process_table.members(name=server.name):  # of a later server of this name
            self._clean(server.spec)

    def usage(self, server: Server) -> ShareUsage:
        """Return the counters of the server's mechanism; only time and memory without one."""
        pids = self._processes(server)
        mechanism = self._mechanisms.get(server.enforced_by or "")
        if mechanism is None:
            counted = ShareUsage(None, None, process_table.cpu_seconds(pids))
        else:
            counted = mechanism.usage(Group.of(server.spec), pids)
        if self._on_gpu(server.spec):
            return self._with_gpu_memory(counted, server)
        return replace(counted, memory_mb=process_table.memory_mb(pids))

    def quota_use(self, server: Server) -> QuotaUse | None:
        """Return the counters of the server's group."""
        return self._counters.read(int(server.id)) if server.enforced_by in self._mechanisms else None

    def sweep(self, fleet: str) -> tuple[str, ...]:
        """End models whose Triton is gone; remove groups and shared memory without a server."""
        removed = []
        for server in self.servers(fleet):
            if server.state is ServerState.EXITED:
                removed += [f"processes of {server.name}", *self._remove(server.spec)]
        groups = [(m, group) for m in self._mechanisms.values() for group in m.groups(fleet)]
        alive = self._alive(fleet)
        for mechanism, group in groups:
            # Asked again after the group was seen: its server may have started meanwhile.
            if group.server not in alive and group.server not in self._alive(fleet):
                removed += _leave(mechanism, group)
        begun = self._begun(fleet)
        return (*removed, *self._swept(fleet, begun, self._alive(fleet)))

    def _find(self, spec: ServerSpec) -> Server | None:
        members = process_table.members(name=spec.name)
        return next((_server(member) for member in members if member.leader), None)

    def _clear(self, spec: ServerSpec, deadline: float) -> None:
        self._remove(spec)

    def _user(self, client: mps.MpsClient) -> int:
        return os.getuid()

    def _processes(self, server: Server) -> tuple[int, ...]:
        return tuple(member.pid for member in process_table.members(name=server.name))

    def _server(self, spec: ServerSpec) -> Server:
        return replace(super()._server(spec), log_path=str(self._log_path(spec)))

    def _create(self, server: Server, place: HostPlace) -> Server:
        spec, home, log = server.spec, program.find_home(), self._log_path(server.spec)
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            prune(log.parent)
            place = self._with_files(spec, place)
            if (sockets := server_sockets.folder_of(server)) is not None:
                server_sockets.close(sockets)
            mechanism = None if place.gpu else self._mechanism()
            prefix = mechanism.enter(Group.of(spec), spec.percent) if mechanism else []
            # On a GPU, MPS needs the host's shared memory; a client's own regions are there too.
            apart = () if place.gpu or spec.fleet_wide_calls else shared_memory.own()
            command = program.command_line(server, home, gpu=place.gpu is not None)
            line = [*prefix, *apart, *process_table.BLOCK_TERM, *command]
            pid = _detach(line, _environment(server, home, place), log, place.core)
        except (OSError, subprocess.SubprocessError) as error:
            kind = NotNow if isinstance(error, OSError) and error.errno in DISK_FULL else EngineError
            raise kind(f"{spec.name} could not be started: {error}") from error
        return replace(server, id=str(pid))

    def _start_state(self, server: Server) -> StartState:
        pid = int(server.id)
        try:
            member = process_table.find(pid)
        except process_table.Denied:
            return StartState()  # it makes its namespace, for which it has other rights
        if member is None:
            return StartState(ended="")
        if member.leader and readiness.is_ready(server):
            return StartState(self._find(server.spec) or server)
        return StartState()

    def _weigh(self, server: Server, weight: Weight) -> None:
        mechanism = self._mechanisms.get(server.enforced_by or "")
        if mechanism is not None:
            try:
                mechanism.weigh(Group.of(server.spec), weight)
            except OSError as error:
                raise EngineError(f"the weight of {server.name} cannot be changed: {error}") from error

    def _log(self, server: Server) -> str:
        try:
            return self._log_path(server.spec).read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def _shown(self, server: Server, place: HostPlace) -> str:
        home = program.find_home()
        pinned_to = ["taskset", "--cpu-list", str(place.core)] if place.core is not None else []
        variables = (f"{key}={value}" for key, value in _variables(server, home, place).items())
        command = program.command_line(server, home, gpu=place.gpu is not None)
        words = ["env", *variables, *pinned_to, *command]
        return program.SHELL_BREAK.join(map(shlex.quote, words))

    def _change_share(self, server: Server, percent: float) -> None:
        mechanism = self._mechanisms.get(server.enforced_by or "")
        if mechanism is None:
            raise InputError(f"nothing holds {server.name} to a share", field="percent")
        try:
            mechanism.resize(Group.of(server.spec), percent)
        except OSError as error:
            raise EngineError(f"the share of {server.name} cannot be changed: {error}") from error

    def _watchers(self, fleet: str) -> tuple[ProcessWatcher]:
        """Watch Tritons by their pids; a model's process from the first `servers` that lists it."""
        return (ProcessWatcher(lambda: self._stubs.get(fleet, ()), lambda server: int(server.id or -1)),)

    def _alive(self, fleet: str) -> set[str]:
        """Return the digests of the servers that run or start."""
        names = {member.name for member in process_table.members(fleet=fleet)}
        return {labels.digest(name) for name in names | self._starting()}

    def _mechanism(self) -> Mechanism | None:
        with self._lock:  # trials side by side would meet
            return self._chosen

    @functools.cached_property
    def _chosen(self) -> Mechanism | None:
        return first_that_holds(tuple(self._mechanisms.values()))

    def _remove(self, spec: ServerSpec) -> list[str]:
        """End every process of that name and remove its groups and memory; return a line for each."""
        self._kill(spec, partial(process_table.members, name=spec.name))
        return self._clean(spec)

    def _kill(self, spec: ServerSpec, present: Callable[[], tuple[Member, ...]]) -> None:
        if self._on_gpu(spec):
            self._mps.release(spec.device, [member.pid for member in present()])
        left = process_table.kill_all(present)
        if left:
            raise EngineError(f"{spec.name}: processes {left} do not end, not even by SIGKILL")

    def _clean(self, spec: ServerSpec) -> list[str]:
        removed = [what for m in self._mechanisms.values() for what in _leave(m, Group.of(spec))]
        return removed + super()._clean(spec)


def prune(folder: Path) -> None:
    """Remove all but the newest logs. Starts side by side do so too: what is gone is no failure."""
    logs: list[tuple[float, Path]] = []
    for log in folder.glob("*.log*"):
        with contextlib.suppress(FileNotFoundError):
            logs.append((log.stat().st_mtime, log))
    for _, old in sorted(logs, reverse=True)[_KEPT_LOGS:]:
        old.unlink(missing_ok=True)


def _triton() -> Capability:
    try:
        home = program.find_home()
    except EngineError as error:
        return Capability("triton", False, "not found", str(error))
    return Capability("triton", True, str(home.path))


def _memory() -> Capability:
    """Whether other users of the host are kept out of the servers' shared memory."""
    if shared_memory.own():
        return Capability("shared memory of servers", True, "each has its own /dev/shm")
    return Capability(
        "shared memory of servers",
        False,
        "other users of this host can read what clients send to Python models",
        "let users make namespaces (user.max_user_namespaces, AppArmor), or run as root or in containers",
    )


def _detach(command: list[str], env: Mapping[str, str], log: Path, core: int | None) -> int:
    """Start a command in a new session, on `core` unless None, with its output in `log`.

    Returns its pid. Raises OSError.
    """
    where = contextlib.nullcontext() if core is None else pinned(core)
    log.unlink(missing_ok=True)
    # To its end, since the gateway's supervisor may shorten it: a Triton warns of each connection.
    with log.open("ab") as out, where:
        shell = subprocess.run(
            [*process_table.DETACHED, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=out,
            env=env,
            start_new_session=True,
            timeout=30,
            check=True,
            umask=program.UMASK,
        )
    return int(shell.stdout)


def _environment(server: Server, home: program.TritonHome, place: HostPlace) -> dict[str, str]:
    """Return a server's environment. It has little of ours, so that no secret gets there by accident."""
    passed_on = {key: os.environ[key] for key in _PASSED_ON if key in os.environ}
    # The Python backend takes the first python of PATH and ignores PYTHONPATH.
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    return {**passed_on, "PATH": path, **_variables(server, home, place), **labels.environment_of(server)}


def _variables(server: Server, home: program.TritonHome, place: HostPlace) -> dict[str, str]:
    """Return the variables by which a server is where it is, and the user's own."""
    # Triton's libraries, then the caller's, where a driver may be.
    libraries = ":".join(filter(None, (str(home.libraries), os.environ.get("LD_LIBRARY_PATH"))))
    device = {"CUDA_VISIBLE_DEVICES": "", **program.MODEL_THREADS}
    if place.gpu is not None:
        device = {"CUDA_VISIBLE_DEVICES": place.gpu.uuid, **place.gpu.environment}
    limits = batches.environment(server.spec.batches, place.batches)
    return {"LD_LIBRARY_PATH": libraries, **device, **limits, **dict(server.spec.options.env)}


def _server(member: Member) -> Server:
    state = ServerState.RUNNING if member.leader else ServerState.EXITED
    found = labels.server_of(member.text, id=str(member.pid), state=state)
    return replace(found, end=_TERM) if process_table.has_pending_term(member.pid) else found


def _leave(mechanism: Mechanism, group: Group) -> list[str]:
    """Remove a server's group; return a line if there was one. Raises EngineError."""
    try:
        return [f"{mechanism.name} {group.folder}"] if mechanism.leave(group) else []
    except OSError as error:
        raise EngineError(f"{mechanism.name} {group.folder} was not removed: {error}") from error
