"""The sockets that the supervisor holds for HAProxy and the facade.

While any process holds one open, connections wait in its queue.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from controlplane.files.gateway import GatewaySettings
from controlplane.files.gateway_paths import GatewayPaths

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
    """A listening Unix socket in the place of an earlier one."""
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
