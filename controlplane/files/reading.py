"""Reading of files that a user names or that lie in a user's folders."""

from __future__ import annotations

import stat
from pathlib import Path

from controlplane.domain.errors import InputError

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
}
_STREAMS = ("/dev/fd/", "/proc/self/fd/", "/dev/stdin")
"""What the command was started with: its writer is there, or the user is."""


def read_bytes(path: Path, limit_bytes: int | None = None) -> bytes:
    """Return a file's content.

    Raises InputError for a file that is missing (from a FileNotFoundError), cannot be read or is larger, and
    for what is no file: a named pipe without a writer would be waited for without end.
    """
    file = str(path)
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
        if kind in _KINDS and not file.startswith(_STREAMS):
            raise InputError(f"is {_KINDS[kind]}, not a file", file=file)
        with path.open("rb") as stream:
            content = stream.read(-1 if limit_bytes is None else limit_bytes + 1)
    except FileNotFoundError as error:
        raise InputError("no such file", file=file) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=file) from None
    if limit_bytes is not None and len(content) > limit_bytes:
        raise InputError(f"is larger than {limit_bytes // 2**20} MiB", file=file)
    return content
