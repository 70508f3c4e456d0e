"""Shared memory that Triton's Python backend leaves behind when it is killed.

/dev/shm belongs to every user of the host, so names prove nothing: a region that a process has mapped stays,
whichever state directory or launcher started that process, and what cannot be removed does not matter here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from launchers.triton.labels import memory_owner

FOLDER = Path("/dev/shm")


def remove(prefix: str, folder: Path = FOLDER) -> list[str]:
    """Remove every unused region whose name starts with `prefix`; return what was removed."""
    return _remove(folder, lambda name: name.startswith(prefix))


def sweep(fleet: str, alive: set[str], folder: Path = FOLDER) -> list[str]:
    """Remove the fleet's unused regions whose server is not among the digests in `alive`."""

    def left(name: str) -> bool:
        owner = memory_owner(name, fleet)
        return owner is not None and owner not in alive

    return _remove(folder, left)


def _remove(folder: Path, chosen: Callable[[str], bool]) -> list[str]:
    found = [path for path in folder.iterdir() if chosen(path.name)]
    used = _mapped() if found else frozenset()
    return [str(path) for path in found if _inode(path) not in used and _unlinked(path)]


def _unlinked(path: Path) -> bool:
    """Whether it was removed: another user's file, or a folder, stays."""
    try:
        path.unlink()
    except OSError:
        return False
    return True


def _inode(path: Path) -> int | None:
    try:
        return path.lstat().st_ino
    except OSError:
        return None


def _mapped() -> frozenset[int]:
    """Inodes of what this host's processes have mapped, as far as this user may see.

    By inode, since a container's mount of the folder has other paths.
    """
    found: set[int] = set()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                lines = Path(entry.path, "maps").read_bytes().splitlines()
            except OSError:
                continue
            # Address, rights, offset, device, inode and path.
            found.update(
                int(fields[4]) for line in lines if b"/shm/" in line and (fields := line.split(None, 5))
            )
    return frozenset(found)
