"""Free ports for servers."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

from controlplane.domain.errors import EngineError
from launchers.triton.program import ServerPorts

_FIRST = 20000
_LAST = 29999


def free_ports(taken: set[int]) -> ServerPorts:
    """Return three ports without a listener, none of them in `taken`.

    They are below the kernel's range for outgoing connections, which may take any of its ports at any
    moment. Another process can still take one before the server does, so a start must be able to try again.
    """
    first, last = _FIRST, min(_LAST, _first_outgoing() - 1)
    if last - first < 100:
        first, last = 1024, 65535
    found: list[int] = []
    picks = random.sample(range(first, last + 1), k=min(last - first, 500))
    for port in picks:
        if port not in taken and _is_free(port):
            found.append(port)
            if len(found) == 3:
                return ServerPorts(found[0], found[1], found[2])
    raise EngineError(f"no free ports between {first} and {last} on 127.0.0.1: stop what listens there")


def _first_outgoing() -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    return 32768


def _is_free(port: int) -> bool:
    # Both addresses: a listener on 0.0.0.0 has the port too.
    for address in ("127.0.0.1", "0.0.0.0"):
        with socket.socket() as s:
            try:
                s.bind((address, port))
            except OSError:
                return False
    return True
