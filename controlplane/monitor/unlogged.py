"""Requests that HAProxy ended without a line in its log, told by its counters.

What a dead server held and HAProxy cannot send again it ends without an answer where the connection was
reset (over gRPC as REFUSED_STREAM, for the client to send it again), and writes no line of it. A backend
counts what it was given (`stot`), what it has (`scur`) and what it ended with a status of whatever kind, also
where the client had left (`req_tot`): the rest ended so. HAProxy 2.6 counts where it would write the line.

A request that ends just then may be missing from that rest for a moment, where HAProxy has several threads:
the most there ever was is what counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

BACKENDS = "show stat -1 2 -1"
"""The command for the rows that are needed: of backends only."""

_STATUS = {"g": "200 14", "h": "502 -"}
"""What its client makes of it: UNAVAILABLE over gRPC, a connection that was closed over HTTP."""
_SENDERS = {"g": "grpc:unlogged", "h": "http:unlogged"}


class Unlogged:
    """What each backend was given by then and what was told of it, and whose requests it carries."""

    def __init__(self) -> None:
        self.total: int | None = None
        """So many since HAProxy was first asked; None before."""
        self._given: dict[str, int] = {}
        self._told: dict[str, int] = {}
        self._carried: dict[str, str] = {}
        self._numbers: Counter[str] = Counter()

    def lines(
        self, rows: Iterable[Mapping[str, str]], endpoints: Mapping[str, Sequence[str]], now_s: float
    ) -> list[bytes]:
        """The lines that HAProxy owes since it was asked before; none the first time.

        `rows`: what it answers, empty where it does not. `endpoints`: those whose requests go through a
        backend; where they are several, the first one stands for all. Nobody knows how long they took.
        """
        self._carried.update({backend: names[0] for backend, names in endpoints.items()})
        asked = {row["pxname"]: row for row in rows if row["pxname"].startswith(("g_", "h_"))}
        if not asked:
            return []
        given = {backend: int(row["stot"]) for backend, row in asked.items()}
        if any(count < self._given.get(backend, 0) for backend, count in given.items()):
            self._told = {}  # of a HAProxy that is gone: the present one began at nought
        before, known = self._told, self.total is not None
        self._given = given
        self._told = {
            backend: max(before.get(backend, 0), given[backend] - int(row["scur"]) - int(row["req_tot"]))
            for backend, row in asked.items()
        }
        if not known:
            self.total = 0
            return []
        return [
            self._line(backend, now_s)
            for backend, count in self._told.items()
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
