"""The lines of the gateway's log: each describes one inference, its server, its end and its times.

    <sender> <number> <endpoint> <server> <slot> <http status> <grpc status> <flags> <bytes in> <bytes out>
      <start us> <end us>

HAProxy and the facade write it, into a pipe. The sender is `<protocol>:<process>` and numbers its lines. The
server is an instance (`domain.fleet.instance`), the slot is HAProxy's backend; in lines of earlier versions
they are an address and a port, which name no server. HAProxy's endpoint is `-` for a request that is not an
inference or that it passed to the facade. Its lines have one word more in a traced gateway
(`controlplane.monitor.spans`), then five in an audited one (`controlplane.monitor.audit`). The flags are
HAProxy's two letters, its time to connect and the client, as in `SH/0/shop`; those of earlier versions are
the letters alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from controlplane.render.haproxy import instance_of

FIELDS = 12
"""Words of a line; those of a traced or an audited gateway have more."""
_CANCELLED = "1"
_UNLOADED = "unloaded"
"""Stands in the place of the gRPC status, over HTTP too."""
_LOST = "S"
"""The connection to the server ended or did not open."""
_NEVER_CONNECTED = "-1"
_AT_SERVER = "HD-"
"""Of what a client left: a server worked on it. The last one is the facade's."""
_OWN_ANSWER = "L"
"""Of HAProxy's own answers, only refusals under overload name an endpoint and no server."""
_COMPLETE = "-"
"""The flags of a request that ended as its server wanted."""
_UNAVAILABLE_HTTP, _UNAVAILABLE_GRPC = 503, 14
"""How a Triton declines by policy: its queue is full, or a request waited too long in it. Behind a gate also
where no server was reached."""
_CLIENT_FAULTS_HTTP = 400
SERVER_FAULTS_GRPC = frozenset({2, 4, 8, 13, 14, 15})
"""UNKNOWN, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, INTERNAL, UNAVAILABLE, DATA_LOSS."""


class Record(NamedTuple):
    """One line. `endpoint` is empty if it is not about an inference; then only its number counts.

    `grpc` is None over HTTP and for status OK. `server` is an instance; empty where none was available.
    `ended_s` is since the epoch. `abandoned` means that the client closed the
    connection, `refused` that its partition was overloaded: the gateway or the model's queue policy declined
    it, `unloaded` that the server no longer has the model, since it ends. `held`: it failed or was abandoned,
    and a server had it (behind a gate, an abandoned one does not say which); `lost`: the connection ended
    without an answer. `client` is empty without tokens.
    """

    sender: str
    number: int
    endpoint: str
    server: str
    http: int
    grpc: int | None
    bytes_in: int
    bytes_out: int
    ended_s: float
    latency_ms: float
    abandoned: bool
    refused: bool = False
    unloaded: bool = False
    held: bool = False
    client: str = ""
    lost: bool = False

    def not_after(self, now_s: float) -> Record:
        """Return this record, dated now where it is dated later: the clock was set back since."""
        return self if self.ended_s <= now_s else self._replace(ended_s=now_s)

    @property
    def failed(self) -> bool:
        """Whether the fleet failed; bad, abandoned and refused requests are not failures."""
        return not (self.abandoned or self.refused) and (self.http >= 500 or self.grpc in SERVER_FAULTS_GRPC)

    @property
    def succeeded(self) -> bool:
        """Whether a model answered. A bad request may be answered without its model."""
        return self.http < _CLIENT_FAULTS_HTTP and self.grpc is None


def protocol_of(sender: str) -> str:
    """`http` or `grpc`."""
    return sender.partition(":")[0]


def server_of(line: str, slot: str) -> str:
    """Return the instance of a server, from two words of a line; empty where there was none."""
    return "" if ":" not in line or slot.isdigit() else instance_of(line)


def grpc_status(sender: str, word: str) -> int | None:
    """Return the status that a client got, from the word of a line; None over HTTP."""
    if word == _UNLOADED and protocol_of(sender) == "grpc":
        return _UNAVAILABLE_GRPC
    return int(word) if word.isdigit() else None


def parse(line: bytes) -> Record | None:
    """Parse a line; None if it is not one of the gateway's."""
    words = line.decode(errors="replace").split()
    if len(words) < FIELDS:
        return None
    sender, number, endpoint, server, slot, http, grpc, flags, size, sent, start_us, end_us = words[:FIELDS]
    try:
        if endpoint == "-":
            return Record(sender, int(number), "", "", 0, None, 0, 0, 0.0, 0.0, False)
        ended_us = int(end_us)
        flags, connect_ms, client = (*flags.split("/", 2), _NEVER_CONNECTED, "-")[:3]
        server = server_of(server, slot)
        by_gateway = flags.startswith(_OWN_ANSWER) and not server
        declined = int(http) == _UNAVAILABLE_HTTP or grpc == str(_UNAVAILABLE_GRPC)
        by_server = declined and grpc != _UNLOADED and flags.startswith(_COMPLETE) and bool(server)
        found = Record(
            sender,
            int(number),
            endpoint,
            server,
            int(http),
            grpc_status(sender, grpc) or None,
            int(size),
            int(sent),
            ended_us / 1e6,
            max(0.0, (ended_us - int(start_us)) / 1e3),
            flags.startswith("C") or grpc == _CANCELLED,
            by_gateway or by_server,
            grpc == _UNLOADED,
            client="" if client == "-" else client,
        )
        if found.abandoned:
            return found._replace(held=flags[1:2] in _AT_SERVER)
        if not found.failed:
            return found
        if flags.startswith(_LOST):
            # Once sent, a request that is sent again may end without a connection.
            held = flags[1:2] in "HD" or connect_ms != _NEVER_CONNECTED
            return found._replace(held=held, lost=True)
        return found._replace(held=found.http != _UNAVAILABLE_HTTP and found.grpc != _UNAVAILABLE_GRPC)
    except ValueError:
        return None


@dataclass(slots=True)
class Losses:
    """Lost lines, counted by the gaps in each sender's numbers.

    Lines of one sender may arrive in another order: a late line closes its gap.
    """

    received: int = 0
    lost: int = 0
    ever_lost: int = 0
    """The largest `lost` so far: a counter that Prometheus reads must not fall."""
    _highest: dict[str, int] = field(default_factory=dict)

    def count(self, sender: str, number: int) -> None:
        """Count a line."""
        self.received += 1
        highest = self._highest.get(sender)
        if highest is None:
            self._highest[sender] = number
        elif number > highest:
            self.lost += number - highest - 1
            self.ever_lost = max(self.ever_lost, self.lost)
            self._highest[sender] = number
        elif self.lost:
            self.lost -= 1


BACKENDS = "show stat -1 2 -1"
"""The command for the rows of backends."""

_STATUS = {"g": "200 14", "h": "502 -"}
"""The status that the client sees: UNAVAILABLE over gRPC, a closed connection over HTTP."""
_SENDERS = {"g": "grpc:unlogged", "h": "http:unlogged"}


class Unlogged:
    """Requests that HAProxy ended without a line in its log, counted by its statistics for each backend.

    If a server dies with a reset connection and HAProxy cannot send the request again, HAProxy ends it
    without an answer (over gRPC with REFUSED_STREAM, so that the client sends it again) and without a log
    line. A backend counts its requests (`stot`), those in flight (`scur`) and those that ended with any
    status, also abandoned ones (`req_tot`). The difference is the number of unlogged requests. HAProxy 2.6
    increments `req_tot` where it would write the line.

    With several threads, a request that is just ending may be missing from the difference for a moment, so
    the largest difference counts.
    """

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
