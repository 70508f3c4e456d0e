"""Requests that HAProxy ended without a line in its log, counted by its statistics.

If a server dies with a reset connection and HAProxy cannot send the request again, HAProxy ends it without an
answer (over gRPC with REFUSED_STREAM, so that the client sends it again) and without a log line. A backend
counts its requests (`stot`), those in flight (`scur`) and those that ended with any status, also abandoned
ones (`req_tot`). The difference is the number of unlogged requests. HAProxy 2.6 increments `req_tot` where it
would write the line.

With several threads, a request that is just ending may be missing from the difference for a moment, so the
largest difference counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

BACKENDS = "show stat -1 2 -1"
"""The command for the rows of backends."""

_STATUS = {"g": "200 14", "h": "502 -"}
"""The status that the client sees: UNAVAILABLE over gRPC, a closed connection over HTTP."""
_SENDERS = {"g": "grpc:unlogged", "h": "http:unlogged"}


class Unlogged:
    """The unlogged requests of each backend so far, and its endpoints."""

    def __init__(self) -> None:
        self.total: int | None = None
        """The number since the first reading; None before."""
        self._given: dict[str, int] = {}
        self._unlogged: dict[str, int] = {}
        self._carried: dict[str, str] = {}
        self._numbers: Counter[str] = Counter()

    def lines(
        self, rows: Iterable[Mapping[str, str]], endpoints: Mapping[str, Sequence[str]], now_s: float
    ) -> list[bytes]:
        """Return the missing lines since the reading before; none the first time.

        `rows` is HAProxy's answer, empty where it does not answer. `endpoints` has the endpoints of each
        backend; the first one stands for all. The latencies are unknown, so the lines have none.
        """
        self._carried.update({backend: names[0] for backend, names in endpoints.items()})
        by_backend = {row["pxname"]: row for row in rows if row["pxname"].startswith(("g_", "h_"))}
        if not by_backend:
            return []
        given = {backend: int(row["stot"]) for backend, row in by_backend.items()}
        if any(count < self._given.get(backend, 0) for backend, count in given.items()):
            self._unlogged = {}  # a new HAProxy has started, whose counters began at 0
        before, known = self._unlogged, self.total is not None
        self._given = given
        self._unlogged = {
            backend: max(before.get(backend, 0), given[backend] - int(row["scur"]) - int(row["req_tot"]))
            for backend, row in by_backend.items()
        }
        if not known:
            self.total = 0
            return []
        return [
            self._line(backend, now_s)
            for backend, count in self._unlogged.items()
            if backend in self._carried
            for _ in range(count - before.get(backend, 0))
        ]

    def _line(self, backend: str, now_s: float) -> bytes:
        protocol = backend[0]
        number, now_us = self._numbers[protocol], int(1e6 * now_s)
        self._numbers[protocol] += 1
        self.total = (self.total or 0) + 1
        where = f"{_SENDERS[protocol]} {number} {self._carried[backend]} - -"
        return f"{where} {_STATUS[protocol]} SH 0 0 {now_us} {now_us}".encode()
