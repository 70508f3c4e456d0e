"""What a stopped server's sockets have received and it has not read, from the kernel's tables."""

from __future__ import annotations

import time
from collections.abc import Set
from pathlib import Path

from controlplane.domain.fleet import Server
from launchers.triton import readiness


def unread(pid: int, ports: Set[int], proc: Path = Path("/proc")) -> int:
    """Return the bytes that wait at these local TCP ports, and the connections; 0 where `pid` is gone."""
    found = 0
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / str(pid) / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            local, _, _, queues = line.split()[1:5]
            if int(local.rpartition(":")[2], 16) in ports:
                found += int(queues.partition(":")[2], 16)
    return found


def await_read(server: Server, pid: int, ports: Set[int], seconds: float) -> None:
    """Wait until a server that runs again has read what arrived while it was stopped.

    Once it is to end, it would refuse that. `pid` is its Triton's, `ports` are those on which that listens.
    """
    deadline = time.monotonic() + seconds
    while unread(pid, ports) and time.monotonic() < deadline:
        time.sleep(0.005)  # the kernel has no event for it
    # What was read last is handed on before this answer.
    readiness.is_ready(server, answer_s=max(deadline - time.monotonic(), 0.1))
