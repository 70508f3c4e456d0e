"""Calls of one server over HTTP, past any gateway: over its Unix socket where it has one."""

import http.client
import json
from collections.abc import Mapping
from typing import Any

from controlplane.domain.fleet import Backend, Server
from controlplane.sockets import connect


def call(
    server: Server | Backend,
    method: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    *,
    port: int | None = None,
    timeout_s: float = 60.0,
) -> tuple[int, bytes]:
    """Status and body of one answer, on a connection of its own; `port` is HTTP's where none is given."""
    connection = http.client.HTTPConnection("triton")
    connection.sock = connect(server.host, port or server.http_port, timeout_s)
    try:
        # A connection that stays open keeps Triton from ending.
        connection.request(method, path, body or None, {"Connection": "close", **(headers or {})})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def get(server: Server | Backend, path: str) -> Any:
    """The JSON of a successful answer; None where it is empty."""
    return _content(*call(server, "GET", path, timeout_s=10.0))


def post(server: Server | Backend, path: str, content: object) -> Any:
    """The JSON of a successful answer to JSON."""
    return _content(*call(server, "POST", path, json.dumps(content).encode()))


def _content(status: int, text: bytes) -> Any:
    if status != 200:
        raise http.client.HTTPException(f"{status}: {text!r}")
    return json.loads(text or b"null")
