"""The folder of each server's Unix sockets, below one of its fleet that no other user can enter.

Each start has a folder of its own, so that no path ever leads to another start of a server.
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
from controlplane.domain.fleet import UNIX, Server, ServerSpec
from controlplane.sockets import close_to_others, socket_folder
from launchers.triton.labels import digest

_SOCKETS = "t"
"""The beginning of the sockets' names."""
_LONGEST_NAME = 12 + 1 + 8 + len(f"/{_SOCKETS}:8000")
_STARTING_S = 60.0
"""The age below which a folder may be that of a start in another program."""


def new_host(state: Path, spec: ServerSpec) -> str:
    """Return the host of a server that is about to start. Makes nothing."""
    folder = folder_of_fleet(state, spec.labels.fleet) / f"{digest(spec.name)}-{secrets.token_hex(4)}"
    return f"{UNIX}{folder / _SOCKETS}"


def folder_of(server: Server) -> Path | None:
    """Return the folder of a server's sockets; None where it listens on ports."""
    return Path(server.host.removeprefix(UNIX)).parent if server.host.startswith(UNIX) else None


def make(folder: Path, uid: int, gid: int) -> None:
    """Make a server's folder, for the user as which it runs. Raises EngineError."""
    # The outer one once more: where another start's end removed it, the inner one's making left it open.
    for one in (folder.parent, folder, folder.parent):
        if (problem := close_to_others(one)) is not None:
            raise EngineError(problem)
    if uid == os.getuid():
        return
    # Of another user's server, who cannot enter the folder above, everyone else is kept out by that one.
    if os.getuid() == 0:
        os.chown(folder, uid, gid)
    else:
        folder.chmod(0o777)


def remove(state: Path, spec: ServerSpec) -> None:
    """Remove the folders of all starts of a server."""
    _remove(tuple(folder_of_fleet(state, spec.labels.fleet).glob(f"{digest(spec.name)}-*")))


def begun(state: Path, fleet: str) -> tuple[Path, ...]:
    """Return the folders of a fleet's servers, but for those of starts that may not have a process yet."""
    before_s, found = time.time() - _STARTING_S, []
    for folder in folder_of_fleet(state, fleet).glob("*-*"):
        with contextlib.suppress(FileNotFoundError):
            if any(folder.iterdir()) or folder.stat().st_mtime < before_s:
                found.append(folder)
    return tuple(found)


def sweep(folders: Iterable[Path], alive: Collection[str]) -> None:
    """Remove those of these folders, `begun` before, whose server is not among the digests in `alive`."""
    _remove(folder for folder in folders if folder.name.partition("-")[0] not in alive)


def folder_of_fleet(state: Path, fleet: str) -> Path:
    """Return the folder of all of a fleet's servers. Makes nothing."""
    return socket_folder((state / fleet).absolute(), "servers", _LONGEST_NAME)


def _remove(folders: Iterable[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # others are in it
            folder.parent.rmdir()
