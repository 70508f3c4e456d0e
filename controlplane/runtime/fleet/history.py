"""The history of a fleet: its events and its record, in SQLite of bounded size, readable during writes.

A full disk must not stop the guard: lost events are counted and the controller goes on. The supervisor runs
without a controller and does not write to the history, so readers merge its record of restarts. A fleet's
history outlives it, in a file beside its directory, until a fleet of that name ends again.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from controlplane.domain.errors import EngineError, NotNow
from controlplane.domain.observation import BatchStatistics, Event
from controlplane.files.fleets import FleetFiles
from controlplane.files.gateway import read_restarts
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.files.reading import exists

if TYPE_CHECKING:
    from controlplane.runtime.fleet.fleet import Fleet, Outcome

_KEEP = 20_000
_MOST_WAITING = 1000
_KEEP_MINUTES = 50_000
_PRUNE_EVERY = 256
_PATIENCE_S = 5.0
"""The longest wait for another writer; each writes for milliseconds."""
_RETRY_S = 0.01
_AGAIN_S = 1.0
_PRIMARY = 0xFF
"""SQLite's extended error codes have the general one in this byte."""
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_NO_INDEX = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
"""Errors of a reader that cannot make its index of the write-ahead log, as on a full or read-only disk."""
_HOST = "see that its disk works and has room, and that this user may write it and open files"
_SELECT = "SELECT at_s, level, kind, subject, reason FROM events"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at_s REAL NOT NULL, level TEXT NOT NULL, kind TEXT NOT NULL, subject TEXT NOT NULL, reason TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS minutes (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at_s REAL NOT NULL, seconds REAL NOT NULL, partition TEXT NOT NULL, endpoint TEXT NOT NULL,
    percent REAL NOT NULL, requests INTEGER NOT NULL, failed INTEGER NOT NULL, p99_ms REAL,
    counted INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS batches (
    minute INTEGER NOT NULL REFERENCES minutes (id) ON DELETE CASCADE,
    size INTEGER NOT NULL, executions INTEGER NOT NULL,
    input_ns INTEGER NOT NULL, infer_ns INTEGER NOT NULL, output_ns INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS batches_of_minute ON batches (minute);
"""

Key = tuple[str, str]
"""Partition and endpoint."""


class Minute(NamedTuple):
    """About a minute, or less, of one endpoint in one partition, until `at_s` (since the epoch).

    `percent` is the server's share, `batches` the executions by batch size, None where they were not counted;
    `p99_ms` is None without answers.
    """

    at_s: float
    seconds: float
    partition: str
    endpoint: str
    percent: float
    requests: int
    failed: int
    p99_ms: float | None
    batches: Mapping[int, BatchStatistics] | None

    @property
    def key(self) -> Key:
        """The partition and endpoint."""
        return self.partition, self.endpoint


class EventLog:
    """A history's events, written by a separate thread, so that a slow disk does not delay the caller.

    Those that cannot be written, as without a free descriptor, are written later.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._lock = threading.Lock()
        self._waiting: list[Event] = []
        self._flushing = False
        self._closing = threading.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="history")

    def write(self, event: Event) -> None:
        """Queue an event; it is written soon, with the others that wait."""
        with self._lock:
            self._waiting.append(event)
            taken, self._flushing = self._flushing, True
        if taken and not self._closing.is_set():
            return  # one flush is under way, however long the disk refuses
        try:
            self._pool.submit(self._flush)
        except RuntimeError:  # closed: the caller is ending too, and may wait
            self._try()

    def close(self) -> None:
        """Write the queued events, which another writer may delay, and end the thread."""
        self._closing.set()
        self._pool.shutdown()
        self._try()

    def _flush(self) -> None:
        while True:
            with self._lock:
                some_wait = self._flushing = bool(self._waiting)
            if not some_wait or (not self._try() and self._closing.wait(_AGAIN_S)):
                return

    def _try(self) -> bool:
        """Write what waits; return whether that was possible."""
        with self._lock:
            events, self._waiting = self._waiting, []
        if not events or self._history.try_write(*events):
            return True
        with self._lock:
            waiting = [*events, *self._waiting]
            self._waiting = waiting[-_MOST_WAITING:]
            self._history.lost += len(waiting) - len(self._waiting)
        return False


class History:
    """The newest events and minutes of one fleet. Writers wait for each other, readers do not wait."""

    def __init__(self, path: Path, *, keep: int = _KEEP) -> None:
        self._path = path
        self._keep = keep
        self._unpruned = _PRUNE_EVERY
        self.lost = 0

    def write(self, *events: Event) -> None:
        """Append events; where the disk refuses, `lost` grows."""
        if not self.try_write(*events):
            self.lost += len(events)

    def try_write(self, *events: Event) -> bool:
        """Append events; return whether that was possible."""
        rows = [(e.at_s, e.level, e.kind, e.subject, e.reason) for e in events]
        try:
            with self._open() as database:
                database.executemany(
                    "INSERT INTO events (at_s, level, kind, subject, reason) VALUES (?, ?, ?, ?, ?)", rows
                )
                self._unpruned += len(rows)
                if self._unpruned > _PRUNE_EVERY:
                    newest = "SELECT COALESCE(MAX(id), 0) FROM events"
                    database.execute(f"DELETE FROM events WHERE id <= ({newest}) - ?", (self._keep,))
                    self._unpruned = 0
        except (sqlite3.Error, OSError):
            return False
        return True

    def events(self, *, since_s: float = 0.0, limit: int = 1000) -> tuple[Event, ...]:
        """Return the newest `limit` events from `since_s` on, oldest first.

        Raises EngineError for a broken file, NotNow for one that cannot be read now.
        """
        rows = self._read(f"{_SELECT} WHERE at_s >= ? ORDER BY id DESC LIMIT ?", (since_s, limit))
        return tuple(Event(*row) for row in reversed(rows))

    def write_minutes(
        self, minutes: Sequence[Minute], rows: Mapping[Key, int] | None = None
    ) -> dict[Key, int]:
        """Write minutes, over the `rows` that hold earlier versions of them; return the rows by key.

        Where the disk refuses, `lost` grows and the earlier rows are returned.
        """
        before = rows or {}
        made = dict(before)
        try:
            with self._open() as database:
                for one in minutes:
                    *row, batches = one
                    cursor = database.execute(
                        "INSERT OR REPLACE INTO minutes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                        (before.get(one.key), *row, batches is not None),
                    )
                    assert cursor.lastrowid is not None
                    made[one.key] = cursor.lastrowid
                    for size, b in (batches or {}).items():
                        counters = (b.executions, b.compute_input_ns, b.compute_infer_ns, b.compute_output_ns)
                        database.execute(
                            "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?)",
                            (cursor.lastrowid, size, *counters),
                        )
                newest = "SELECT COALESCE(MAX(id), 0) FROM minutes"
                database.execute(f"DELETE FROM minutes WHERE id <= ({newest}) - ?", (_KEEP_MINUTES,))
        except (sqlite3.Error, OSError):
            self.lost += 1
            return dict(before)
        return made

    def minutes(self, since_s: float) -> tuple[Minute, ...]:
        """Return the minutes from `since_s` on, oldest first. Raises as `events` does."""
        batches: dict[int, dict[int, BatchStatistics]] = {}
        wanted = "SELECT id FROM minutes WHERE at_s >= ?"
        rows = self._read(f"SELECT * FROM batches WHERE minute IN ({wanted})", (since_s,))
        for minute, size, *counters in rows:
            batches.setdefault(minute, {})[size] = BatchStatistics(*counters)
        rows = self._read("SELECT * FROM minutes WHERE at_s >= ? ORDER BY id", (since_s,))
        return tuple(
            Minute(*(*told, batches.get(minute, {}) if counted else None)) for minute, *told, counted in rows
        )

    def latest(self, kind: str, levels: Sequence[str]) -> dict[str, Event]:
        """Return each subject's newest event of a kind and levels. Raises as `events` does."""
        marks = ", ".join("?" for _ in levels)
        newest = f"SELECT MAX(id) FROM events WHERE kind = ? AND level IN ({marks}) GROUP BY subject"
        rows = self._read(f"{_SELECT} WHERE id IN ({newest})", (kind, *levels))
        return {event.subject: event for event in (Event(*row) for row in rows)}

    def _read(self, query: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        if not exists(self._path):
            return []
        try:
            try:
                with self._open() as database:
                    return database.execute(query, values).fetchall()
            except sqlite3.OperationalError as error:
                # Each writer leaves no log, unless it was killed: without one the file has everything.
                log = self._path.with_name(f"{self._path.name}-wal")
                if _code(error) not in _NO_INDEX or (log.exists() and log.stat().st_size):
                    raise
                # Where no index can be made, no other process can write either.
                unchanging = f"{self._path.resolve().as_uri()}?immutable=1"
                with contextlib.closing(sqlite3.connect(unchanging, uri=True)) as database:
                    return database.execute(query, values).fetchall()
        except sqlite3.Error as error:
            problem = f"{self._path}: cannot be read"
            if _code(error) in _DAMAGED:
                raise EngineError(f"{problem}: {error}; delete it to start again") from error
            busy = _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            raise NotNow(f"{problem} now: {error}; {'try again' if busy else _HOST}") from error

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._path, timeout=_PATIENCE_S)
        try:
            # No wait for the disk: a power cut may lose the last events, and leaves the file intact.
            _write_ahead(connection)
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute("PRAGMA foreign_keys=ON")
            connection.executescript(_SCHEMA)
            with connection:
                yield connection
        finally:
            connection.close()


def _code(error: sqlite3.Error) -> int:
    """Return SQLite's general code of an error; 0 for an error of the module itself."""
    return getattr(error, "sqlite_errorcode", 0) & _PRIMARY


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Set the journal mode; SQLite reports another connection's switch at once, without its own time-out."""
    end_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() >= end_s:
                raise
            time.sleep(_RETRY_S)


_KEPT_EVENTS = 1000
_KEPT_FLEETS = 20
"""Histories of ended fleets."""


def restarts(files: FleetFiles) -> tuple[Event, ...]:
    """Return the gateway's recent restarts of processes that died, oldest first."""
    told = read_restarts(GatewayPaths.of(files.gateway).restarts)
    return tuple(Event(one.at_s, "warning", "restart", one.role, one.reason) for one in told)


def events(files: FleetFiles, *, since_s: float, limit: int) -> tuple[Event, ...]:
    """Return the newest `limit` events from `since_s` on, oldest first, also of a fleet that has ended.

    Raises EngineError for a broken history.
    """
    if not files.exists() and exists(files.ended):
        return History(files.ended).events(since_s=since_s, limit=limit)
    told = History(files.history).events(since_s=since_s, limit=limit)
    again = (event for event in restarts(files) if event.at_s >= since_s)
    return tuple(sorted((*told, *again), key=lambda event: event.at_s)[-limit:])


def destroy(fleet: Fleet) -> Outcome:
    """End a fleet and keep its history, including the end. Raises as `Fleet.destroy` does."""
    from controlplane.control.converge.actions import Stop
    from controlplane.report.words import counted

    known, told = fleet.files.exists(), tuple[Event, ...]()
    if known:
        with contextlib.suppress(EngineError):
            told = events(fleet.files, since_s=0.0, limit=_KEPT_EVENTS)
    outcome = fleet.destroy()
    if known or outcome.actions:
        stopped = counted(sum(isinstance(a, Stop) for a in outcome.actions), "server")
        end = Event(fleet.clock.wall(), "info", "destroy", fleet.name, f"by hand: {stopped} stopped")
        with contextlib.suppress(OSError):
            fleet.files.ended.unlink(missing_ok=True)
            History(fleet.files.ended).write(*told, end)
            kept = fleet.files.ended.parent.glob("*.sqlite")
            for old in sorted(kept, key=lambda path: path.stat().st_mtime)[:-_KEPT_FLEETS]:
                old.unlink()
    return outcome
