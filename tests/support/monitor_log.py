"""The gateway's monitor, as far as a follower of the request log meets it."""

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from controlplane.monitor.client import FOLLOW
from controlplane.monitor.records import Record
from controlplane.runtime.controller.answers import Requests

LINE = b"grpc:h7 %d alexnet %s %s 200 - %s 12 34 100500000 100750000\n"


def line(count: int, server: bytes = b"f.p.active.1:abc", flags: bytes = b"--") -> bytes:
    return LINE % (count, server, b"g_1", flags)


def taken(log: Requests, count: int) -> list[Record]:
    """The next records of a log, at least so many."""
    found: list[Record] = []
    deadline = time.monotonic() + 30.0
    while len(found) < count and time.monotonic() < deadline:
        found += log.take()
        time.sleep(0.005)
    return found


@contextlib.contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.settimeout(30.0)
        server.bind(str(path))
        server.listen()
        yield server
    path.unlink()


@contextlib.contextmanager
def accepted(server: socket.socket) -> Iterator[socket.socket]:
    stream, _ = server.accept()
    with stream:
        assert json.loads(stream.makefile("rb").readline()) == FOLLOW
        yield stream
