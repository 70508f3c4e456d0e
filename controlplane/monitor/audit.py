"""The audit log: a line of JSON for every request that the gateway took or refused."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from controlplane.domain.fleet import name_of
from controlplane.monitor.records import FIELDS, grpc_status, server_of

_MORE_FIELDS = 5
"""The client, its address, and id, method and path of the request: in lines of an audited HAProxy only."""
_LIMIT_BYTES = 16 * 2**20
_KEPT = 4


def entry(line: bytes) -> dict[str, object] | None:
    """Return what a line says; None for one without the fields, such as the facade's."""
    words = line.decode(errors="replace").split()
    if len(words) - FIELDS not in (_MORE_FIELDS, _MORE_FIELDS + 1):  # with a trace's context before them
        return None
    protocol, _, _ = words[0].partition(":")
    sender, _, endpoint, server, backend, http, grpc, flags, size, sent, start_us, end_us = words[:FIELDS]
    client, address, request, method, path = (None if word == "-" else word for word in words[-_MORE_FIELDS:])
    return {
        "at": datetime.fromtimestamp(int(end_us) / 1e6, UTC).isoformat(timespec="milliseconds"),
        "client": client,
        "address": address,
        "request": request,
        "protocol": protocol,
        "method": method,
        "path": path,
        "endpoint": None if endpoint == "-" else endpoint,
        "server": name_of(server_of(server, backend)) or None,
        "http": int(http) if http.isdigit() else None,
        "grpc": grpc_status(sender, grpc),
        "flags": flags.partition("/")[0],
        "bytes_in": int(size),
        "bytes_out": int(sent),
        "ms": round((int(end_us) - int(start_us)) / 1e3, 3),
    }


class AuditLog:
    """A file that starts anew at a limit; four earlier ones stay. A full disk costs lines, not requests."""

    def __init__(self, path: Path, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._path = path
        self._limit_bytes = limit_bytes

    def take(self, lines: Sequence[bytes]) -> None:
        """Append the lines of the gateway's log that are requests."""
        entries = []
        for line in lines:
            with contextlib.suppress(ValueError, OverflowError, OSError):
                if (found := entry(line)) is not None:
                    entries.append(json.dumps(found) + "\n")
        if entries:
            with contextlib.suppress(OSError):
                self._rotate()
                with open(self._path, "a", opener=lambda path, flags: os.open(path, flags, 0o600)) as stream:
                    stream.write("".join(entries))

    def _rotate(self) -> None:
        if not self._path.exists() or self._path.stat().st_size < self._limit_bytes:
            return
        for number in range(_KEPT - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                self._numbered(number).replace(self._numbered(number + 1))
        self._path.replace(self._numbered(1))

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")
