"""The facade's telemetry: a line (`controlplane.monitor.records`) for what HAProxy cannot time."""

from __future__ import annotations

import contextlib
import os
import time

from controlplane.domain.errors import declined_by_policy
from controlplane.domain.fleet import Backend

_OK, _INTERNAL, _UNAVAILABLE = 0, 13, 14
_WORDS_BYTES = 1000
"""An error's words stand at the beginning of a streamed answer."""
ABANDONED, HELD, UNREACHED = "C-", "SH", "SC"
"""As HAProxy's flags: the client left, the server was lost with the request, no connection opened."""


class Records:
    """Writes and forgets: a monitor that is away for long loses lines, and sees by the count how many."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._process = f"f{os.getpid()}"
        self._counts = {"http": 0, "grpc": 0}
        self.handled_bytes = 0
        """Of all inferences so far, both ways."""

    def message(self, endpoint: str, backend: Backend, started_s: float, size: int, answer: bytes) -> None:
        """A streamed message was answered; `started_s` is of the monotonic clock."""
        failed = answer[:1] == b"\x0a" and answer[1:2] not in (b"", b"\x00")
        declined = failed and declined_by_policy(answer[:_WORDS_BYTES].decode(errors="replace"))
        status = (_UNAVAILABLE if declined else _INTERNAL) if failed else _OK
        self.request(endpoint, backend, started_s, size, len(answer), http=200, grpc=status)

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
            f"{protocol}:{self._process} {self._counts[protocol]} {endpoint} {backend.host} "
            f"{backend.grpc_port} {http} {'-' if grpc is None else grpc} "
            f"{flags}/-1/{client or '-'} {size} {answer_size} "
            f"{start_us} {end_us}\n"
        )
        with contextlib.suppress(OSError):
            os.write(self._pipe, line.encode())

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._pipe)
