"""Folders of a cgroup hierarchy: finding, writing with a read-back, entering, removing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from launchers.cpu_quota.mechanism import Group

_ENTER = 'echo $$ > "$0/cgroup.procs" || exit 126; exec "$@"'
_REMOVE_S = 20.0
_TRIAL = "trisect-trial"
_OURS = "trisect"
_ABANDONED_S = 60.0


def write(file: Path, value: str) -> None:
    """Write a control file and read it back: the kernel may round or refuse. Raises OSError."""
    with file.open("w") as opened:
        opened.write(value)
    told = file.read_text().split()
    if told != value.split():
        raise OSError(f"{file} says {' '.join(told)!r} after {value!r} was written")


def entering(folder: Path) -> list[str]:
    """Return the start of a command line that enters the group first."""
    return ["sh", "-c", _ENTER, str(folder)]


def enters(folder: Path) -> bool:
    """Return whether a process can be moved into the group, which making a group does not imply."""
    tried = subprocess.run(
        [*entering(folder), "cat", "/proc/self/cgroup"],
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
    return tried.returncode == 0 and any(line.endswith(folder.name) for line in tried.stdout.splitlines())


@contextlib.contextmanager
def trial_folder(base: Path) -> Iterator[Path]:
    """A group for a trial, removed at the end. Raises OSError."""
    _remove_abandoned(base)
    folder = base / f"{_TRIAL}-{os.getpid()}-{threading.get_ident()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        remove(folder)


def _remove_abandoned(base: Path) -> None:
    """Remove empty groups of programs that were killed: of trials, and of profiles that no command sweeps.

    The kernel refuses to remove one with processes. A group that a start is about to enter is younger.
    """
    for old in base.glob(f"{_OURS}*"):
        with contextlib.suppress(OSError):
            if time.time() - old.stat().st_mtime > _ABANDONED_S:
                old.rmdir()


def remove(folder: Path) -> bool:
    """Remove a group; wait for processes that are ending, and kill any other.

    Raises OSError.
    """
    deadline = time.monotonic() + _REMOVE_S
    while True:
        try:
            folder.rmdir()
            return True
        except FileNotFoundError:
            return False
        except OSError:
            if time.monotonic() > deadline:
                raise
            _kill_members(folder)
            time.sleep(0.01)


def _kill_members(folder: Path) -> None:
    """Kill the group's processes: one between fork and exec has no labels yet, but it is in the group."""
    with contextlib.suppress(OSError):
        for pid in (folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def groups_below(bases: Sequence[Path], fleet: str) -> dict[Group, Path]:
    """Return the fleet's groups directly below these folders."""
    found: dict[Group, Path] = {}
    for base in bases:
        with contextlib.suppress(OSError):
            for folder in base.iterdir():
                group = Group.parse(folder.name)
                if group is not None and group.fleet == fleet:
                    found[group] = folder
    return found


def mount_points(kind: str, controller: str | None = None) -> list[Path]:
    """Return the mount points of hierarchies of this kind (`cgroup`, `cgroup2`)."""
    found = []
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, type_, options, *_ = line.split()
        if type_ == kind and (controller is None or controller in options.split(",")):
            found.append(Path(place))
    return found


def own_path(controller: str) -> str:
    """Return the path of this process's own group in a hierarchy; `controller` is empty for version 2."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path.strip("/")
    return ""


def cpu_folders(pid: int, proc: Path) -> Iterator[Path]:
    """Yield the folders in which a process's quota may be: of version 2, and of version 1's cpu controller.

    Raises OSError where the process is gone.
    """
    return (folder for folder in _folders(pid, "cpu", proc) if (folder / "cpu.stat").exists())


def memory_kills(pid: int, proc: Path = Path("/proc")) -> int:
    """Return how many processes of its group were killed for lack of memory; 0 where that is unknown."""
    with contextlib.suppress(OSError):
        for folder in _folders(pid, "memory", proc):
            for told in (folder / "memory.events", folder / "memory.oom_control"):
                if told.exists():
                    return counters(told.read_text()).get("oom_kill", 0)
    return 0


def _folders(pid: int, controller: str, proc: Path) -> Iterator[Path]:
    """Yield a process's groups: of version 2, and of this controller in version 1."""
    for line in (proc / str(pid) / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        mounts = mount_points("cgroup2") if not controllers else []
        if controller in controllers.split(","):
            mounts = mount_points("cgroup", controller)
        yield from (mount / path.lstrip("/") for mount in mounts)


def chain(mount: Path, path: str) -> list[Path]:
    """Return the folders from the mount point down to `path`, as far as a container shows them."""
    places = [mount]
    for part in filter(None, path.split("/")):
        places.append(places[-1] / part)
    return [p for p in places if p.is_dir()]


def counters(text: str) -> dict[str, int]:
    """Return a `cpu.stat` file as numbers."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}
