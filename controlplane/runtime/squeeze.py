"""Holds a running server to a part of its CPU quota behind everybody's back: a prediction made wrong.

Only the demo and the tests do this. The quota is found from the process that listens on the server's port,
so it does not matter which launcher started it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import Server

_MOUNTS = Path("/proc/mounts")


def squeeze(server: Server, part: float) -> None:
    """Leave the server `part` (0 to 1) of its quota.

    Raises EngineError where no quota of a cgroup that we may write holds it.
    """
    for folder in _groups(_pid(server)):
        v1, v2 = folder / "cpu.cfs_quota_us", folder / "cpu.max"
        try:
            if v1.exists() and (quota := int(v1.read_text())) > 0:
                v1.write_text(f"{round(quota * part)}\n")
                return
            if v2.exists() and (words := v2.read_text().split())[0].isdigit():
                v2.write_text(f"{round(int(words[0]) * part)} {words[1]}\n")
                return
        except OSError as error:
            raise EngineError(f"the quota of {server.name} cannot be cut: {error}") from error
    raise EngineError(f"no cgroup quota holds {server.name}")


def _pid(server: Server) -> int:
    try:
        found = psutil.net_connections("tcp")
    except psutil.AccessDenied as error:
        raise EngineError(f"the processes of this host cannot be looked at: {error}") from error
    for one in found:
        if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == server.http_port and one.pid:
            return one.pid
    raise EngineError(f"no process of ours listens on the port of {server.name}")


def _groups(pid: int) -> Iterator[Path]:
    """The folders of a process's groups that could hold a quota, as far down as a container shows them."""
    mounts = [line.split() for line in _MOUNTS.read_text().splitlines()]
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for _, place, kind, options, *_ in mounts:
            held = kind == "cgroup2" if not controllers else kind == "cgroup" and "cpu" in options.split(",")
            if not held or (controllers and "cpu" not in controllers.split(",")):
                continue
            parts = path.strip("/").split("/")
            for cut in range(len(parts)):
                folder = Path(place, *parts[cut:])
                members = folder / "cgroup.procs"
                if members.exists() and str(pid) in members.read_text().split():
                    yield folder
                    break
