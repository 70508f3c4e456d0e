"""A Service as kube-proxy makes one: new connections go to a ready replica, open ones stay where they are."""

import contextlib
import itertools
import select
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Sequence

from http_server import HOST, in_thread

Targets = Callable[[], Sequence[tuple[str, int]]]
"""Returns the addresses of the ready replicas, at the time of a connection."""

_CHUNK = 2**16
_LOOK_S = 0.2


@contextlib.contextmanager
def service(*ports: Targets) -> Iterator[list[int]]:
    """Local ports, each of which forwards to its targets."""
    ending = threading.Event()
    servers = [_server(targets, ending) for targets in ports]
    with contextlib.ExitStack() as stack:
        for server in servers:
            stack.enter_context(in_thread(server))
        stack.callback(ending.set)
        yield [server.server_address[1] for server in servers]


def _server(targets: Targets, ending: threading.Event) -> socketserver.ThreadingTCPServer:
    turns = itertools.count()

    class Connection(socketserver.BaseRequestHandler):
        request: socket.socket

        def handle(self) -> None:
            ready = targets()
            if ready:
                with (
                    contextlib.suppress(OSError),
                    socket.create_connection(ready[next(turns) % len(ready)], timeout=5) as far,
                ):
                    far.settimeout(None)
                    _copy(self.request, far, ending)

    class Server(socketserver.ThreadingTCPServer):
        request_queue_size = 512

    return Server((HOST, 0), Connection)


def _copy(near: socket.socket, far: socket.socket, ending: threading.Event) -> None:
    """Copy both ways until both have ended."""
    other = {near: far, far: near}
    for end in other:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    reading = [near, far]
    while reading and not ending.is_set():
        for source in select.select(reading, [], [], _LOOK_S)[0]:
            if data := source.recv(_CHUNK):
                other[source].sendall(data)
            else:
                reading.remove(source)
                other[source].shutdown(socket.SHUT_WR)
