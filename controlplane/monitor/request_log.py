"""Every request as it ends, for who acts on it: the monitor's own lines, followed over its socket."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

from controlplane.monitor.records import Record, parse

FOLLOW = {"follow": True}
"""The question whose answer does not end: each line, and an empty one now and then."""

BEAT_S = 0.2
"""The monitor is never silent longer towards a follower."""

AGAIN_S = 0.2
"""How soon a follower comes back to a monitor that was gone: it looks at least so often."""

_DEAF_S = 3 * BEAT_S
_AT_ONCE_BYTES = 2**18


class RequestLog:
    """Follows from now on, and again whenever the monitor is back.

    Without a thread, which the monitor's fifty messages a second would wake: what came waits in the socket,
    and beyond that with the monitor, until the next `take`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream = _follow(path)
        self._rest = b""
        self._began_s: float | None = None
        self._heard_s = 0.0

    def take(self) -> list[Record]:
        """The requests that ended since the call before, in the order of their lines.

        Without those that were refused before any server, and those whose clients left.
        """
        if self._stream is None:
            self._stream = _follow(self._path)
        records = map(parse, self._lines())
        told = (r for r in records if r is not None and r.endpoint and not r.abandoned)
        return [r for r in told if r.port or r.failed]

    @property
    def heard_since_s(self) -> float:
        """Since when (monotonic) no line can have passed unheard: now, where nothing is heard."""
        now = time.monotonic()
        began = self._began_s
        return now if began is None or now - self._heard_s > _DEAF_S else began

    def close(self) -> None:
        """Stop following."""
        if self._stream is not None:
            self._stream.close()
        self._stream, self._rest, self._began_s = None, b"", None

    def _lines(self) -> list[bytes]:
        """What waits, whole lines only. At its end the stream is closed."""
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


def _follow(path: Path) -> socket.socket | None:
    """A stream of every line from now on; None where no monitor listens."""
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        stream.setblocking(False)
        stream.connect(str(path))
        stream.sendall(json.dumps(FOLLOW).encode() + b"\n")
    except OSError:
        stream.close()
        return None
    return stream
