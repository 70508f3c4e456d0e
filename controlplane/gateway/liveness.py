"""Which of a gateway's processes do not run, without waiting for any of them."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

from controlplane.gateway import processes, supervision
from controlplane.gateway.places import Places


def missing(places: Places) -> tuple[str, ...]:
    """Return the roles without a process; none where the gateway was never started, or was ended.

    Raises OSError where that cannot be known, for want of descriptors say.
    """
    if not places.settings.exists():
        return ()
    listening = {
        processes.HAPROXY: places.runtime_socket,
        processes.FACADE: places.control_socket,
        processes.MONITOR: places.monitor_socket,
    }
    found = [role for role, path in listening.items() if not _listens(path)]
    if supervision.is_missing(places):
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
