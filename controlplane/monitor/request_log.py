"""Every request as it ends, for who acts on it: the monitor's own lines, followed over its socket."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections import deque
from pathlib import Path

from controlplane.monitor.records import Record, parse

FOLLOW = {"follow": True}
"""The question whose answer does not end: each line, and an empty one now and then."""

BEAT_S = 0.2
"""The monitor is never silent longer towards a follower."""

AGAIN_S = 0.1
"""How soon a follower comes back to a monitor that was gone."""

_DEAF_S = 3 * BEAT_S
_KEEP = 200_000


class RequestLog:
    """Follows in a thread of its own, from now on, and follows again whenever the monitor is back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: deque[bytes] = deque(maxlen=_KEEP)
        self._closed = threading.Event()
        self._began_s: float | None = None
        self._heard_s = 0.0
        threading.Thread(target=self._follow, name="request-log", daemon=True).start()

    def take(self) -> list[Record]:
        """The requests that ended since the call before, in the order of their lines.

        Without those that met no server, and those whose clients left.
        """
        taken = []
        with contextlib.suppress(IndexError):
            while True:
                record = parse(self._lines.popleft())
                if record is not None and record.endpoint and record.port and not record.abandoned:
                    taken.append(record)
        return taken

    @property
    def heard_since_s(self) -> float:
        """Since when (monotonic) no line can have passed unheard: now, where nothing is heard."""
        now = time.monotonic()
        began = self._began_s
        return now if began is None or now - self._heard_s > _DEAF_S else began

    def close(self) -> None:
        """Stop following."""
        self._closed.set()

    def _follow(self) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
                stream.settimeout(_DEAF_S)
                stream.connect(str(self._path))
                stream.sendall(json.dumps(FOLLOW).encode() + b"\n")
                self._read(stream)
            self._began_s = None
            self._closed.wait(AGAIN_S)

    def _read(self, stream: socket.socket) -> None:
        rest = b""
        while not self._closed.is_set():
            try:
                part = stream.recv(2**16)
            except TimeoutError:
                continue  # a monitor that is held up has lost nothing yet
            if not part:
                return
            self._heard_s = time.monotonic()
            if self._began_s is None:
                self._began_s = self._heard_s
            *lines, rest = (rest + part).split(b"\n")
            self._lines.extend(lines)
