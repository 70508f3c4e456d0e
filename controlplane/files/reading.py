"""Reading of files that a user names or that lie in a user's folders, and values derived from files."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from controlplane.domain.errors import InputError

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
}
_STREAMS = ("/dev/fd/", "/proc/self/fd/", "/dev/stdin")
"""What the command was started with: its writer is there, or the user is."""


def read_bytes(path: Path, limit_bytes: int | None = None) -> bytes:
    """Return a file's content.

    Raises InputError for a file that is missing (from a FileNotFoundError), cannot be read or is larger, and
    for what is no file: a named pipe without a writer would be waited for without end.
    """
    file = str(path)
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
        if kind in _KINDS and not file.startswith(_STREAMS):
            raise InputError(f"is {_KINDS[kind]}, not a file", file=file)
        with path.open("rb") as stream:
            content = stream.read(-1 if limit_bytes is None else limit_bytes + 1)
    except FileNotFoundError as error:
        raise InputError("no such file", file=file) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=file) from None
    if limit_bytes is not None and len(content) > limit_bytes:
        raise InputError(f"is larger than {limit_bytes // 2**20} MiB", file=file)
    return content


def exists(path: Path) -> bool:
    """Return whether a file or folder is there. Raises OSError where that cannot be seen.

    `Path.exists` is False there from Python 3.14 on, and a fleet whose folder cannot be looked into, as on a
    failed disk, would count as destroyed.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


T = TypeVar("T")

GRAIN_NS = 10**9
"""The resolution of file times. Two writes within it look the same, so a file this young is read again."""


class Remembered(Generic[T]):
    """The value of `make()`, renewed when the file at `path` changes."""

    def __init__(self, path: Path, make: Callable[[], T]) -> None:
        self._path = path
        self._make = make
        # Times and value in one tuple, since several threads may call `get` at once.
        self._kept: tuple[object, T] | None = None

    def get(self) -> T:
        """Return the value, renewed if the file changed. Raises what `make` raises."""
        mark, written_ns = None, 0
        with contextlib.suppress(FileNotFoundError):
            stat = os.stat(self._path)
            mark, written_ns = (stat.st_mtime_ns, stat.st_size, stat.st_ino), stat.st_mtime_ns
        kept = self._kept
        if kept is None or mark is None or mark != kept[0]:
            made = self._make()
            kept = (mark if time.time_ns() - written_ns > GRAIN_NS else None, made)
            self._kept = kept
        return kept[1]
