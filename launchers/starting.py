"""What is being started by this program: one start per name at a time, no port given out twice."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from launchers.ports import free_ports
from launchers.triton import ServerPorts

ATTEMPTS = 5
"""How often a start is tried when it failed by chance, with other ports each time."""

BAD_LUCK = "somebody else took its ports, or Triton aborted in a race of its own"
"""What each of them met with."""


class Starting:
    """Shared by the threads that start servers side by side."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of_name: dict[str, threading.Lock] = {}
        self._ports: set[int] = set()

    def names(self) -> frozenset[str]:
        """Whose start is under way."""
        with self._lock:
            return frozenset(name for name, lock in self._of_name.items() if lock.locked())

    @contextlib.contextmanager
    def one_at_a_time(self, name: str) -> Iterator[None]:
        """Hold back others who start the same name."""
        with self._lock:
            lock = self._of_name.setdefault(name, threading.Lock())
        with lock:
            yield

    @contextlib.contextmanager
    def ports(self) -> Iterator[ServerPorts]:
        """Three free ports that no other start of this program gets meanwhile."""
        with self._lock:
            ports = free_ports(self._ports)
            mine = {ports.http, ports.grpc, ports.metrics}
            self._ports |= mine
        try:
            yield ports
        finally:
            with self._lock:
                self._ports -= mine
