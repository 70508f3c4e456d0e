"""What a server's sockets have received and it has not read, from the kernel's tables."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path


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
