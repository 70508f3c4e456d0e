"""The content of a directory as a value."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link to an absolute path."""

    target: str


@dataclass(frozen=True, slots=True)
class Tree:
    """Relative path, parts joined by '/' -> the text of a file, or a link."""

    entries: Mapping[str, str | Link]

    @property
    def content_hash(self) -> str:
        """SHA-256 of every path with its text or target: equal trees, equal hashes."""
        listed = [
            [path, "link", entry.target] if isinstance(entry, Link) else [path, "text", entry]
            for path, entry in sorted(self.entries.items())
        ]
        return hashlib.sha256(json.dumps(listed).encode()).hexdigest()
