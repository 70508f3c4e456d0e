"""What happened to a fleet and why, kept over restarts: SQLite, bounded, readable while it is written.

A disk that is full must not stop the guard: what cannot be written is counted and the loop goes on.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlplane.domain.errors import EngineError

_KEEP = 20_000
_PRUNE_EVERY = 256
_SELECT = "SELECT at_s, level, kind, subject, reason FROM events"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at_s REAL NOT NULL, level TEXT NOT NULL, kind TEXT NOT NULL, subject TEXT NOT NULL, reason TEXT NOT NULL
);
"""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened; `at_s` is seconds since the epoch."""

    at_s: float
    level: str
    kind: str
    subject: str
    reason: str


class History:
    """The newest events of one fleet. One writer, any number of readers."""

    def __init__(self, path: Path, *, keep: int = _KEEP) -> None:
        self._path = path
        self._keep = keep
        self._written = 0
        self.lost = 0

    def write(self, event: Event) -> None:
        """Append an event; where the disk refuses, `lost` grows."""
        row = (event.at_s, event.level, event.kind, event.subject, event.reason)
        try:
            with self._open() as database:
                database.execute(
                    "INSERT INTO events (at_s, level, kind, subject, reason) VALUES (?, ?, ?, ?, ?)", row
                )
                self._written += 1
                if self._written % _PRUNE_EVERY == 1:
                    newest = "SELECT COALESCE(MAX(id), 0) FROM events"
                    database.execute(f"DELETE FROM events WHERE id <= ({newest}) - ?", (self._keep,))
        except (sqlite3.Error, OSError):
            self.lost += 1

    def events(self, *, since_s: float = 0.0, limit: int = 1000) -> tuple[Event, ...]:
        """The newest `limit` events from `since_s` on, oldest first. Raises EngineError for a broken file."""
        rows = self._read(f"{_SELECT} WHERE at_s >= ? ORDER BY id DESC LIMIT ?", (since_s, limit))
        return tuple(Event(*row) for row in reversed(rows))

    def latest(self, kind: str, levels: Sequence[str]) -> dict[str, Event]:
        """Subject -> its newest event of this kind and one of these levels. Raises EngineError likewise."""
        marks = ", ".join("?" for _ in levels)
        newest = f"SELECT MAX(id) FROM events WHERE kind = ? AND level IN ({marks}) GROUP BY subject"
        rows = self._read(f"{_SELECT} WHERE id IN ({newest})", (kind, *levels))
        return {event.subject: event for event in (Event(*row) for row in rows)}

    def _read(self, query: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        if not self._path.exists():
            return []
        try:
            with self._open() as database:
                return database.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise EngineError(f"{self._path}: cannot be read: {error}; delete it to begin anew") from error

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._path, timeout=5.0)
        try:
            # No wait for the disk: after a power cut the last events may be missing, the file is whole.
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.executescript(_SCHEMA)
            with connection:
                yield connection
        finally:
            connection.close()
