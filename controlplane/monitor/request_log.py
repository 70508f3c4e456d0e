"""The gateway's log, read as it is written: one line for every request that ended, over UDP on loopback.

    <h|f> <count> <model> <host> <port> <http status> <grpc status> <flags> <bytes in> <bytes out>
      <start s> <start us> <end s> <end us> <backend>

The count tells how many lines were lost. Who binds the port reads the log; there is one controller a fleet.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from typing import NamedTuple

from controlplane.domain.errors import GatewayError

_FIELDS = 15
_RECEIVE_BYTES = 4 * 2**20
_KEEP = 200_000
_LINE_BYTES = 2048
_GATHER_S = 0.02
_SERVER_FAULTS_GRPC = frozenset({"2", "4", "8", "13", "14", "15"})
"""UNKNOWN, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, INTERNAL, UNAVAILABLE and DATA_LOSS."""


class RequestEnd(NamedTuple):
    """One request that ended at the gateway, by the server's address; `ended_s` is since the epoch."""

    endpoint: str
    host: str
    port: int
    ended_s: float
    latency_ms: float
    failed: bool


class RequestLog:
    """Listens in a thread of its own. Raises GatewayError where another one already does."""

    def __init__(self, port: int) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        try:
            self._socket.bind(("127.0.0.1", port))
        except OSError as error:
            self._socket.close()
            raise GatewayError(f"the gateway's log (UDP {port}) is read by somebody else") from error
        self._lines: deque[bytes] = deque(maxlen=_KEEP)
        self._counts: dict[str, int] = {}
        self.lost = 0
        threading.Thread(target=self._read, name="request-log", daemon=True).start()

    def take(self) -> list[RequestEnd]:
        """The requests that ended since the call before, in the order of their lines."""
        taken = []
        with contextlib.suppress(IndexError):
            while True:
                words = self._lines.popleft().decode(errors="replace").split()
                if len(words) != _FIELDS:
                    continue
                self._count(words[0], int(words[1]))
                end = parse(words)
                if end is not None:
                    taken.append(end)
        return taken

    def close(self) -> None:
        """Stop listening."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read(self) -> None:
        try:
            while line := self._socket.recv(_LINE_BYTES):
                self._lines.append(line)
                # Woken for every line a thread costs more than the reading: let some gather.
                time.sleep(_GATHER_S)
                with contextlib.suppress(BlockingIOError):
                    while line := self._socket.recv(_LINE_BYTES, socket.MSG_DONTWAIT):
                        self._lines.append(line)
        except OSError:
            return

    def _count(self, source: str, count: int) -> None:
        before = self._counts.get(source)
        # A process that was restarted counts from its start again.
        if before is not None and count > before + 1:
            self.lost += count - before - 1
        self._counts[source] = count


def parse(words: list[str]) -> RequestEnd | None:
    """The request of a line; None for one that no model's server answered or that its client gave up."""
    _, _, model, host, port, status, grpc, flags, _, _, start, start_us, end, end_us, _ = words
    if model == "-" or not port.isdigit() or flags[:1] == "C":
        return None
    started_s = int(start) + int(start_us) / 1e6
    ended_s = int(end) + int(end_us) / 1e6
    failed = int(status) >= 500 or grpc in _SERVER_FAULTS_GRPC
    return RequestEnd(model, host, int(port), ended_s, 1000.0 * (ended_s - started_s), failed)
