"""Everything that a cluster makes on the host, found by its marks and removed.

Kubelet and containerd leave mounts, shims, groups and bridges behind when they end. A cluster is removed the
same way whether its test passed, failed or was killed.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from kube import network
from kube.node import CGROUPS
from kube.processes import MARK

FOLDERS = Path("/tmp")
FOLDER_PREFIX = "tskube-"
_SHIM_SOCKETS = Path("/run/containerd/s")
_LOG_LINKS = Path("/var/log/containers")
_PATIENCE_S = 30.0


def clear() -> None:
    """Remove every cluster of this host. Raises AssertionError, with their names, for things that stay."""
    deadline = time.monotonic() + _PATIENCE_S
    while processes := [*_marked(), *_grouped()]:
        assert time.monotonic() < deadline, f"processes {processes} do not end"
        for pid in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    for mount in _mounts():
        subprocess.run(["umount", "--lazy", mount], check=False)
    for group in _groups():
        _remove(group)
    for bridge in _bridges():
        network.ip("link", "delete", bridge, check=False)
    for link in _dead_links():
        link.unlink(missing_ok=True)
    for folder in _folders():
        shutil.rmtree(folder, ignore_errors=True)
    left = found()
    assert not left, f"left behind: {', '.join(left)}"


def found() -> list[str]:
    """What of a cluster is on the host, in words."""
    return [
        *(f"process {pid}" for pid in (*_marked(), *_grouped())),
        *(f"mount {place}" for place in _mounts()),
        *(f"group {group}" for group in _groups()),
        *(f"bridge {bridge}" for bridge in _bridges()),
        *(f"folder {folder}" for folder in _folders()),
    ]


def _marked() -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                mark = f"{MARK}={FOLDERS}/{FOLDER_PREFIX}".encode()
                alive = (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
                if alive and any(v.startswith(mark) for v in (entry / "environ").read_bytes().split(b"\0")):
                    yield int(entry.name)


def _groups() -> list[Path]:
    return [g for hierarchy in CGROUPS.iterdir() for g in hierarchy.glob(f"{network.PREFIX}*") if g.is_dir()]


def _grouped() -> Iterator[int]:
    for group in _groups():
        for folder, _, _ in os.walk(group):
            with contextlib.suppress(OSError):
                yield from map(int, (Path(folder) / "cgroup.procs").read_text().split())


def _remove(group: Path) -> None:
    for folder, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def _mounts() -> list[str]:
    places = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    return [p for p in reversed(places) if p.startswith(f"{FOLDERS}/{FOLDER_PREFIX}")]


def _bridges() -> list[str]:
    return [p.name for p in Path("/sys/class/net").iterdir() if p.name.startswith(network.PREFIX)]


def _folders() -> list[Path]:
    return list(FOLDERS.glob(f"{FOLDER_PREFIX}*"))


def _dead_links() -> Iterator[Path]:
    """Sockets of dead shims, and the kubelets' links to logs: both lie at fixed places."""
    for path in _SHIM_SOCKETS.glob("*"):
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                yield path
    for path in _LOG_LINKS.glob("*"):
        if os.readlink(path).startswith(f"{FOLDERS}/{FOLDER_PREFIX}"):
            yield path
