"""Queries to the facade: one JSON object a line each way, over a Unix socket."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from controlplane.domain.errors import GatewayError


class Unreachable(GatewayError):
    """The facade does not answer: it is being restarted, and reads the files itself when it is back."""


class Silent(Unreachable):
    """The facade runs and does not answer in time: it may hang with open calls."""


def ask(path: Path, request: Mapping[str, Any], *, timeout_s: float = 5.0) -> Mapping[str, Any]:
    """The facade's answer to one request. Raises Unreachable, and Silent after `timeout_s` at the latest."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
            stream.settimeout(timeout_s)
            stream.connect(str(path))
            stream.sendall(json.dumps(request).encode() + b"\n")
            answer = stream.makefile("rb").readline()
    except (TimeoutError, BlockingIOError) as error:
        # The latter when the queue of connections is full.
        raise Silent(f"the facade is there and does not answer on {path}: {error}") from error
    except OSError as error:
        raise Unreachable(f"the facade does not answer on {path}: {error}") from error
    if not answer:
        raise Unreachable(f"the facade closed {path} without an answer")
    decoded: Mapping[str, Any] = json.loads(answer)
    return decoded
