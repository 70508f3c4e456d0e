"""Processes that carry our labels, read from /proc: the truth about what runs."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil

from controlplane.domain.fleet import Server
from launchers import labels

TERMINATE = signal.SIGTERM
CONTINUE = signal.SIGCONT

_EXEC_S = 2.0
"""How long one program may take to become another: a large one may have to be read from the disk."""


@dataclass(frozen=True, slots=True)
class Member:
    """A process of one server: Triton itself (`leader`), a model's (`stub`) or its child, a quota's helper.

    `text` is the label it carries.
    """

    pid: int
    name: str
    fleet: str
    text: str
    leader: bool
    stub: bool


class Stub(NamedTuple):
    """A model's process: its server's name, and the Triton it is a child of."""

    server: str
    triton: int


def members(*, fleet: str | None = None, name: str | None = None) -> tuple[Member, ...]:
    """Every process of this user that carries our labels, of one fleet or one server where asked."""
    found = (m for m in _all() if fleet is None or m.fleet == fleet)
    return tuple(m for m in found if name is None or m.name == name)


def members_of(server: Server) -> tuple[Member, ...]:
    """The processes of this very server: one that was started since under its name has other ports."""
    found = []
    for member in members(name=server.name):
        its = labels.server_of(member.text, id=str(member.pid), state=server.state)
        if ports_of(its) == ports_of(server):
            found.append(member)
    return tuple(found)


def find(pid: int) -> Member | None:
    """The process as a member; None where it is gone, a zombie, another user's or carries no labels."""
    deadline = time.monotonic() + _EXEC_S
    while (found := _member(pid)) is None and _between_programs(pid) and time.monotonic() < deadline:
        time.sleep(0.001)
    return found or _member(pid)


def stubs_of(tritons: Mapping[int, str]) -> dict[int, Stub]:
    """The models' processes of these Tritons (pid -> server), whatever container they are in.

    A pid that is no such Triton's is passed over: it may be one of another host's, or of a machine's within.
    """
    real = {pid: name for pid, name in tritons.items() if _is_triton(_command(pid), name)}
    found = {}
    for pid in psutil.pids() if real else ():
        up = parent(pid)
        if up in real and _is_stub(_command(pid)):
            found[pid] = Stub(real[up], up)
    return found


def ports_of(server: Server) -> set[int]:
    """The ports it must listen on."""
    return {server.http_port, server.grpc_port, server.metrics_port}


def listens(pid: int, ports: set[int]) -> bool:
    """Whether this process itself listens on all these ports, so that nobody else does."""
    try:
        open_ = psutil.Process(pid).net_connections("tcp")
    except psutil.NoSuchProcess:
        return False
    return ports <= {c.laddr.port for c in open_ if c.status == psutil.CONN_LISTEN}


def parent(pid: int) -> int | None:
    """The process that started this one, dead or alive; None where it is gone."""
    fields = _stat(pid)
    return None if fields is None else int(fields[1])


def died(pid: int) -> str | None:
    """How a process died that its parent has not waited for; None where it lives, ended well or is gone.

    A parent waits for what it ended itself, so what stays has ended of its own.
    """
    fields = _stat(pid)
    status = 0 if fields is None or fields[0] != "Z" else int(fields[49])
    if status == 0:
        return None
    number = status & 0x7F
    return f"by {signal.Signals(number).name}" if number else f"with exit code {status >> 8}"


def is_stopped(pid: int) -> bool:
    """Whether somebody has stopped it (SIGSTOP)."""
    fields = _stat(pid)
    return fields is not None and fields[0] == "T"


def send(member: Member, number: signal.Signals) -> None:
    """Signal this very process; where it is gone, nothing happens."""
    try:
        handle = os.pidfd_open(member.pid)
    except OSError:
        return
    try:
        # The handle is held now: if the labels are still there, the pid was not given to another process.
        if _member(member.pid) is not None:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)


def wait_gone(member: Member, seconds: float) -> bool:
    """Wait for a process to end, for at most `seconds`; whether it did."""
    try:
        handle = os.pidfd_open(member.pid)
    except OSError:
        return True
    try:
        if _member(member.pid) is None:
            return True
        ended = select.poll()
        ended.register(handle, select.POLLIN)
        return bool(ended.poll(max(0.0, seconds) * 1000))
    finally:
        os.close(handle)


def kill_all(present: Callable[[], tuple[Member, ...]], seconds: float = 10.0) -> tuple[int, ...]:
    """Kill every process that is `present`, those that start meanwhile too; the pids that would not go."""
    deadline = time.monotonic() + seconds
    while found := present():
        for member in found:
            send(member, signal.SIGKILL)
        for member in found:
            if not wait_gone(member, deadline - time.monotonic()):
                return tuple(m.pid for m in found)
    return ()


def cpu_seconds(pids: tuple[int, ...]) -> float:
    """Processor time used by these processes and by their children that have ended, in seconds."""
    ticks = 0
    for pid in pids:
        fields = _stat(pid)
        if fields is None:
            continue
        # utime, stime, cutime, cstime: a model that was unloaded leaves its time with Triton.
        ticks += sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_mb(pids: tuple[int, ...]) -> float:
    """What these processes occupy, what they share counted once (PSS); those that are gone count 0."""
    total = 0
    for pid in pids:
        # Gone, or it gave up its memory and is a zombie.
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += int(next(line for line in lines if line.startswith("Pss:")).split()[1])
    return total / 1024


def _all() -> Iterator[Member]:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            found = _member(int(entry.name))
            if found is not None:
                yield found


def _between_programs(pid: int) -> bool:
    """Whether it is alive without an environment, as a process is for a moment within exec."""
    try:
        fields = _stat(pid)
        return fields is not None and fields[0] not in "ZX" and not Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/<pid>/stat from the third on (its state); None where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _command(pid: int) -> list[str]:
    """Its command line; empty words where it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return [""]


def _is_triton(command: list[str], name: str) -> bool:
    return Path(command[0]).name == "tritonserver" and f"--id={name}" in command


def _is_stub(command: list[str]) -> bool:
    return Path(command[0]).name == "triton_python_backend_stub"


def _member(pid: int) -> Member | None:
    folder = Path(f"/proc/{pid}")
    try:
        if folder.stat().st_uid != os.geteuid():
            return None
        raw = (folder / "environ").read_bytes()
        if labels.NAME.encode() not in raw:
            return None
    except OSError:
        return None
    command = _command(pid)
    pairs = (item.partition("=") for item in raw.decode(errors="replace").split("\0"))
    environment = {key: value for key, _, value in pairs}
    name = environment.get(labels.NAME)
    if not name:
        return None
    return Member(
        pid,
        name,
        environment.get(labels.FLEET, ""),
        environment.get(labels.SERVER, ""),
        leader=_is_triton(command, name),
        stub=_is_stub(command),
    )
