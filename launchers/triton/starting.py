"""The starts in progress in this program: one per name at a time, each with its own ports."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from launchers.triton.ports import free_ports
from launchers.triton.program import ServerPorts

ATTEMPTS = 5
"""Tries of a start that fails by chance, with other ports each time."""

BAD_LUCK = "another process took its ports, or Triton aborted in a race of its own"
"""The reason of a failure by chance."""


class Starting:
    """State of the threads that start servers in parallel."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of_name: dict[str, threading.Lock] = {}
        self._ports: set[int] = set()

    def names(self) -> frozenset[str]:
        """Return the names whose start is in progress."""
        with self._lock:
            return frozenset(name for name, lock in self._of_name.items() if lock.locked())

    @contextlib.contextmanager
    def one_at_a_time(self, name: str) -> Iterator[None]:
        """Let other starts of the same name wait."""
        with self._lock:
            lock = self._of_name.setdefault(name, threading.Lock())
        with lock:
            yield

    @contextlib.contextmanager
    def ports(self) -> Iterator[ServerPorts]:
        """Reserve three free ports for a start."""
        with self._lock:
            ports = free_ports(self._ports)
            mine = {ports.http, ports.grpc, ports.metrics}
            self._ports |= mine
        try:
            yield ports
        finally:
            with self._lock:
                self._ports -= mine
