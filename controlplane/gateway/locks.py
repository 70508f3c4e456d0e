"""The gateway's file locks, which order commands of several processes."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from controlplane.domain.errors import GatewayError

_DEADLINE_S = 30.0


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock within. Raises GatewayError where another command holds it for longer than 30 s."""
    lock = FileLock(path, timeout=_DEADLINE_S)
    try:
        lock.acquire()
    except Timeout as error:
        raise GatewayError(f"another command holds {lock.lock_file}; try again when it has ended") from error
    except OSError as error:
        raise GatewayError(f"{lock.lock_file}: cannot be held: {error.strerror}") from error
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
