"""Runs each partition's Triton as a plain process of this host.

The labels are in each process's environment, so /proc alone tells what runs: the program that started a
server may end, be killed or be replaced, and the next one finds it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from controlplane.domain.device import DeviceReading
from controlplane.domain.errors import EngineError, InputError, LaunchTimeout, NotNow
from controlplane.domain.fleet import QuotaUse, Server, ServerSpec, ServerState, ShareUsage
from controlplane.ports import Capability, Watch
from launchers.cpu_quota import CHAIN, Group, Mechanism, first_that_holds
from launchers.cpu_quota.counters import QuotaCounters
from launchers.gpu import gpus, mps, shares
from launchers.gpu.gpus import is_gpu
from launchers.host import process_table, shared_memory
from launchers.host.cores import core_of, pinned
from launchers.host.servers import HostServers
from launchers.triton import labels, program, readiness, server_log
from launchers.triton.starting import ATTEMPTS, BAD_LUCK, Starting
from launchers.watch import LauncherWatch

_POLL_S = 0.03
_KEPT_LOGS = 100
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

# The outer shell ends at once: this program need not wait for the server, and the server outlives it. The
# inner one lives as long as the server. SIGTERM to every process of the host, at its shutdown, reaches it,
# and the server ends; SIGTERM to Triton alone stays pending.
_DETACH = '("$@" >&2 & echo $!; exec >&2; trap "kill -INT $!" TERM; until wait; do :; done) &'
_PASSED_ON = ("HOME", "USER", "LANG", "TZ", "TMPDIR", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server runs: a core, or (None) a GPU; and the environment variables for it."""

    core: int | None
    environment: Mapping[str, str]


def on_gpu(client: mps.MpsClient) -> Place:
    """Return the place of an MPS client. Raises EngineError where another user has the daemon."""
    mps.check_user(client, os.getuid())
    return Place(None, {"CUDA_VISIBLE_DEVICES": client.uuid, **client.environment})


class ProcessLauncher:
    """`controlplane.ports.Launcher` with plain processes. Logs go to `state`/<fleet>/logs."""

    name = "process"

    def __init__(self, state: Path, mechanisms: Sequence[Mechanism] = CHAIN) -> None:
        self._state = state
        self._mechanisms = {m.name: m for m in mechanisms}
        self._lock = threading.Lock()
        self._starting = Starting()
        self._mps = mps.MpsDaemons()
        self._servers = HostServers()
        self._counters = QuotaCounters()

    def enforcement(self) -> str | None:
        """Return the first mechanism that passes its trial."""
        mechanism = self._quota()[0]
        return mechanism.name if mechanism else None

    def capabilities(self) -> tuple[Capability, ...]:
        """Return Triton, and every mechanism that enforces shares, each tried."""
        found = [self._triton()]
        for mechanism in self._mechanisms.values():
            obstacle = mechanism.obstacle()
            found.append(Capability(f"quota: {mechanism.name}", obstacle is None, obstacle or "tried, holds"))
        return (*found, _memory(), mps.capability())

    def command(self, spec: ServerSpec) -> str:
        """Return the command line of a start, one option a line, after its environment variables."""
        home = program.find_home()
        place = self._place(spec, start=False)
        with self._starting.ports() as ports:
            line = program.command_line(
                spec,
                home,
                ports,
                repository=spec.repository,
                gpu=place.core is None,
                reload_key=program.KEY_PLACEHOLDER,
            )
        pinned_to = ["taskset", "--cpu-list", str(place.core)] if place.core is not None else []
        told = {"LD_LIBRARY_PATH": library_path(home), **place.environment, **dict(spec.options.env)}
        words = ["env", *(f"{key}={value}" for key, value in told.items()), *pinned_to, *line]
        return program.SHELL_BREAK.join(map(shlex.quote, words))

    def inventory(self) -> None:
        """Return None: its devices are this host's."""

    def start(self, spec: ServerSpec, *, deadline_s: float) -> Server:
        """Start one Triton and wait until it is ready; where it already runs, wait for that one.

        Raises InputError for a device this host does not have, or a name that runs with another spec.
        """
        deadline = time.monotonic() + deadline_s
        with self._starting.one_at_a_time(spec.name):
            running = self._running(spec.name)
            adopted = None if running is None else self._adopt(running, spec, deadline)
            if adopted is not None:
                return adopted
            self._remove(spec)
            place = self._place(spec, start=True)
            home = program.find_home()
            for _ in range(ATTEMPTS):
                with self._starting.ports() as ports:
                    server = self._server(spec, ports)
                    try:
                        if self._run(server, ports, home, place, deadline):
                            return self._running(spec.name) or server
                    except BaseException:
                        self._remove(spec)
                        raise
                    self._remove(spec)
            raise EngineError(f"{spec.name}: {ATTEMPTS} times {BAD_LUCK}; try again")

    def servers(self, fleet: str) -> tuple[Server, ...]:
        """Return the fleet's servers; one whose Triton is gone while its models run counts as exited."""
        return self._servers.of_fleet(fleet)

    def servers_of_host(self) -> tuple[Server, ...]:
        """Return this user's servers whose Triton runs, of all fleets."""
        return self._servers.running()

    def stop(self, server: Server, *, drain_s: float) -> None:
        """End a server and remove what it owned; see `HostServers.stop`."""
        if self._servers.stop(server, drain_s):
            self._clear(server.spec)

    def resize(self, server: Server, percent: float) -> None:
        """Change the quota by the mechanism that enforces it; a duty cycle cannot."""
        if is_gpu(server.spec.device):
            raise InputError(gpus.FIXED, field="percent")
        mechanism = self._mechanisms.get(server.enforced_by or "")
        if mechanism is None:
            raise InputError(f"nothing holds {server.name} to a share", field="percent")
        try:
            mechanism.resize(Group.of(server.spec), percent, self._servers.pids(server.name))
        except OSError as error:
            raise EngineError(f"the share of {server.name} cannot be changed: {error}") from error

    def watch(self, fleet: str) -> Watch:
        """Watch the processes by pidfd; a model's from the first `servers` that lists it."""
        return LauncherWatch(self._servers.ends(fleet), self._mps)

    def reading(self, device: str) -> DeviceReading:
        """Return NVML's readings of a GPU."""
        return gpus.reading(device)

    def usage(self, server: Server) -> ShareUsage:
        """Return the counters of the server's mechanism; only time and memory without one."""
        counted = self._servers.usage(server.name)
        mechanism = self._mechanisms.get(server.enforced_by or "")
        pids, device = self._servers.pids(server.name), server.spec.device
        if mechanism is not None:
            counted = replace(mechanism.usage(Group.of(server.spec), pids), memory_mb=counted.memory_mb)
        return replace(counted, memory_mb=gpus.memory_mb(device, pids)) if is_gpu(device) else counted

    def quota_use(self, server: Server) -> QuotaUse | None:
        """Return the counters of the server's group."""
        return self._counters.read(int(server.id)) if server.enforced_by is not None else None

    def sweep(self, fleet: str) -> tuple[str, ...]:
        """End models whose Triton is gone; remove groups and shared memory without a server."""
        removed = []
        for server in self.servers(fleet):
            if server.state is ServerState.EXITED:
                removed += [f"processes of {server.name}", *self._remove(server.spec)]
        alive = self._alive(fleet)
        left = [
            (mechanism, group)
            for mechanism in self._mechanisms.values()
            for group in mechanism.groups(fleet)
            if group.server not in alive
        ]
        for mechanism, group in left:
            # Asked again after the group was seen: its server may have started meanwhile.
            removed += leave(mechanism, group) if group.server not in self._alive(fleet) else []
        return (*removed, *shared_memory.sweep(fleet, self._alive(fleet)), *self._mps.sweep())

    def _alive(self, fleet: str) -> set[str]:
        """Return the digests of the servers that run or start."""
        return {labels.digest(name) for name in (*self._servers.names(fleet), *self._starting.names())}

    def _triton(self) -> Capability:
        try:
            home = program.find_home()
        except EngineError as error:
            return Capability("triton", False, "not found", str(error))
        return Capability("triton", True, str(home.path))

    def _quota(self) -> tuple[Mechanism | None, dict[str, str]]:
        with self._lock:
            if not hasattr(self, "_chosen"):
                self._chosen = first_that_holds(tuple(self._mechanisms.values()))
            return self._chosen

    def _server(self, spec: ServerSpec, ports: program.ServerPorts) -> Server:
        logs = self._state / spec.labels.fleet / "logs"
        enforced_by = mps.MECHANISM if is_gpu(spec.device) else self.enforcement()
        log_path = str(logs / f"{labels.folder_name(spec.name)}.log")
        return program.new_server(spec, ports, enforced_by, log_path=log_path)

    def _running(self, name: str) -> Server | None:
        return next(iter(self._servers.running(name)), None)

    def _adopt(self, running: Server, spec: ServerSpec, deadline: float) -> Server | None:
        """Return the running server once it is ready; None where it ends first, as during a stop."""
        for field, (wanted, has) in labels.spec_difference(spec, running.spec).items():
            raise InputError(
                f"{spec.name} already runs with {has!r}, not {wanted!r}: stop it first", field=field
            )
        while not readiness.is_ready(running):
            if time.monotonic() > deadline:
                self._remove(spec)
                raise LaunchTimeout(f"{spec.name} ran already and was not ready in time: it is removed")
            if self._running(spec.name) is None:
                return None
            time.sleep(_POLL_S)
        return running

    def _place(self, spec: ServerSpec, *, start: bool) -> Place:
        if is_gpu(spec.device):
            shares.check(spec, self._on_gpus())
            return on_gpu(self._mps.client(spec, start=start))
        return Place(core_of(spec.device), {"CUDA_VISIBLE_DEVICES": "", **program.MODEL_THREADS})

    def _on_gpus(self) -> list[ServerSpec]:
        """Return our servers on GPUs, of any fleet."""
        return [s.spec for s in self._servers.running() if is_gpu(s.spec.device)]

    def _run(
        self,
        server: Server,
        ports: program.ServerPorts,
        home: program.TritonHome,
        place: Place,
        deadline: float,
    ) -> bool:
        """Start a server and wait until it is ready; return False where it fails by chance (`BAD_LUCK`)."""
        spec = server.spec
        log = Path(server.log_path or "")
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            prune(log.parent)
            gpu = place.core is None
            command = program.command_line(
                spec, home, ports, repository=spec.repository, gpu=gpu, reload_key=server.reload_key
            )
            mechanism = None if gpu else self._quota()[0]
            prefix = mechanism.enter(Group.of(spec), spec.percent) if mechanism else []
            # On a GPU, MPS needs the host's shared memory; a client's own regions are there too.
            apart = () if gpu or spec.fleet_wide_calls else shared_memory.own()
            line = [*prefix, *apart, *process_table.BLOCK_TERM, *command]
            pid = detach(line, environment(server, home, place), log, place.core)
        except (OSError, subprocess.SubprocessError) as error:
            kind = NotNow if isinstance(error, OSError) and error.errno in _FULL else EngineError
            raise kind(f"{spec.name} could not be started: {error}") from error
        while True:
            is_up = self._servers.is_up(server, pid)
            if is_up is None:
                if server_log.by_chance(server_log.read(log)):
                    return False
                raise EngineError(
                    server_log.failure(server.name, "ended before it was ready", server_log.read(log), log)
                )
            if is_up:
                return True
            if time.monotonic() > deadline:
                raise LaunchTimeout(
                    server_log.failure(server.name, "was not ready in time", server_log.read(log), log)
                )
            time.sleep(_POLL_S)

    def _remove(self, spec: ServerSpec) -> list[str]:
        """End every process of that name and remove its groups and memory; return a line for each."""
        self._servers.kill(spec)
        return self._clear(spec)

    def _clear(self, spec: ServerSpec) -> list[str]:
        """Remove the groups and memory of a server that has ended; return a line for each."""
        removed = [what for m in self._mechanisms.values() for what in leave(m, Group.of(spec))]
        return removed + shared_memory.remove(labels.memory_prefix(spec))


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


def detach(command: list[str], env: dict[str, str], log: Path, core: int | None) -> int:
    """Start a command in a new session, on `core` unless None, with its output in `log`.

    Returns its pid. Raises OSError.
    """
    where = contextlib.nullcontext() if core is None else pinned(core)
    with log.open("wb") as out, where:
        shell = subprocess.run(
            ["sh", "-c", _DETACH, "sh", *command],
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


def environment(server: Server, home: program.TritonHome, place: Place) -> dict[str, str]:
    """Return a server's environment. It has little of ours, so that no secret gets there by accident."""
    passed_on = {key: os.environ[key] for key in _PASSED_ON if key in os.environ}
    # The Python backend takes the first python of PATH and ignores PYTHONPATH.
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    return {
        **passed_on,
        "PATH": path,
        "LD_LIBRARY_PATH": library_path(home),
        **place.environment,
        **dict(server.spec.options.env),
        **labels.environment_of(server),
    }


def library_path(home: program.TritonHome) -> str:
    """Return Triton's libraries, then the caller's, where a driver may be."""
    return ":".join(filter(None, (str(home.libraries), os.environ.get("LD_LIBRARY_PATH"))))


def leave(mechanism: Mechanism, group: Group) -> list[str]:
    """Remove a server's group; return a line if there was one. Raises EngineError."""
    try:
        return [f"{mechanism.name} {group.folder}"] if mechanism.leave(group) else []
    except OSError as error:
        raise EngineError(f"{mechanism.name} {group.folder} was not removed: {error}") from error


def prune(folder: Path) -> None:
    """Remove all but the newest logs. Starts side by side do so too: what is gone is no failure."""
    logs: list[tuple[float, Path]] = []
    for log in folder.glob("*.log"):
        with contextlib.suppress(FileNotFoundError):
            logs.append((log.stat().st_mtime, log))
    for _, old in sorted(logs, reverse=True)[_KEPT_LOGS:]:
        old.unlink(missing_ok=True)
