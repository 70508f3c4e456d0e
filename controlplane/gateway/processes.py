"""The gateway's processes: finding, starting and ending them, and keeping its supervisor alive.

They are found by their environment, since a pid file can be stale. The supervisor holds sockets for HAProxy
and the facade: while any process holds one open, connections wait in its queue.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import controlplane
from controlplane.domain.errors import is_own_lack
from controlplane.files.gateway import GatewaySettings
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.files.reading import exists
from controlplane.files.waiting import is_free, wait_until
from controlplane.files.writing import log_file

LABEL = "TRISECT_GATEWAY"
ROLE_LABEL = "TRISECT_GATEWAY_ROLE"
HAPROXY = "haproxy"
FACADE = "facade"
MONITOR = "monitor"
SUPERVISOR = "supervisor"
KEPT_UP = (HAPROXY, FACADE, MONITOR)
ALL = (SUPERVISOR, *KEPT_UP)
"""In the order in which they are ended."""
STARTING_S = 10.0
"""For a supervisor to hold its lock after its start, also on a busy host."""
_PARTS = ("gateway", "monitor", "render", "files")
"""Of the package: what the gateway's processes run."""
_QUEUE = 8192
"""Connections that may wait to be accepted; the kernel takes at most its own net.core.somaxconn."""


@dataclass(frozen=True, slots=True)
class Listeners:
    """One for each protocol."""

    http: socket.socket
    grpc: socket.socket

    @classmethod
    def for_clients(cls, settings: GatewaySettings) -> Listeners:
        """Open the ports of HAProxy. Raises OSError where a port is taken."""
        http = listen(settings.host, settings.http_port)
        try:
            return cls(http, listen(settings.host, settings.grpc_port))
        except OSError:
            http.close()
            raise

    @classmethod
    def for_haproxy(cls, paths: GatewayPaths) -> Listeners:
        """Open the facade's sockets, in the place of earlier ones. Raises OSError."""
        return cls(_listen_at(paths.facade_http_socket), _listen_at(paths.facade_grpc_socket))

    @classmethod
    def inherited(cls, descriptors: Sequence[int] | None) -> Listeners | None:
        """Return those that the parent passed by `descriptors`; None where it passed none."""
        if not descriptors:
            return None
        http, grpc = descriptors
        return cls(socket.socket(fileno=http), socket.socket(fileno=grpc))

    def descriptors(self) -> tuple[int, int]:
        """What a process inherits."""
        return self.http.fileno(), self.grpc.fileno()

    def refuse_waiting(self) -> None:
        """Close the connections that wait to be accepted."""
        for one in (self.http, self.grpc):
            one.setblocking(False)
            with contextlib.suppress(OSError):
                while True:
                    one.accept()[0].close()


@dataclass(slots=True)
class Held:
    """What supervisor and facade hold for each other: the sockets of clients, and the facade's own.

    Without those of clients they are opened when the processes that hold them have ended.
    """

    clients: Listeners | None = None
    facade: Listeners | None = None

    @classmethod
    def inherited(cls, arguments: Sequence[str]) -> tuple[Path, Held]:
        """Return the state directory of a process's command line, and what its parent passed on."""
        parser = argparse.ArgumentParser()
        parser.add_argument("state", type=Path)
        # By position, as a facade from before an upgrade starts the supervisor of this version.
        parser.add_argument("clients", type=int, nargs="*")
        parser.add_argument("--facade", type=int, nargs=2)
        given = parser.parse_args(arguments)
        return given.state, cls(Listeners.inherited(given.clients), Listeners.inherited(given.facade))

    def arguments(self) -> list[str]:
        """Return what a command line has behind the state directory."""
        clients = () if self.clients is None else self.clients.descriptors()
        facade = () if self.facade is None else ("--facade", *self.facade.descriptors())
        return [str(word) for word in (*clients, *facade)]

    def descriptors(self) -> tuple[int, ...]:
        """What a process inherits."""
        return tuple(fd for one in (self.clients, self.facade) if one is not None for fd in one.descriptors())


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket. Raises OSError where the port is taken."""
    return _bound(socket.AF_INET6 if ":" in host else socket.AF_INET, (host, port))


def _listen_at(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    return _bound(socket.AF_UNIX, str(path))


def _bound(family: socket.AddressFamily, address: tuple[str, int] | str) -> socket.socket:
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(_QUEUE)
    except OSError:
        opened.close()
        raise
    return opened


def say(line: str) -> None:
    """Print a line into this process's log; where the disk refuses it, nothing but the line is lost."""
    with contextlib.suppress(OSError):
        print(line, flush=True)


def find(paths: GatewayPaths, role: str) -> tuple[int, ...]:
    """Pids of the living processes of this gateway with this role. Raises OSError where that is unknown."""
    wanted = {f"{LABEL}={paths.state}".encode(), f"{ROLE_LABEL}={role}".encode()}
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if wanted <= set((entry / "environ").read_bytes().split(b"\0")):
                # The name before the parent's pid, in brackets, may hold brackets and spaces.
                found[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError as error:
            if is_own_lack(error):
                raise  # what cannot be looked at may live
    # A fork has its parent's environment until it executes its own program. A signal meant for the supervisor
    # would end the HAProxy that it just starts.
    return tuple(sorted(pid for pid, parent in found.items() if parent not in found))


def spawn(
    paths: GatewayPaths,
    role: str,
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    descriptors: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, so that it outlives its parent.

    It inherits `descriptors` under their numbers.
    """
    environment = {**os.environ, **(environment or {}), LABEL: str(paths.state), ROLE_LABEL: role}
    with log_file(paths.log(role)) as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd="/",
            start_new_session=True,
            pass_fds=descriptors,
            umask=0o077,  # what it makes is its user's only, wherever that lies
        )


def end(pids: Sequence[int], *, grace_s: float, first: signal.Signals = signal.SIGTERM) -> None:
    """End processes by signal `first`, after `grace_s` by SIGKILL. Returns when all are gone."""
    handles = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            handles.append((pid, os.pidfd_open(pid)))
    try:
        for _, handle in handles:
            _signal(handle, first)
        deadline = time.monotonic() + grace_s
        for pid, handle in handles:
            if not _gone(handle, max(0.0, deadline - time.monotonic())):
                _signal(handle, signal.SIGKILL)
                _gone(handle, grace_s)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
    finally:
        for _, handle in handles:
            os.close(handle)


def _signal(handle: int, what: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, what)


def _gone(handle: int, timeout_s: float) -> bool:
    return bool(select.select([handle], [], [], timeout_s)[0])


def missing(paths: GatewayPaths) -> tuple[str, ...]:
    """Return the roles without a process; none where the gateway was never started, or was ended.

    Raises OSError where that cannot be known, for want of descriptors say.
    """
    if not exists(paths.settings):
        return ()
    sockets = (paths.runtime_socket, paths.control_socket, paths.monitor_socket)
    found = tuple(role for role, path in zip(KEPT_UP, sockets, strict=True) if not _listens(path))
    return (*found, SUPERVISOR) if supervisor_is_missing(paths) else found


def _listens(path: Path) -> bool:
    """Return whether a process has this Unix socket open; one that hangs has."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:  # its queue is full
            return True
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True


def start_supervisor(paths: GatewayPaths, held: Held | None = None) -> None:
    """Start a detached supervisor that takes the sockets over. Where one runs, the new one ends."""
    held = held or Held()
    command = [sys.executable, "-m", "controlplane.gateway.supervise", str(paths.state), *held.arguments()]
    # Forked once more, so that it is no child, which the caller would have to reap.
    spawn(paths, SUPERVISOR, ["setsid", "--fork", *command], descriptors=held.descriptors()).wait()


def code_version() -> str:
    """Return the version of this code, which a supervisor writes into its lock.

    Of the sources too, since a version from a repository keeps its number over many changes.
    """
    from importlib.metadata import version as installed  # slow to import, and rarely needed

    digest = hashlib.sha256()
    for part in _PARTS:
        for source in sorted((Path(controlplane.__file__).parent / part).rglob("*")):
            if source.suffix in (".py", ".j2"):
                digest.update(source.read_bytes())
    return f"{installed('trisect')}+{digest.hexdigest()[:16]}"


def replace_outdated_supervisor(paths: GatewayPaths) -> None:
    """End a supervisor of another version; the facade starts the present one, with the sockets.

    One of an earlier version cannot read newer files, so it could not start HAProxy again.
    """
    if find(paths, SUPERVISOR) and paths.supervisor_lock.read_text() != code_version():
        end(find(paths, SUPERVISOR), grace_s=STARTING_S)
        wait_until(lambda: not supervisor_is_missing(paths), deadline_s=STARTING_S)


def wake_supervisor(paths: GatewayPaths) -> None:
    """Have the supervisor replace a HAProxy that runs with other settings, and renew the certificate."""
    wait_until(lambda: not supervisor_is_missing(paths), deadline_s=STARTING_S)  # before, a signal ends it
    for pid in find(paths, SUPERVISOR):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGHUP)


def supervisor_is_missing(paths: GatewayPaths) -> bool:
    """Return whether it died: its lock exists and is not held. A deliberate end removes the lock first."""
    return is_free(paths.supervisor_lock)
