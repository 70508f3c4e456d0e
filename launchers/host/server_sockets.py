"""The Unix sockets of servers, in a folder of their fleet that no other user can enter.

Each start has paths of its own, so that none ever leads to another start of a server. A container's are in a
folder that it alone has. Those of a process are not: a full disk has room for a socket, and for no folder.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Collection, Iterable
from pathlib import Path

from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import OWN_FOLDER, UNIX, Server, ServerSpec
from controlplane.sockets import close_to_others, socket_folder
from launchers.triton.labels import digest

_LONGEST_NAME = 12 + 1 + 8 + len(f"{OWN_FOLDER}:8000")
_STARTING_S = 60.0
"""The age below which a folder may be that of a start in another program."""


def new_host(state: Path, spec: ServerSpec) -> str:
    """Return the host of a server that is about to start. Makes nothing."""
    start = f"{digest(spec.name)}-{secrets.token_hex(4)}"
    return f"{UNIX}{folder_of_fleet(state, spec.labels.fleet) / start}"


def folder_of(server: Server) -> Path | None:
    """Return the folder of a server's sockets; None where it listens on ports."""
    return Path(server.host.removeprefix(UNIX)).parent if server.host.startswith(UNIX) else None


def close(folder: Path) -> None:
    """Make a folder that is open to this user only. Raises EngineError."""
    if (problem := close_to_others(folder)) is not None:
        raise EngineError(problem)


def make(folder: Path, uid: int, gid: int) -> None:
    """Make the folder of one server, for the user as which it runs. Raises EngineError."""
    # The outer one once more: where another start's end removed it, the inner one's making left it open.
    for one in (folder.parent, folder, folder.parent):
        close(one)
    if uid == os.getuid():
        return
    # Of another user's server, who cannot enter the folder above, everyone else is kept out by that one.
    if os.getuid() == 0:
        os.chown(folder, uid, gid)
    else:
        folder.chmod(0o777)


def remove(state: Path, spec: ServerSpec) -> None:
    """Remove the sockets and folders of all starts of a server."""
    _remove(tuple(folder_of_fleet(state, spec.labels.fleet).glob(f"{digest(spec.name)}-*")))


def begun(folder: Path) -> tuple[Path, ...]:
    """Return what is in a fleet's folder, but for starts that may not have a process yet."""
    before_s, found = time.time() - _STARTING_S, []
    for one in folder.glob("*-*"):
        with contextlib.suppress(FileNotFoundError):
            if not one.is_dir() or any(one.iterdir()) or one.stat().st_mtime < before_s:
                found.append(one)
    return tuple(found)


def sweep(folder: Path, begun: Iterable[Path], alive: Collection[str]) -> None:
    """Remove what had `begun` before in a fleet's folder and has no server among the digests in `alive`."""
    _remove(one for one in begun if one.name.partition("-")[0] not in alive)
    if not alive:
        with contextlib.suppress(OSError):  # a start has made its own, or there is none
            folder.rmdir()


def folder_of_fleet(state: Path, fleet: str) -> Path:
    """Return the folder of all of a fleet's servers. Makes nothing."""
    return socket_folder((state / fleet).absolute(), "servers", _LONGEST_NAME)


def _remove(those: Iterable[Path]) -> None:
    for one in those:
        if one.is_dir():
            shutil.rmtree(one, ignore_errors=True)
        else:
            one.unlink(missing_ok=True)
