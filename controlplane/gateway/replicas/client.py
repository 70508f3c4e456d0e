"""A replica's control port."""

from __future__ import annotations

import http.client
from http import HTTPStatus

from controlplane.domain.errors import GatewayError
from controlplane.domain.fleet import Backend
from controlplane.gateway.replicas import wire
from controlplane.gateway.replicas.wire import Table

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
        self._last = wire.NOTHING
        self._headers = {"Authorization": f"Bearer {token}", "Connection": "close"}

    def table(self) -> Table:
        """Return the replica's routes."""
        status, body = self._call("GET", wire.ROUTES, b"", {"If-None-Match": str(self._last.generation)})
        if status != HTTPStatus.NOT_MODIFIED:
            self._last = wire.table_of(self._checked(status, body))
        return self._last

    def put(self, table: Table) -> None:
        """Replace its routes. Raises NotNewer where it has newer ones."""
        status, body = self._call("PUT", wire.ROUTES, wire.table_json(table), {})
        if status == HTTPStatus.CONFLICT:
            raise NotNewer(f"gateway {self.address} has routes of generation {table.generation} or later")
        self._checked(status, body)
        self._last = table

    def in_flight(self, backend: Backend) -> int:
        """Return the unanswered requests of a server at this replica."""
        return int(self._checked(*self._call("POST", wire.IN_FLIGHT, wire.backend_json(backend), {})))

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
