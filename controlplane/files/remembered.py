"""A cache of values that are derived from files, renewed when a file's times change."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")

_GRAIN_NS = 10**9
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
            kept = (mark if time.time_ns() - written_ns > _GRAIN_NS else None, made)
            self._kept = kept
        return kept[1]
