"""The facade's telemetry: a line (`controlplane.monitor.records`) for what HAProxy cannot time."""

from __future__ import annotations

import contextlib
import os
import time

from controlplane.domain.errors import declined_by_policy
from controlplane.domain.fleet import Backend

_OK, _INTERNAL, _UNAVAILABLE = 0, 13, 14
UNLOADED = "unloaded"
"""In the place of the gRPC status: the server had the model no longer."""
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

    def request(
        self,
        endpoint: str,
        backend: Backend,
        started_s: float,
        sizes: tuple[int, int],
        *,
        http: int = 200,
        grpc: int | None = None,
        flags: str = "--",
        unloaded: bool = False,
        client: str = "",
    ) -> None:
        """A request ended now; `started_s` is monotonic, `sizes` are those of it and of its answer.

        `http` and `grpc` are its statuses; one over HTTP has no other. `flags` are ABANDONED where the client
        left it, HELD and UNREACHED where its server was lost. `unloaded`: its server had the model no longer.
        """
        protocol = "http" if grpc is None else "grpc"
        self._counts[protocol] += 1
        self.handled_bytes += sum(sizes)
        end_us = time.time_ns() // 1000
        start_us = end_us - int((time.monotonic() - started_s) * 1e6)
        line = (
            f"{protocol}:{self._process} {self._counts[protocol]} {endpoint} {backend.instance} "
            f"- {http} {UNLOADED if unloaded else '-' if grpc is None else grpc} "
            f"{flags}/-1/{client or '-'} {sizes[0]} {sizes[1]} "
            f"{start_us} {end_us}\n"
        )
        with contextlib.suppress(OSError):
            os.write(self._pipe, line.encode())

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._pipe)


def status_of(error: str) -> int:
    """Return the gRPC status of a streamed answer with this error, empty for none."""
    if not error:
        return _OK
    return _UNAVAILABLE if declined_by_policy(error) else _INTERNAL
