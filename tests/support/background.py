"""Work in a thread or a process beside a test, and waiting for what must become true."""

import contextlib
import itertools
import os
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, TypeVar

Found = TypeVar("Found")


def until(condition: Callable[[], Found], deadline_s: float = 60.0, what: str = "waited in vain") -> Found:
    """Wait for what must become true, and return it."""
    deadline = time.monotonic() + deadline_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what}: not in {deadline_s:g} s"
        time.sleep(0.02)
    return found


@contextlib.contextmanager
def running(command: Sequence[str], **how: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process that is killed at the end of the block."""
    with subprocess.Popen(command, **how) as process:
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Within, a process stands still."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def meanwhile(*works: Callable[[threading.Event], object]) -> Iterator[None]:
    """Work in threads inside the context; each ends soon after its event is set."""
    stop = threading.Event()
    threads = [threading.Thread(target=work, args=(stop,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


class Background(ABC):
    """Runs `_run` in threads inside the context; it returns soon after `_stop` is set."""

    def __init__(self, count: int = 1) -> None:
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(count)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    @abstractmethod
    def _run(self) -> None:
        """Work until `_stop` is set."""


class Clients(Background):
    """Clients that each send one request after another.

    `answered` has the answers of each, `failed` the time (monotonic) and the error of each failure.
    """

    def __init__(self, count: int, pause_s: float = 0.0) -> None:
        super().__init__(count)
        self.pause_s = pause_s
        self.answered = [0] * count
        self.failed: list[tuple[float, str]] = []
        self._numbers = itertools.count()

    @abstractmethod
    def call(self, number: int) -> Callable[[], object]:
        """What this client sends again and again; it raises where that fails."""

    @property
    def done(self) -> int:
        """All that was answered."""
        return sum(self.answered)

    def await_more(self, count: int, deadline_s: float = 90.0) -> None:
        """Return once so many more requests were answered."""
        wanted = self.done + count
        until(lambda: self.done >= wanted, deadline_s, f"{count} more answers")

    def _run(self) -> None:
        number = next(self._numbers)
        call = self.call(number)
        while not self._stop.wait(self.pause_s):
            try:
                call()
                self.answered[number] += 1
            except Exception as error:
                self.failed.append((time.monotonic(), f"{type(error).__name__}: {error}"))
