"""Clients of the gateway's monitor, over its socket: queries, and a follower of the request log."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlplane.domain.observation import LatencyWindow
from controlplane.monitor.records import Record, parse
from controlplane.sockets import ask


@dataclass(frozen=True, slots=True)
class Counts:
    """The received lines of the gateway's log, and the lost ones.

    `unlogged` counts requests that HAProxy does not log; None before its counters were read.
    """

    received: int
    lost: int
    unlogged: int | None


class GatewayTelemetry:
    """Implements the port `Telemetry`. Raises GatewayError where the monitor does not answer."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def windows(self, seconds: float) -> Mapping[str, LatencyWindow]:
        """Return the requests that ended within the last `seconds` (at most 120), by endpoint."""
        said = self._ask({"windows": seconds})
        return {row["endpoint"]: LatencyWindow(**row) for row in said}

    def counts(self) -> Counts:
        """Return how complete the log is."""
        return Counts(**self._ask({"counts": True}))

    def _ask(self, question: object) -> Any:
        return ask(self._path, question, of="the gateway's monitor")


FOLLOW = {"follow": True}
"""The query whose answer does not end: each line of the log, and an empty one now and then."""

QUERY = json.dumps(FOLLOW)

BEAT_S = 0.2
"""The longest time between two lines to a follower."""

AGAIN_S = 0.2
"""The interval at which a follower tries to connect again."""

_DEAF_S = 3 * BEAT_S
_AT_ONCE_BYTES = 2**18


class RequestLog:
    """Follows the log from now on, and connects again after a restart of the monitor.

    `follow` opens a stream that does not block, or returns None where no monitor listens.

    It has no thread, which the monitor's fifty messages a second would wake. Lines wait in the socket, and
    then in the monitor, until the next `take`.
    """

    def __init__(self, follow: Callable[[], socket.socket | None]) -> None:
        self._follow = follow
        self._stream = follow()
        self._rest = b""
        self._began_s: float | None = None
        self._heard_s = 0.0

    def take(self) -> list[Record]:
        """Return the requests that ended since the call before, in the order of their lines.

        Leaves out requests that the gateway refused, and those that were abandoned before a server had them.
        """
        if self._stream is None:
            self._stream = self._follow()
        records = map(parse, self._lines())
        told = (r for r in records if r is not None and r.endpoint)
        return [r for r in told if r.held or (not r.abandoned and (r.server or r.failed))]

    @property
    def heard_since_s(self) -> float:
        """The time (monotonic) since which no line is missing; now, without a connection."""
        now = time.monotonic()
        began = self._began_s
        return now if began is None or now - self._heard_s > _DEAF_S else began

    def close(self) -> None:
        """Stop following."""
        if self._stream is not None:
            self._stream.close()
        self._stream, self._rest, self._began_s = None, b"", None

    def _lines(self) -> list[bytes]:
        """Read all complete lines that wait. Closes the stream at its end."""
        parts = [self._rest]
        ended = False
        while self._stream is not None and not ended:
            try:
                parts.append(self._stream.recv(_AT_ONCE_BYTES))
                ended = not parts[-1]
            except BlockingIOError:
                break  # a monitor that is held up has lost nothing yet
            except OSError:
                ended = True
        if any(parts[1:]):
            self._heard_s = time.monotonic()
            if self._began_s is None:
                self._began_s = self._heard_s
        *lines, self._rest = b"".join(parts).split(b"\n")
        if ended:
            self.close()
        return lines


def local(path: Path) -> socket.socket | None:
    """Open a stream of every line from now on; None where no monitor listens."""
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        stream.setblocking(False)
        stream.connect(str(path))
        stream.sendall(QUERY.encode() + b"\n")
    except OSError:
        stream.close()
        return None
    return stream
