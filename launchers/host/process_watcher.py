"""Ends of processes, reported by the kernel: a pidfd becomes readable when its process ends."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable, Collection

from controlplane.domain.errors import NotNow
from controlplane.domain.fleet import Server
from controlplane.domain.observation import Health, News, out_of_memory
from launchers.host import process_table
from launchers.host.process_table import ServerProcess

_ENDED = "its process ended"


class ProcessWatcher:
    """Watches Tritons and their models' processes, also in containers, by a pidfd for each.

    `listed` returns those that the last list of servers found. `pid_of` returns the pid of a server's Triton
    where the server itself tells it, which then need not be listed. `memory_kills` returns how many processes
    of a Triton's group the kernel killed for lack of memory.

    Triton 2.51 neither restarts a model's process that died nor becomes unready: it takes a second to refuse
    each request. The ends of processes that a model starts itself are not reported.
    """

    def __init__(
        self,
        listed: Callable[[], tuple[ServerProcess, ...]],
        pid_of: Callable[[Server], int | None] = lambda _: None,
        memory_kills: Callable[[int], int] = lambda _: 0,
    ) -> None:
        self._list, self._pid_of, self._memory_kills = listed, pid_of, memory_kills
        self._asked: list[Server] = []
        self._listed: tuple[ServerProcess, ...] = ()
        self._holds_all = True
        self._reported: dict[str, Health] = {}
        # By pidfd. Reading the ends of all is one system call.
        self._held: dict[int, ServerProcess] = {}
        self._ends = select.poll()
        self._unread: list[ServerProcess] = []

    def news(self, servers: Collection[Server]) -> tuple[News, ...]:
        """Return the servers whose Triton ended, or with a model's process that was killed or crashed."""
        listed = self._list()
        ended: list[ServerProcess] = []
        if not self._holds_all or listed is not self._listed or [*servers] != self._asked:
            self._asked, self._listed, self._holds_all = [*servers], listed, True
            ended += self._hold_all({s.name for s in servers})
        ended += self._unread
        self._unread = []
        ended += [self._let_go(handle) for handle, _ in self._ends.poll(0)]
        found: dict[str, News] = {}
        for process in ended:
            name = process.server
            try:
                if process.pid == process.triton:
                    found[name] = News((name,), _ENDED, certain=True)
                elif name not in self._reported and (how := process_table.died(process.pid)):
                    if process_table.is_ending(process.triton):
                        # The first process of a container takes the others with it, just before its own end.
                        self._unread.append(process)
                    else:
                        found.setdefault(name, self._impaired(process, how))
            except NotNow:
                self._unread.append(process)
        self._reported |= {name: news.health for name, news in found.items()}
        return tuple(found.values())

    def close(self) -> None:
        """Close every pidfd."""
        for handle in tuple(self._held):
            self._let_go(handle)

    def _impaired(self, process: ServerProcess, how: str) -> News:
        server = next((s for s in self._asked if s.name == process.server), None)
        reason = f"a process of its models ended {how}"
        if server is not None and self._memory_kills(process.triton):
            reason = out_of_memory(server)
        return News((process.server,), reason, health=Health.IMPAIRED, certain=True)

    def _hold_all(self, names: Collection[str]) -> list[ServerProcess]:
        """Hold the processes of these servers only; return the servers' own Tritons that are gone."""
        for handle, process in tuple(self._held.items()):
            if process.server not in names:
                self._let_go(handle)
        self._reported = {name: health for name, health in self._reported.items() if name in names}
        pids = ((server.name, self._pid_of(server)) for server in self._asked)
        own = [ServerProcess(pid, name, pid) for name, pid in pids if pid is not None]
        held = {process.pid for process in self._held.values()}
        gone = [p for p in own if p.pid not in held and not self._hold(p)]
        known = {process.pid for process in own} | held | {process.pid for process in self._unread}
        for process in self._listed:
            if process.server in names and process.pid not in known:
                self._hold(process)
        return [p for p in gone if self._reported.get(p.server) is not Health.GONE]

    def _hold(self, process: ServerProcess) -> bool:
        """Open a process's pidfd; return False where it is gone. What cannot be known now is asked again."""
        try:
            handle = process_table.pidfd(process.pid)
            if handle is None:
                return False
            with contextlib.ExitStack() as stack:
                stack.callback(os.close, handle)
                # The pidfd is open: if it is that process now, its pid was not reused.
                if not process.is_there():
                    return False
                stack.pop_all()
        except NotNow:
            self._holds_all = False
            return True
        self._held[handle] = process
        self._ends.register(handle, select.POLLIN)
        return True

    def _let_go(self, handle: int) -> ServerProcess:
        self._ends.unregister(handle)
        os.close(handle)
        return self._held.pop(handle)
