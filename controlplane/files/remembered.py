"""What was made of a file, made anew only where the file may have changed: asking looks at its times."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")

_GRAIN_NS = 10**9
"""Two writes within a file system's grain of time leave the same mark: a file this young is read again."""


class Remembered(Generic[T]):
    """`make()` of one file."""

    def __init__(self, path: Path, make: Callable[[], T]) -> None:
        self._path = path
        self._make = make
        # The file's mark and what was made of it: one value, since threads may ask side by side.
        self._kept: tuple[object, T] | None = None

    def get(self) -> T:
        """What `make` returns; it raises what that raises."""
        mark, written_ns = None, 0
        with contextlib.suppress(FileNotFoundError):
            told = os.stat(self._path)
            mark, written_ns = (told.st_mtime_ns, told.st_size, told.st_ino), told.st_mtime_ns
        kept = self._kept
        if kept is None or mark is None or mark != kept[0]:
            made = self._make()
            kept = (mark if time.time_ns() - written_ns > _GRAIN_NS else None, made)
            self._kept = kept
        return kept[1]
