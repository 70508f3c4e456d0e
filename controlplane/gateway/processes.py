"""The gateway's processes, found by their environment, since a pid file can be stale."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from controlplane.domain.errors import is_own_lack
from controlplane.files.gateway_paths import GatewayPaths
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
                found[int(entry.name)] = _parent(entry)
        except OSError as error:
            if is_own_lack(error):
                raise  # what cannot be looked at may live
    # A fork has its parent's environment until it executes its own program. A signal meant for the supervisor
    # would end the HAProxy that it just starts.
    return tuple(sorted(pid for pid, parent in found.items() if parent not in found))


def _parent(process: Path) -> int:
    """Return the parent's pid. The name before it, in brackets, may hold brackets and spaces."""
    return int((process / "stat").read_text().rpartition(")")[2].split()[1])


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


def spawn_detached(
    paths: GatewayPaths, role: str, command: Sequence[str], descriptors: Sequence[int] = ()
) -> None:
    """Start a process that is no child, so that the caller has nothing to reap."""
    forked = spawn(paths, role, ["setsid", "--fork", *command], descriptors=descriptors)
    forked.wait()


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
