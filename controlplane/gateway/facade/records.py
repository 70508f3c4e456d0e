"""The facade's telemetry: a line (`controlplane.monitor.records`) for what HAProxy cannot time."""

from __future__ import annotations

import contextlib
import os
import socket
import time

from controlplane.domain.fleet import Backend

ABANDONED, HELD, UNREACHED = "C-", "SH", "SC"
"""As HAProxy's flags: the client left, the server was lost with the request, no connection opened."""


class Records:
    """Sends and forgets: a monitor that is not there loses lines, and sees by the count how many."""

    def __init__(self, port: int, secret: str) -> None:
        self._secret = secret
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._address = ("127.0.0.1", port)
        self._process = f"f{os.getpid()}"
        self._counts = {"http": 0, "grpc": 0}
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
        flags: str = "--",
        client: str = "",
    ) -> None:
        """A request ended now. `grpc` is None for one over HTTP.

        `flags` are ABANDONED where the client left it, HELD and UNREACHED where its server was lost.
        """
        protocol = "http" if grpc is None else "grpc"
        self._counts[protocol] += 1
        self.handled_bytes += size + answer_size
        end_us = time.time_ns() // 1000
        start_us = end_us - int((time.monotonic() - started_s) * 1e6)
        line = (
            f"{self._secret} {protocol}:{self._process} {self._counts[protocol]} {endpoint} {backend.host} "
            f"{backend.grpc_port} {http} {'-' if grpc is None else grpc} "
            f"{flags}/-1/{client or '-'} {size} {answer_size} "
            f"{start_us} {end_us}"
        )
        with contextlib.suppress(OSError):
            self._socket.sendto(line.encode(), self._address)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
