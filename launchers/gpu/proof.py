"""Proof that a server is a client of its GPU's MPS daemon, with its percentage.

"If the connection attempt fails, the program continues to run as it normally would without MPS"
(nvidia-cuda-mps-control(1)): such a server takes the whole GPU in time slices, and no call of it fails. So a
share is believed only where the daemon lists the server's processes.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from controlplane.domain.errors import EngineError
from launchers.gpu import control, gpus
from launchers.host import process_table

LISTED_S = 10.0
"""How long a new client may be missing in the daemon's lists."""
_PERCENT = 0.5
"""By how much a percentage may differ: the daemon may round it."""
_LOG_LINES = 200
_SERVER_EVENT = re.compile(r"(?P<bad>Server \d+ exited with status [1-9]\d*)|NEW SERVER \d+: Ready")


@dataclass(frozen=True, slots=True)
class Held:
    """What holds an MPS client: the percentage in its environment, and its server's limit; None: unknown."""

    asked: float | None = None
    limit: float | None = None

    def effect(self, planned: float) -> float:
        """Return the percentage in effect; the planned one as far as it is unknown."""
        return min(value for value in (self.limit, self.asked or planned) if value is not None)


@dataclass(frozen=True, slots=True)
class GpuClients:
    """The processes on a GPU by their pids: clients of its MPS daemon, and all others (None: unknown)."""

    clients: Mapping[int, Held] = field(default_factory=dict)
    others: frozenset[int] | None = frozenset()

    @property
    def are_none(self) -> bool:
        """Whether the GPU is certainly idle."""
        return not self.clients and self.others == frozenset()


def clients_of(uuid: str, pipes: Path, answer_s: float | None = None) -> GpuClients:
    """Return what the GPU's MPS daemon and its driver list; no clients where no daemon answers.

    Raises LaunchTimeout for a daemon that hangs.
    """
    servers = control.servers(pipes, answer_s) or []
    found: dict[int, Held] = {}
    for server in servers:
        limit = _limit(pipes, server, answer_s)
        for pid in control.clients(pipes, server, answer_s):
            found[pid] = Held(_asked(pid), limit)
    listed, of_mps = gpus.processes(uuid), {*found, *map(int, servers)}
    return GpuClients(found, None if listed is None else frozenset(listed.keys() - of_mps))


def lack(percent: float, pids: Collection[int], seen: GpuClients) -> str | None:
    """Return why a server with these processes has not its share; None where it has."""
    mine = sorted(seen.clients.keys() & set(pids))
    outside = sorted((seen.others or frozenset()) & set(pids))
    if outside:
        return f"its process {outside[0]} uses the GPU without MPS, and so all of it in turns"
    if not mine:
        return "none of its processes is a client of the GPU's MPS daemon"
    for pid in mine:
        effect = seen.clients[pid].effect(percent)
        if abs(effect - percent) > _PERCENT:
            return f"its process {pid} is held to {effect:g} %, not to {percent:g} %"
    return None


def way_out(pipes: Path) -> str:
    """Return the cause that can be seen of a server without its share, else what to look at."""
    ended = server_exit(pipes)
    if ended is not None:
        return ended
    servers = control.servers(pipes)
    if servers is None:
        return f"no MPS daemon answers in {pipes}: it has ended meanwhile; start the server again"
    hidden = [pid for pid in servers if process_table.is_there(int(pid)) and not Path("/proc", pid).exists()]
    if hidden:
        return (
            f"/proc hides mps-server {hidden[0]} (hidepid), which may serve another user: look with `ps` as "
            "root, or mount /proc with gid= of a group of yours"
        )
    return (
        f"it must run as user {control.owner(pipes)} with {control.PIPES}={pipes}, in a container with "
        "the host's IPC; `ctl doctor` checks the daemon and the GPU"
    )


def server_exit(pipes: Path) -> str | None:
    """Return what the daemon's log says where its MPS server could not start; None where it could."""
    folder = control.daemon_variable(pipes, control.LOGS) or str(pipes.parent / "log")
    try:
        with Path(folder, "control.log").open(errors="replace") as log:
            events = [found for line in deque(log, _LOG_LINES) if (found := _SERVER_EVENT.search(line))]
    except OSError:
        return None
    if not events or events[-1]["bad"] is None:
        return None
    return (
        f"mps-server exited ({events[-1]['bad']!r} in {folder}/control.log): a process without MPS may hold "
        f"the GPU in mode EXCLUSIVE_PROCESS, its clients' user may not pass {pipes}, or it lacks "
        f"{gpus.device_file_away() or 'devices or memory locks'}: see server.log"
    )


def _limit(pipes: Path, server: str, answer_s: float | None) -> float | None:
    """Return the percentage that a server's clients cannot exceed; None where the release does not say."""
    try:
        return float(control.ask(pipes, f"get_active_thread_percentage {server}", answer_s))
    except (EngineError, ValueError):
        return None


def _asked(pid: int) -> float | None:
    """Return the percentage in a client's environment; None for a process that this user may not read."""
    own = control.variables(pid)
    return float(own.get(control.PERCENTAGE) or 100.0) if own else None
