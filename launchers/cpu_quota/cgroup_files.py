"""Folders of a cgroup hierarchy: where we may make one, writing that is read back, entering, removing."""

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


def write(file: Path, value: str) -> None:
    """Write a control file and read it back: the kernel may round or refuse. Raises OSError."""
    with file.open("w") as opened:
        opened.write(value)
    told = file.read_text().split()
    if told != value.split():
        raise OSError(f"{file} says {' '.join(told)!r} after {value!r} was written")


def entering(folder: Path) -> list[str]:
    """The start of a command line that enters the group first."""
    return ["sh", "-c", _ENTER, str(folder)]


def enters(folder: Path) -> bool:
    """Whether a process can be moved into the group: making a group is no permission for that."""
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
    for old in base.glob(f"{_TRIAL}-*"):
        # Of a program that was killed in the middle of its trial.
        if not Path(f"/proc/{old.name.split('-')[2]}").exists():
            remove(old)
    folder = base / f"{_TRIAL}-{os.getpid()}-{threading.get_ident()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        remove(folder)


def remove(folder: Path) -> bool:
    """Remove a group; its last processes may still be on their way out, and any straggler in it is killed.

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
    """A process caught between fork and exec shows no label yet, but it is in its server's group."""
    with contextlib.suppress(OSError):
        for pid in (folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def groups_below(bases: Sequence[Path], fleet: str) -> dict[Group, Path]:
    """The fleet's groups directly below these folders."""
    found: dict[Group, Path] = {}
    for base in bases:
        with contextlib.suppress(OSError):
            for folder in base.iterdir():
                group = Group.parse(folder.name)
                if group is not None and group.fleet == fleet:
                    found[group] = folder
    return found


def mount_points(kind: str, controller: str | None = None) -> list[Path]:
    """Where hierarchies of this kind (`cgroup`, `cgroup2`) are mounted."""
    found = []
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, type_, options, *_ = line.split()
        if type_ == kind and (controller is None or controller in options.split(",")):
            found.append(Path(place))
    return found


def own_path(controller: str) -> str:
    """The path of this process's own group in a hierarchy; `controller` is empty for version 2."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path.strip("/")
    return ""


def chain(mount: Path, path: str) -> list[Path]:
    """The folders from the mount point down to `path`: those that a container does not show left out."""
    places = [mount]
    for part in filter(None, path.split("/")):
        places.append(places[-1] / part)
    return [p for p in places if p.is_dir()]


def counters(text: str) -> dict[str, int]:
    """A `cpu.stat` file as numbers."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}
