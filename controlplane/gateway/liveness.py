"""Which of a gateway's processes do not run, without waiting for any of them."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

from controlplane.files.gateway_paths import GatewayPaths
from controlplane.gateway import processes, supervision


def missing(paths: GatewayPaths) -> tuple[str, ...]:
    """Return the roles without a process; none where the gateway was never started, or was ended.

    Raises OSError where that cannot be known, for want of descriptors say.
    """
    if not paths.settings.exists():
        return ()
    listening = {
        processes.HAPROXY: paths.runtime_socket,
        processes.FACADE: paths.control_socket,
        processes.MONITOR: paths.monitor_socket,
    }
    found = [role for role, path in listening.items() if not _listens(path)]
    if supervision.is_missing(paths):
        found.append(processes.SUPERVISOR)
    return tuple(found)


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
