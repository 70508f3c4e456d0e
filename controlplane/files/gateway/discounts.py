"""What the fleet itself asked of each server, which is left out of what clients read of its counters.

A file for each server, since servers are asked by several processes, each of them by one at a time.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from controlplane.domain.errors import InputError, TrisectError
from controlplane.domain.observation import Entry, combine
from controlplane.files.reading import read_bytes
from controlplane.files.writing import write_derived

_MOST_FILES = 1024
"""Those of servers that ended long ago are removed beyond."""

Discounts = dict[tuple[str, str], Entry]
"""Counters by model and version."""


def read_discounts(folder: Path, server: str) -> Discounts:
    """Return what is left out of a server's counters; nothing without a file that can be read."""
    with contextlib.suppress(InputError, ValueError, KeyError, TypeError):
        entries = json.loads(read_bytes(_file(folder, server)))
        return {(entry["name"], entry["version"]): entry for entry in entries}
    return {}


def add_discounts(folder: Path, server: str, counters: Sequence[Entry] | None) -> None:
    """Add counters to a server's, or forget them all; a full disk changes nothing."""
    kept = {} if counters is None else read_discounts(folder, server)
    for entry in counters or ():
        key = entry["name"], entry["version"]
        kept[key] = combine(kept.get(key, {}), entry)
    with contextlib.suppress(OSError, TrisectError):
        file = _file(folder, server)
        if not file.exists():
            folder.mkdir(exist_ok=True, mode=0o700)
            _remove_old(folder)
        write_derived(file, json.dumps(list(kept.values())))


def _remove_old(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):  # others write here too
        for old in sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)[:-_MOST_FILES]:
            old.unlink()


def _file(folder: Path, server: str) -> Path:
    return folder / f"{quote(server, safe='')}.json"
