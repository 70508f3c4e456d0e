"""The facade's telemetry: a line for every request that HAProxy cannot time, in HAProxy's own form.

f:facade:<pid> <count> <model> <host> <port> <http status> <grpc status> <flags> <bytes in> <bytes out>
<start s> <start us> <end s> <end us> <backend>
"""

from __future__ import annotations

import contextlib
import os
import socket
import time

from controlplane.domain.fleet import Backend


class Records:
    """Sends and forgets: a monitor that is not there loses lines, and sees by the count how many."""

    def __init__(self, *ports: int) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._ports = ports
        self._source = f"f:facade:{os.getpid()}"
        self._count = 0
        self.handled_bytes = 0
        """Of all inferences so far, both ways."""

    def message(self, endpoint: str, backend: Backend, started_s: float, size: int, answer: bytes) -> None:
        """A streamed message was answered; `started_s` is of the monotonic clock."""
        failed = answer[:1] == b"\x0a" and answer[1:2] not in (b"", b"\x00")
        self.request(endpoint, backend, started_s, size, len(answer), http=200, grpc=13 if failed else 0)

    def request(
        self,
        endpoint: str,
        backend: Backend,
        started_s: float,
        size: int,
        answer_size: int,
        *,
        http: int,
        grpc: int | None,
    ) -> None:
        """A request ended now. `grpc` is None for one over HTTP."""
        self._count += 1
        self.handled_bytes += size + answer_size
        end_us = time.time_ns() // 1000
        start_us = end_us - int((time.monotonic() - started_s) * 1e6)
        line = (
            f"{self._source} {self._count} {endpoint} {backend.host} {backend.grpc_port} {http} "
            f"{'-' if grpc is None else grpc} ---- {size} {answer_size} "
            f"{start_us // 10**6} {start_us % 10**6} {end_us // 10**6} {end_us % 10**6} facade"
        )
        for port in self._ports:
            with contextlib.suppress(OSError):
                self._socket.sendto(line.encode(), ("127.0.0.1", port))

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
