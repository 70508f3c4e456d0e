"""Shared memory of Triton's Python backend: a folder of its own for each server, and what killed ones leave.

The backend makes its regions readable for every user (Boost calls fchmod after shm_open, so no umask helps),
and a client's inputs are in them. So a server gets a /dev/shm that only its own processes see.

/dev/shm belongs to every user of the host, so names prove nothing: a region that a process has mapped stays,
whichever state directory or launcher started that process, and what cannot be removed does not matter here.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from launchers.host import process_table
from launchers.triton.labels import memory_owner

FOLDER = Path("/dev/shm")

_MOUNT = f"mount -t tmpfs -o mode=1777,nosuid,nodev shm {FOLDER}"
_NAMESPACE = ("unshare", "--mount", "--propagation=slave")
_TRIAL_S = 10.0


def own() -> tuple[str, ...]:
    """Return the start of a command line whose program has a /dev/shm of its own, which ends with it.

    Empty where none can be made: that needs root, or a kernel that lets users make namespaces. Raises OSError
    or SubprocessError where that cannot be tried now.
    """
    if shutil.which("unshare") is None:
        return ()
    try:
        return _tried(os.geteuid() == 0)
    except subprocess.CalledProcessError:  # may pass
        return ()


@functools.cache
def _tried(is_root: bool) -> tuple[str, ...]:
    as_root = (*_NAMESPACE, "sh", "-c", f'{_MOUNT} && exec "$@"', "sh")
    # The capabilities for the mount are those in the user's own namespace; the server needs none of them.
    without = 'exec setpriv --inh-caps=-all --ambient-caps=-all "$@"'
    user = ("--user", "--map-current-user", "--keep-caps")
    as_user = (*_NAMESPACE, *user, "sh", "-c", f"{_MOUNT} && {without}", "sh")
    start = as_root if is_root else as_user
    subprocess.run([*start, "true"], capture_output=True, timeout=_TRIAL_S, check=True)
    return start


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
    removed = []
    for path in found:
        with contextlib.suppress(OSError):  # it is gone; another user's file, or a folder, stays
            if path.lstat().st_ino not in used:
                path.unlink()
                removed.append(str(path))
    return removed


def _mapped() -> frozenset[int]:
    """Inodes of what this host's processes have mapped, as far as this user may see.

    By inode, since a container's mount of the folder has other paths. Raises NotNow: what cannot be looked
    at now may be in use.
    """
    found: set[int] = set()
    for pid in process_table.pids():
        lines = (process_table.read_allowed(f"/proc/{pid}/maps") or b"").splitlines()
        # Address, rights, offset, device, inode and path.
        found.update(int(fields[4]) for line in lines if b"/shm/" in line and (fields := line.split(None, 5)))
    return frozenset(found)
