"""The processes with our labels, read from /proc.

A process is gone only where the kernel says so. Where it cannot be looked at, as without a free descriptor,
NotNow is raised: a living server must not be taken for a dead one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from controlplane.domain.errors import NotNow
from controlplane.domain.fleet import Server
from launchers.triton import labels

END = signal.SIGINT
"""Triton drains and ends at this signal as at SIGTERM, which other programs send (`BLOCK_TERM`)."""
BLOCK_TERM = ("env", "--block-signal=TERM")
"""Keeps SIGTERM pending: Triton would unload its models at once, and refuse requests until it has ended."""
CONTINUE = signal.SIGCONT
# The outer shell ends at once: the caller need not wait for the server, and the server outlives it. The inner
# one lives as long as the server. SIGTERM to every process of the host, at its shutdown, reaches it, and the
# server ends; SIGTERM to Triton alone stays pending.
_DETACH = '("$@" >&2 & echo $!; exec >&2; trap "kill -INT $!" TERM; until wait; do :; done) &'
DETACHED = ("sh", "-c", _DETACH, "sh")

_KERNEL_THREAD, _EXITING = 0x00200000, 0x00000004
"""PF_KTHREAD and PF_EXITING of Linux's include/linux/sched.h."""
_STUB = "triton_python_backend_stub"
_LABEL = labels.NAME.encode()
_GONE = frozenset({errno.ENOENT, errno.ESRCH, errno.EINVAL})
"""EINVAL: the pid is none, or another process's thread has it by now."""
_KILLED_S = 10.0
_EXEC_S = 2.0
"""The longest time of an exec: a large program may have to be read from the disk."""


class Denied(NotNow):
    """A process that this user may not look at."""


@dataclass(frozen=True, slots=True)
class Member:
    """A process of one server: Triton (`leader`), a model's or its child, or a helper of the server.

    The programs that one after the other become Triton are the leader too: beside a busy neighbour they take
    a while, and a server that starts is no dead one. For the same reason a `starter` shows nothing of a
    server: what is between two programs, and the shell that starts it, which is there before Triton, also
    while Triton is read from the disk, and ends with it.
    `text` is the label it carries.
    """

    pid: int
    name: str
    fleet: str
    text: str
    leader: bool
    starter: bool


class ServerProcess(NamedTuple):
    """A process of a server, a model's or (`triton` is its own pid) Triton itself, in any container."""

    pid: int
    server: str
    triton: int

    def is_there(self) -> bool:
        """Return whether the process is still that one."""
        if self.pid == self.triton:
            return is_triton(self.pid, self.server)
        return parent(self.pid) == self.triton


def members(*, fleet: str | None = None, name: str | None = None) -> tuple[Member, ...]:
    """Return this user's processes with our labels, of all fleets, one fleet or one server."""
    found: list[Member] = []
    for pid in pids():
        with contextlib.suppress(Denied):  # no server of this user's
            one = _member(pid)
            if one is not None and fleet in (None, one.fleet) and name in (None, one.name):
                found.append(one)
    return tuple(found)


def members_of(server: Server) -> tuple[Member, ...]:
    """Return the processes of this server. A later start of the same name is not it."""
    found = []
    for member in members(name=server.name):
        its = labels.server_of(member.text, id=str(member.pid), state=server.state)
        if its.instance == server.instance:
            found.append(member)
    return tuple(found)


def find(pid: int) -> Member | None:
    """Return the process as a member; None where it is gone, a zombie, another user's or has no labels."""
    deadline = time.monotonic() + _EXEC_S
    while (found := _member(pid)) is None and _between_programs(pid) and time.monotonic() < deadline:
        time.sleep(0.001)
    return found or _member(pid)


def server_processes(tritons: Mapping[int, str]) -> tuple[ServerProcess, ...]:
    """Return these Tritons (pid -> server) and their models' processes.

    A dead model's process is among them: Triton does not wait for it. A pid that is no such Triton's is
    passed over: it may be one of another host's, or of a machine's within.
    """
    found = [ServerProcess(pid, name, pid) for pid, name in tritons.items() if is_triton(pid, name)]
    servers = {process.pid: process.server for process in found}
    for pid in pids() if found else ():
        up = parent(pid)
        if up not in servers:
            continue
        # A dead model's process has no command line.
        name = (read_allowed(f"/proc/{pid}/comm") or b"").decode(errors="replace").rstrip("\n")
        if name == _STUB[:15] or Path(_command(pid)[0]).name == _STUB:
            found.append(ServerProcess(pid, servers[up], up))
    return tuple(found)


def is_triton(pid: int, name: str) -> bool:
    """Return whether this process is the Triton of the server of that name."""
    command = _command(pid)
    return Path(command[0]).name == "tritonserver" and f"--id={name}" in command


def has_pending_term(pid: int) -> bool:
    """Return whether another program has sent SIGTERM to a process that blocks it."""
    pending = _field(read_allowed(f"/proc/{pid}/status"), b"ShdPnd:")
    return any(int(signals, 16) >> (signal.SIGTERM - 1) & 1 for signals in pending)


def parent(pid: int) -> int | None:
    """Return the parent of a process, dead or alive; None where it is gone."""
    fields = _stat(pid)
    return None if fields is None else int(fields[1])


def died(pid: int) -> str | None:
    """Return how a process died, before its parent waits for it; None where it lives, ended well or is gone.

    A parent waits for what it ended itself, so what stays has ended of its own.
    """
    fields = _stat(pid)
    status = 0 if fields is None or fields[0] != "Z" else int(fields[49])
    if status == 0:
        return None
    number = status & 0x7F
    return f"by {signal.Signals(number).name}" if number else f"with exit code {status >> 8}"


def is_ending(pid: int) -> bool:
    """Return whether a process has begun to end, or is gone."""
    fields = _stat(pid)
    return fields is None or fields[0] in "ZX" or bool(int(fields[6]) & _EXITING)


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped (SIGSTOP)."""
    fields = _stat(pid)
    return fields is not None and fields[0] == "T"


def send(member: Member, number: signal.Signals) -> None:
    """Signal this process, and no other that got its pid; do nothing where it is gone."""
    with _held(member) as handle:
        _send(handle, number)


def wait_gone(member: Member, seconds: float) -> bool:
    """Wait for a process to end, for at most `seconds`; return whether it did."""
    with _held(member) as handle:
        return ends(handle, seconds)


def kill_all(present: Callable[[], tuple[Member, ...]]) -> tuple[int, ...]:
    """Kill every process that `present` returns, also later ones; return the pids that do not end."""
    deadline = time.monotonic() + _KILLED_S
    while found := _settled(present):
        with contextlib.ExitStack() as stack:
            # Held from before the kill: a thread may outlive the first one, whose end takes the labels away.
            handles = [stack.enter_context(_held(member)) for member in found]
            for handle in handles:
                _send(handle, signal.SIGKILL)
            if not all([ends(handle, deadline - time.monotonic()) for handle in handles]):
                return tuple(m.pid for m in found)
    return ()


def _settled(present: Callable[[], tuple[Member, ...]]) -> tuple[Member, ...]:
    """Return what `present` returns; where that is nothing, once more after every exec in progress.

    A process has no labels for a moment within exec, as a server that was interrupted at its start.
    """
    found = present()
    if not found:
        entering = [pid for pid in pids() if _between_programs(pid) and not _command(pid)[0]]
        if any([find(pid) for pid in entering]):
            found = present()
    return found


def pidfd(pid: int) -> int | None:
    """Open a pidfd, which the caller closes; None where the process is gone."""
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise _unknown(error) from error


@contextlib.contextmanager
def held(pid: int | None) -> Iterator[int | None]:
    """Hold a pidfd of this process; None where it is gone."""
    handle = None if pid is None else pidfd(pid)
    try:
        yield handle
    finally:
        if handle is not None:
            os.close(handle)


@contextlib.contextmanager
def _held(member: Member) -> Iterator[int | None]:
    """Hold a pidfd of this process, and of no other that got its pid; None where it is gone."""
    with held(member.pid) as handle:
        # The pidfd is open now: if the labels are still there, the pid was not reused.
        yield handle if handle is not None and _member(member.pid) is not None else None


def _send(handle: int | None, number: signal.Signals) -> None:
    if handle is not None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)


def ends(handle: int | None, seconds: float) -> bool:
    """Wait for the end of a process with all its threads, for at most `seconds`; return whether it did."""
    if handle is None:
        return True
    ended = select.poll()
    ended.register(handle, select.POLLIN)
    return bool(ended.poll(max(0.0, seconds) * 1000))


def cpu_seconds(pids: tuple[int, ...]) -> float:
    """Return the processor time of these processes and of their ended children, in seconds."""
    ticks = 0
    for pid in pids:
        # utime, stime, cutime, cstime: the time of an unloaded model's process counts as Triton's.
        ticks += sum(map(int, (_stat(pid) or [])[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_mb(pids: tuple[int, ...]) -> float:
    """Return the memory of these processes, with shared pages counted once (PSS); 0 where they are gone."""
    total = 0
    for pid in pids:
        # Nothing where it is gone, or gave up its memory and is a zombie.
        total += int(next(iter(_field(read(f"/proc/{pid}/smaps_rollup"), b"Pss:")), 0))
    return total / 1024


def pids() -> list[int]:
    """Return the pids of all processes that /proc shows."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError as error:
        raise _unknown(error) from error


def read(path: str) -> bytes | None:
    """Return a process's file in /proc; None where the process is gone. Raises NotNow."""
    # Unbuffered and without pathlib: listing reads a file of each process of the host.
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise _unknown(error) from error


def is_there(pid: int) -> bool:
    """Return whether this namespace has such a process; also one that /proc hides (`hidepid`)."""
    if pid <= 0:  # kill(2) takes it for a group
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def read_allowed(path: str) -> bytes | None:
    """Return the same; None also where this user may not read it."""
    with contextlib.suppress(Denied):
        return read(path)
    return None


def _unknown(error: OSError) -> NotNow:
    kind = Denied if isinstance(error, PermissionError) else NotNow
    return kind(f"this host's processes cannot be looked at now: {error}")


def _between_programs(pid: int) -> bool:
    """Return whether a living process has no environment, as for a moment within exec; no kernel thread."""
    fields = _stat(pid)
    if fields is None or fields[0] in "ZX" or int(fields[6]) & _KERNEL_THREAD:
        return False
    return read_allowed(f"/proc/{pid}/environ") == b""


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/<pid>/stat from the third on (its state); None where it is gone."""
    told = read(f"/proc/{pid}/stat")
    return None if told is None else told.decode(errors="replace").rpartition(")")[2].split()


def _command(pid: int) -> list[str]:
    """Return a process's command line; empty words where it is gone, or not this user's to read."""
    return (read_allowed(f"/proc/{pid}/cmdline") or b"").decode(errors="replace").split("\0")


def _field(text: bytes | None, field: bytes) -> list[bytes]:
    """Return the words of a field of a file in /proc/<pid>; none where the process is gone."""
    lines = (text or b"").splitlines()
    return next((line.split()[1:] for line in lines if line.startswith(field)), [])


def _member(pid: int) -> Member | None:
    # Paths as text: this runs for each process of the host, and pathlib took half of its time.
    folder = f"/proc/{pid}"
    try:
        if os.stat(folder).st_uid != os.geteuid():
            return None
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise _unknown(error) from error
    raw = read(f"{folder}/environ") or b""
    if _LABEL not in raw:
        return None
    # The real, effective and saved user: a setuid program keeps its caller's environment.
    users = _field(read(f"{folder}/status"), b"Uid:")[:3]
    if set(map(int, users)) != {os.geteuid()}:
        return None
    pairs = (item.partition("=") for item in raw.decode(errors="replace").split("\0"))
    environment = {key: value for key, _, value in pairs}
    name = environment.get(labels.NAME)
    if not name:
        return None
    command = _command(pid)
    # Without a command line it began an exec, or ended, since its environment was read.
    starter = command == [""] or _DETACH in command
    return Member(
        pid,
        name,
        environment.get(labels.FLEET, ""),
        environment.get(labels.SERVER, ""),
        leader=f"--id={name}" in command and not starter,
        starter=starter,
    )
