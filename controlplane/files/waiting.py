"""Waiting: for the file lock of another command, and for a condition."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from controlplane.domain.errors import EngineError, FleetBusy, GatewayError


@contextlib.contextmanager
def locked(path: Path, patience_s: float = 30.0, busy: str | None = None) -> Iterator[None]:
    """Hold a lock within. Raises GatewayError where another command holds it for longer than `patience_s`.

    Of a fleet's lock FleetBusy with the message `busy`, and EngineError where the disk refuses.
    """
    lock = FileLock(path, timeout=patience_s)
    try:
        lock.acquire()
    except Timeout as error:
        if busy is not None:
            raise FleetBusy(busy) from None
        raise GatewayError(f"another command holds {lock.lock_file}; try again when it has ended") from error
    except OSError as error:
        kind = GatewayError if busy is None else EngineError
        raise kind(f"{lock.lock_file}: cannot be held: {error.strerror}") from error
    try:
        yield
    finally:
        lock.release()


def is_free(path: Path) -> bool:
    """Return whether this lock's file is there and no process holds it: its holder died."""
    try:
        with path.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def wait_until(condition: Callable[[], bool], *, deadline_s: float, interval_s: float = 0.02) -> bool:
    """Poll `condition` until it holds or `deadline_s` have passed; return whether it held."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(interval_s)
    return True
