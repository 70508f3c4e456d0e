"""What every server that joins the fleet has to be told: shared-memory regions, trace and log settings.

Keys are the paths a Triton's HTTP takes, without a query; values are bodies. Both are bounded, since clients
choose them, and the file they are kept in is not trusted.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from grpc import StatusCode

from controlplane.domain.errors import TrisectError
from controlplane.files.reading import exists
from controlplane.files.writing import write_json
from controlplane.gateway.facade.refusals import Refusal
from controlplane.gateway.processes import say

MOST_ENTRIES = 256
LARGEST_ENTRY_BYTES = 16 * 2**10
_LARGEST_FILE_BYTES = 2 * MOST_ENTRIES * LARGEST_ENTRY_BYTES
_NAME = r"[A-Za-z0-9_.:-]{1,128}"
_REGION = rf"/v2/(system|cuda)sharedmemory/region/{_NAME}/register"
_SETTING = rf"/v2/(models/{_NAME}/)?trace/setting|/v2/logging"

Body = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Region:
    """A shared-memory region of `kind` "system" or "cuda"; all of them where `name` is empty."""

    kind: str
    name: str = ""

    @property
    def key(self) -> str:
        """Its key. Raises Refusal for a name that HTTP cannot carry."""
        key = f"{self.prefix}register"
        if re.fullmatch(_REGION, key) is None:
            raise _not_kept("a region's name has 1 to 128 letters, digits or any of _ . : -")
        return key

    @property
    def prefix(self) -> str:
        """What the key begins with."""
        regions = f"/v2/{self.kind}sharedmemory/region/"
        return f"{regions}{self.name}/" if self.name else regions


def setting_key(what: str, model: str = "") -> str:
    """The key of "trace/setting" or "logging"; without a model, of every server."""
    return f"/v2/models/{model}/{what}" if model else f"/v2/{what}"


class Kept:
    """The entries, and their file. A file that cannot be read is put aside: no server waits for it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._entries = self._read()

    def entries(self) -> Mapping[str, Body]:
        """All of them, in the order in which they were given."""
        return dict(self._entries)

    def check(self, key: str, body: Body) -> None:
        """Raises Refusal where `put` would exceed the bounds."""
        if len(json.dumps(self._merged(key, body))) > LARGEST_ENTRY_BYTES:
            raise _not_kept(f"what is kept of one call may have {LARGEST_ENTRY_BYTES} bytes")
        if key not in self._entries and len(self._entries) >= MOST_ENTRIES:
            raise _not_kept(f"{MOST_ENTRIES} regions and settings are kept already; unregister some")

    def put(self, key: str, body: Body) -> None:
        """Settings for one key are put together; a region replaces the one of its name."""
        self._entries[key] = self._merged(key, body)
        self._write()

    def forget(self, prefix: str) -> None:
        """Drop every entry whose key begins so."""
        self._entries = {key: body for key, body in self._entries.items() if not key.startswith(prefix)}
        self._write()

    def _merged(self, key: str, body: Body) -> Body:
        return {**self._entries.get(key, {}), **body} if re.fullmatch(_SETTING, key) else body

    def _read(self) -> dict[str, Body]:
        if not exists(self._file):
            return {}
        try:
            with self._file.open("rb") as stream:
                content = stream.read(_LARGEST_FILE_BYTES + 1)
            if len(content) > _LARGEST_FILE_BYTES:
                raise ValueError(f"larger than {_LARGEST_FILE_BYTES} bytes")
            return _entries(json.loads(content))
        except (OSError, ValueError, RecursionError) as error:
            aside = self._file.with_suffix(".broken")
            say(f"{self._file} cannot be read and is put aside as {aside.name}: {error}")
            with contextlib.suppress(OSError):
                self._file.replace(aside)
            return {}

    def _write(self) -> None:
        with contextlib.suppress(TrisectError):
            write_json(self._file, self._entries)


def _entries(content: object) -> dict[str, Body]:
    if not isinstance(content, dict) or len(content) > MOST_ENTRIES:
        raise ValueError(f"not an object of at most {MOST_ENTRIES} entries")
    for key, body in content.items():
        if re.fullmatch(f"{_REGION}|{_SETTING}", key) is None or not isinstance(body, dict):
            raise ValueError(f"{key[:80]!r} is no shared-memory region and no setting")
    return content


def _not_kept(words: str) -> Refusal:
    return Refusal(StatusCode.INVALID_ARGUMENT, words)
