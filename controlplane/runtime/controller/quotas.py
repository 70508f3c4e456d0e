"""What delays servers: their core or their quota, read in a thread."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import Delays, QuotaUse, Server
from controlplane.ports import Launcher

EVERY_S = 1.0
HURRIED_S = 0.1
WINDOW_S = 0.25
"""The shortest time that delays are computed over: some 25 periods of a quota."""
_STALE_S = 3.0


class Quotas:
    """The recent delays of each server, from readings of its counters."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="quotas")
        self._lock = threading.Lock()
        self._asked_s: dict[str, float] = {}
        self._readings: dict[str, deque[tuple[float, QuotaUse]]] = {}
        self._delays: dict[str, tuple[float, Delays]] = {}

    def ask(self, server: Server, now: float, *, hurried: bool) -> None:
        """Start to read the server's counters, unless the last reading is recent or still under way."""
        if now - self._asked_s.get(server.name, -math.inf) >= (HURRIED_S if hurried else EVERY_S):
            self._asked_s[server.name] = math.inf  # an engine that is away may answer late
            self._pool.submit(self._read, server)

    def delays(self, name: str, now: float) -> Delays | None:
        """Return what delayed the server recently; None where that is not known."""
        with self._lock:
            at, delays = self._delays.get(name, (-math.inf, None))
        return delays if now - at < _STALE_S else None

    def forget(self, name: str) -> None:
        """Drop the data of a stopped server."""
        for kept in (self._asked_s, self._readings, self._delays):
            kept.pop(name, None)

    def close(self) -> None:
        """End the thread."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _read(self, server: Server) -> None:
        now = time.monotonic()
        try:
            used = self._launcher.quota_use(server)
        except EngineError:
            return
        finally:
            self._asked_s[server.name] = now
        if used is None:
            return
        readings = self._readings.setdefault(server.name, deque())
        readings.append((now, used))
        while len(readings) > 2 and now - readings[1][0] >= WINDOW_S:
            readings.popleft()
        delays = used.since(readings[0][1])
        if delays is not None:
            with self._lock:
                self._delays[server.name] = now, delays
