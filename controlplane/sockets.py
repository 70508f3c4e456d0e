"""Unix sockets on this host: folders for them, closed to other users; connections to a server; queries.

A query is one JSON value a line each way, over a Unix socket.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import stat
from pathlib import Path
from typing import Any

from controlplane.domain.errors import GatewayError, is_own_lack
from controlplane.domain.fleet import socket_path

_LONGEST_PATH = 97
"""In bytes: the kernel takes ten more, which HAProxy keeps for the ends of temporary names."""
_SHORT = Path("/tmp")


def socket_folder(state: Path, name: str, longest_name: int) -> Path:
    """Return the folder `name` of a state folder, or a short one where paths in it would be too long.

    `longest_name` is that of a socket, in bytes. Touches nothing.
    """
    folder = state / name
    if len(os.fsencode(folder)) + 1 + longest_name <= _LONGEST_PATH:
        return folder
    short = hashlib.sha256(os.fsencode(state)).hexdigest()[:12]
    # The same for every caller: $XDG_RUNTIME_DIR differs under cron and sudo, and ends with a login.
    return _SHORT / f"trisect-{os.getuid()}-{short}"


def close_to_others(folder: Path) -> str | None:
    """Make a folder that is open to this user only; return why that is not so, None where it is."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.lstat()
    except OSError as error:
        return f"{folder}: cannot be made: {error.strerror}"
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        # Only root can remove another user's folder in /tmp, which anyone may make there.
        shorter = "set XDG_STATE_HOME to a shorter path, which then has the sockets"
        way_out = shorter if folder.parent == _SHORT else "remove it"
        return f"{folder} is a link or belongs to another user (uid {found.st_uid}); {way_out}"
    folder.chmod(0o700)
    return None


def connect(host: str, port: int, timeout_s: float) -> socket.socket:
    """Connect to a port of a server, over its Unix socket where it has one. Raises OSError."""
    path = socket_path(host, port)
    if path is None:
        found = socket.create_connection((host, port), timeout_s)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return found
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        found.settimeout(timeout_s)
        found.connect(path)
    except OSError:
        found.close()
        raise
    return found


class Unreachable(GatewayError):
    """The process does not answer: it is being restarted, and reads the files itself when it is back."""


class Silent(Unreachable):
    """The process may run and have open calls: it does not answer in time, or cannot be asked now."""


def ask(path: Path, query: object, *, of: str = "the facade", timeout_s: float = 5.0) -> Any:
    """Return the answer to one query. Raises Unreachable, and Silent after `timeout_s` at the latest."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
            stream.settimeout(timeout_s)
            stream.connect(str(path))
            stream.sendall(json.dumps(query).encode() + b"\n")
            answer = stream.makefile("rb").readline()
    except (TimeoutError, BlockingIOError) as error:
        # The latter when the queue of connections is full.
        raise Silent(f"{of} is there and does not answer on {path}: {error}") from error
    except OSError as error:
        if is_own_lack(error):
            raise Silent(f"{of} cannot be asked on {path}: {error}") from error
        raise Unreachable(f"{of} does not answer on {path}: {error}") from error
    try:
        return json.loads(answer)
    except ValueError as error:
        raise Unreachable(f"{of} closed {path} without a whole answer") from error
