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
        self._mark: object = None
        self._made: tuple[T, ...] = ()

    def get(self) -> T:
        """What `make` returns; it raises what that raises."""
        mark, written_ns = None, 0
        with contextlib.suppress(FileNotFoundError):
            told = os.stat(self._path)
            mark, written_ns = (told.st_mtime_ns, told.st_size, told.st_ino), told.st_mtime_ns
        if not self._made or mark is None or mark != self._mark:
            self._made = (self._make(),)
            self._mark = mark if time.time_ns() - written_ns > _GRAIN_NS else None
        return self._made[0]
