"""What the fleet itself asked of each server, which is left out of what clients read of its counters.

A file for each server, since servers are asked by several processes, each of them by one at a time. Each line
is a list of counters to add: to append one costs a fifth of writing the file anew.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from controlplane.domain.errors import InputError, TrisectError
from controlplane.domain.observation import Entry, combine
from controlplane.files.reading import exists, read_bytes
from controlplane.files.writing import append_line, write_derived

_MOST_FILES = 1024
"""Those of servers that ended long ago are removed beyond."""

_LONGEST = 16384
"""Bytes from which on the lines become one again."""

Discounts = dict[tuple[str, str], Entry]
"""Counters by model and version."""


def read_discounts(folder: Path, server: str) -> Discounts:
    """Return what is left out of a server's counters; nothing without a file that can be read."""
    found: Discounts = {}
    with contextlib.suppress(InputError):
        for line in read_bytes(_file(folder, server)).splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):  # a crash may have cut it
                _add(found, json.loads(line))
    return found


def add_discounts(folder: Path, server: str, counters: Sequence[Entry] | None) -> None:
    """Add counters to a server's, or forget them all; a full disk changes nothing."""
    file = _file(folder, server)
    with contextlib.suppress(OSError, TrisectError):
        if not exists(file):
            folder.mkdir(exist_ok=True, mode=0o700)
            _remove_old(folder)
        elif counters is not None and file.stat().st_size < _LONGEST:
            append_line(file, list(counters))
            return
        kept = {} if counters is None else read_discounts(folder, server)
        _add(kept, counters or ())
        write_derived(file, json.dumps(list(kept.values())))


def _add(found: Discounts, counters: Sequence[Entry]) -> None:
    for entry in counters:
        key = entry["name"], entry["version"]
        found[key] = combine(found.get(key, {}), entry)


def _remove_old(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):  # others write here too
        for old in sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)[:-_MOST_FILES]:
            old.unlink()


def _file(folder: Path, server: str) -> Path:
    return folder / f"{quote(server, safe='')}.json"
