"""The sockets that clients connect to. While any process holds one open, clients wait in its queue."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.files.gateway import GatewaySettings

_QUEUE = 8192
"""Connections that may wait to be accepted; the kernel takes at most its own net.core.somaxconn."""


@dataclass(frozen=True, slots=True)
class Listeners:
    """One for each protocol that HAProxy serves."""

    http: socket.socket
    grpc: socket.socket

    @classmethod
    def of(cls, settings: GatewaySettings) -> Listeners:
        """Open both. Raises OSError where a port is taken."""
        http = listen(settings.host, settings.http_port)
        try:
            return cls(http, listen(settings.host, settings.grpc_port))
        except OSError:
            http.close()
            raise

    @classmethod
    def inherited(cls, arguments: Sequence[str]) -> Listeners | None:
        """Return those that the parent passed by `descriptors`; None without arguments."""
        if not arguments:
            return None
        http, grpc = map(int, arguments)
        return cls(socket.socket(fileno=http), socket.socket(fileno=grpc))

    def descriptors(self) -> tuple[int, int]:
        """What a process inherits."""
        return self.http.fileno(), self.grpc.fileno()


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket. Raises OSError where the port is taken."""
    opened = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, port))
        opened.listen(_QUEUE)
    except OSError:
        opened.close()
        raise
    return opened
