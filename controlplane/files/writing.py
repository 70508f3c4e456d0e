"""Writing of files in one step, and of JSON."""

from __future__ import annotations

import json
import math
import os
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import IO, Any

from controlplane.domain.errors import DISK_FULL, EngineError, NotNow

_BLOCK_BYTES = 512
"""The unit of `st_blocks`."""
_PLAIN = json.JSONEncoder(allow_nan=False)


def write_text(path: Path, text: str) -> None:
    """Replace a file in one step. Raises EngineError where the disk refuses."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file in one step: the old one stays whole until the new one is on disk.

    A power cut after it returns loses nothing. A device or pipe is written to. Raises EngineError where the
    disk refuses.
    """
    if path.exists() and not path.is_file():
        try:
            path.write_bytes(content)
        except OSError as error:
            raise EngineError(f"{path}: cannot be written: {error.strerror}") from error
        return
    _replace(path, content, to_disk=True)
    try:
        sync_directory(path.parent)
    except OSError as error:
        raise EngineError(f"{path}: may be lost by a power cut: {error.strerror}") from error


def log_file(path: Path) -> IO[bytes]:
    """Open a log for appending; the null device where the disk refuses, since no start may fail for it."""
    try:
        return path.open("ab")
    except OSError:
        return open(os.devnull, "ab")


def sync_directory(directory: Path) -> None:
    """Wait until the names in a directory are on disk. Raises OSError."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_synced(path: Path, content: bytes) -> None:
    """Write a file that all users may read, whatever the umask; wait for its content, not for its name.

    Raises OSError.
    """
    with path.open("wb") as stream:
        os.fchmod(stream.fileno(), 0o644)
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def append_line(path: Path, content: object) -> None:
    """Append a line of JSON, without waiting for the disk. Raises OSError."""
    line = json.dumps(content).encode() + b"\n"
    with path.open("a+b", buffering=0) as stream:
        # A full disk or a crash may have cut the line before.
        if end := stream.seek(0, os.SEEK_END):
            stream.seek(end - 1)
            line = line if stream.read(1) == b"\n" else b"\n" + line
        stream.write(line)


def write_vital(path: Path, text: str) -> None:
    """Write like `write_text`, but on a full disk overwrite the file in place if its blocks suffice.

    For the files of a redirect, which must not fail on a full disk. The directory is not waited for: a power
    cut may bring back the file before, of servers that have ended with it.
    """
    _replace_or_overwrite(path, text, to_disk=True)


def write_derived(path: Path, text: str) -> None:
    """Write like `write_vital`, but do not wait for the disk: a power cut may lose the change.

    For files that can be derived again. The wait would be most of a redirect's time.
    """
    _replace_or_overwrite(path, text, to_disk=False)


def _replace_or_overwrite(path: Path, text: str, *, to_disk: bool) -> None:
    content = text.encode()
    try:
        _replace(path, content, to_disk=to_disk)
    except EngineError as error:
        full = isinstance(error.__cause__, OSError) and error.__cause__.errno in DISK_FULL
        if not _holds(path, content) and not (full and _overwrite(path, content)):
            raise


def _holds(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes().rstrip(b"\n") == content.rstrip(b"\n")
    except OSError:
        return False


def _overwrite(path: Path, content: bytes) -> bool:
    """Overwrite a file within its allocated blocks; return False if they do not suffice.

    In one write: empty lines, which no reader minds, cover the rest of a longer file, since a kill between a
    write and a truncation would leave both.
    """
    try:
        with path.open("r+b", buffering=0) as stream:
            found = os.fstat(stream.fileno())
            if len(content) > found.st_blocks * _BLOCK_BYTES:
                return False
            padded = content.ljust(found.st_size, b"\n")
            return stream.write(padded) == len(padded)
    except OSError:
        return False


def _replace(path: Path, content: bytes, *, to_disk: bool) -> None:
    temporary: str | None = None
    if path.is_symlink():  # what it names is replaced, and not the link
        path = path.resolve()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            if to_disk:
                stream.flush()
                os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        problem = f"{path}: cannot be written: {error.strerror}; the old file is unchanged"
        if error.errno in DISK_FULL:
            raise NotNow(f"{problem}; make room there and try again") from error
        raise EngineError(problem) from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def write_json(path: Path, content: object) -> None:
    """Replace a JSON file in one step. NaN and infinity raise ValueError."""
    write_text(path, to_json(content))


def to_json(content: object) -> str:
    """Return indented JSON text with a newline at the end. Raises ValueError for NaN and infinity."""
    return _indented(content, "\n") + "\n"


def to_compact_json(content: object) -> str:
    """Return JSON text on one line, of dataclasses too. Raises ValueError for NaN and infinity.

    For files that only programs read and that are written often: several times as fast as `to_json`.
    """
    return json.dumps(content, allow_nan=False, default=fields_of) + "\n"


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass, without copies of what they hold, which `asdict` makes."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _indented(value: object, newline: str) -> str:
    """Return what `json.dumps(value, indent=2, allow_nan=False)` does, which is slow with an indent."""
    inner = newline + "  "
    if isinstance(value, dict) and value:
        rows = [f"{_key(key)}: {_indented(its, inner)}" for key, its in value.items()]
        return "{" + inner + f",{inner}".join(rows) + newline + "}"
    if isinstance(value, list | tuple) and value:
        return "[" + inner + f",{inner}".join(_indented(one, inner) for one in value) + newline + "]"
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return repr(value)
    return _PLAIN.encode(value)


def _key(key: object) -> str:
    text = _PLAIN.encode(key)
    return text if isinstance(key, str) else f'"{text}"'
