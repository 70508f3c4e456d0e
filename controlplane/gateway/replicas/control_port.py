"""A replica's control port: what passes over it, and its client."""

from __future__ import annotations

import http.client
import socket
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated

from pydantic import Field, TypeAdapter

from controlplane.domain.errors import GatewayError
from controlplane.domain.fleet import Backend, InFlight, Route
from controlplane.domain.observation import Entry

ROUTES = "/routes"
READY = "/ready"
IN_FLIGHT = "/in-flight"
DISCOUNTS = "/discounts"
MONITOR = "/monitor"
"""A query of the replica's monitor, whose answer may have no end."""

TERM_BITS = 32
"""The bits of a generation below the leader's term, so that a later leader's routes are newer."""


@dataclass(frozen=True, slots=True)
class Table:
    """All routes of a replica. Every commit has a higher generation; 0 is a replica without routes yet."""

    generation: Annotated[int, Field(ge=0)]
    routes: dict[str, Route]


@dataclass(frozen=True, slots=True)
class Discount:
    """What is left out of a server's counters beside what was before; nothing any more where it is None."""

    server: str
    counters: list[Entry] | None


NOTHING = Table(0, {})

TABLE = TypeAdapter(Table)
BACKEND = TypeAdapter(Backend)
DISCOUNT = TypeAdapter(Discount)
IN_FLIGHT_COUNTS = TypeAdapter(InFlight)

_CONNECT_S = 0.5
_ANSWER_S = 15.0
"""Longer than a replica waits for a HAProxy that restarts."""


class NotNewer(GatewayError):
    """The replica has routes of this generation or a later one: another program committed."""


class ReplicaClient:
    """Calls one replica and remembers its last table. Raises GatewayError where it does not answer.

    Each call has a connection of its own, so nothing has to be closed.
    """

    def __init__(self, address: str, token: str) -> None:
        self.address = address
        self._last = NOTHING
        self._headers = {"Authorization": f"Bearer {token}", "Connection": "close"}

    def table(self) -> Table:
        """Return the replica's routes."""
        status, body = self._call("GET", ROUTES, b"", {"If-None-Match": str(self._last.generation)})
        if status != HTTPStatus.NOT_MODIFIED:
            self._last = TABLE.validate_json(self._checked(status, body))
        return self._last

    def put(self, table: Table) -> None:
        """Replace its routes. Raises NotNewer where it has newer ones."""
        status, body = self._call("PUT", ROUTES, TABLE.dump_json(table), {})
        if status == HTTPStatus.CONFLICT:
            raise NotNewer(f"gateway {self.address} has routes of generation {table.generation} or later")
        self._checked(status, body)
        self._last = table

    def in_flight(self, backend: Backend) -> InFlight:
        """Return the unanswered requests of a server at this replica."""
        answer = self._call("POST", IN_FLIGHT, BACKEND.dump_json(backend), {})
        return IN_FLIGHT_COUNTS.validate_json(self._checked(*answer))

    def discount(self, discount: Discount) -> None:
        """Leave counters out of what its clients read."""
        self._checked(*self._call("POST", DISCOUNTS, DISCOUNT.dump_json(discount), {}))

    def _call(self, method: str, path: str, body: bytes, more: dict[str, str]) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.address, timeout=_CONNECT_S)
        try:
            connection.connect()
            connection.sock.settimeout(_ANSWER_S)
            connection.request(method, path, body, {**self._headers, **more})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise GatewayError(f"gateway {self.address} does not answer: {error}") from error
        finally:
            connection.close()

    def _checked(self, status: int, body: bytes) -> bytes:
        if status == HTTPStatus.UNAUTHORIZED:
            raise GatewayError(f"gateway {self.address} refuses the token")
        if status != HTTPStatus.OK:
            raise GatewayError(f"gateway {self.address}: {body.decode(errors='replace') or status}")
        return body


def monitor_stream(address: str, token: str, query: str) -> socket.socket | None:
    """Return a stream with the answer of a replica's monitor; None where the replica gives none now."""
    host, _, port = address.rpartition(":")
    body = query.encode()
    head = (
        f"POST {MONITOR} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    try:
        stream = socket.create_connection((host, int(port)), timeout=_CONNECT_S)
    except OSError:
        return None
    try:
        stream.sendall(head.encode() + body)
        answered = b""
        # Byte by byte up to the empty line: what follows is the answer.
        while not answered.endswith(b"\r\n\r\n") and (byte := stream.recv(1)):
            answered += byte
        if answered.split(b" ", 2)[1:2] == [b"200"]:
            stream.setblocking(False)
            return stream
    except OSError:
        pass
    stream.close()
    return None
