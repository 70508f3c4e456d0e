"""Starting, finding, renewing and replacing the supervisor, for other processes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import sys
import time
from pathlib import Path

import controlplane
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.gateway import processes
from controlplane.gateway.listeners import Held
from controlplane.gateway.locks import is_free

_POLL_S = 0.05
_PARTS = ("gateway", "monitor", "render", "files")
"""Of the package: what the gateway's processes run."""
STARTING_S = 10.0
"""For a supervisor to hold its lock after its start, also on a busy host."""


def start(paths: GatewayPaths, held: Held | None = None) -> None:
    """Start a detached supervisor that takes the sockets over. Where one runs, the new one ends."""
    held = held or Held()
    command = [sys.executable, "-m", "controlplane.gateway.supervise", str(paths.state), *held.arguments()]
    processes.spawn_detached(paths, processes.SUPERVISOR, command, held.descriptors())


def version() -> str:
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


def replace_outdated(paths: GatewayPaths) -> None:
    """End a supervisor of another version; the facade starts the present one, with the sockets.

    One of an earlier version cannot read newer files, so it could not start HAProxy again.
    """
    if processes.find(paths, processes.SUPERVISOR) and paths.supervisor_lock.read_text() != version():
        processes.end(processes.find(paths, processes.SUPERVISOR), grace_s=STARTING_S)
        deadline = time.monotonic() + STARTING_S
        while is_missing(paths) and time.monotonic() < deadline:
            time.sleep(_POLL_S)


def wake(paths: GatewayPaths) -> None:
    """Have the supervisor replace a HAProxy that runs with other settings, and renew the certificate."""
    for pid in processes.find(paths, processes.SUPERVISOR):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGHUP)


def is_missing(paths: GatewayPaths) -> bool:
    """Return whether it died: its lock exists and is not held. A deliberate end removes the lock first."""
    return is_free(paths.supervisor_lock)
