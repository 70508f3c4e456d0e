"""Queries to the gateway's processes: one JSON value a line each way, over a Unix socket."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from controlplane.domain.errors import GatewayError, is_own_lack


class Unreachable(GatewayError):
    """The process does not answer: it is being restarted, and reads the files itself when it is back."""


class Silent(Unreachable):
    """The process may run and have open calls: it does not answer in time, or cannot be asked now."""


def ask(path: Path, query: object, *, of: str = "the facade", timeout_s: float = 5.0) -> Any:
    """Return the answer to one query. Raises Unreachable, and Silent after `timeout_s` at the latest."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
            stream.settimeout(timeout_s)
            stream.connect(str(path))
            stream.sendall(json.dumps(query).encode() + b"\n")
            answer = stream.makefile("rb").readline()
    except (TimeoutError, BlockingIOError) as error:
        # The latter when the queue of connections is full.
        raise Silent(f"{of} is there and does not answer on {path}: {error}") from error
    except OSError as error:
        if is_own_lack(error):
            raise Silent(f"{of} cannot be asked on {path}: {error}") from error
        raise Unreachable(f"{of} does not answer on {path}: {error}") from error
    try:
        return json.loads(answer)
    except ValueError as error:
        raise Unreachable(f"{of} closed {path} without a whole answer") from error
