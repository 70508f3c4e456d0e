"""Work in a thread beside a test, and waiting for what must become true."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self


def until(condition: Callable[[], object], deadline_s: float = 60.0, what: str = "waited in vain") -> None:
    """Wait for what must become true."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not in {deadline_s:g} s"
        time.sleep(0.02)


class Background(ABC):
    """Runs `_run` in a thread inside the context; it returns soon after `_stop` is set."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    @abstractmethod
    def _run(self) -> None:
        """Work until `_stop` is set."""
