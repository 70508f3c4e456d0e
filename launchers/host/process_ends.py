"""Ends of processes, reported by the kernel: a pidfd becomes readable when its process ends."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable, Collection, Mapping
from functools import partial

from controlplane.domain.errors import NotNow
from controlplane.domain.fleet import Server
from controlplane.domain.observation import Health, News, out_of_memory
from launchers.host import process_table
from launchers.host.process_table import Listed

_ENDED = "its process ended"


class Handles:
    """A pidfd for each of some processes, with its server's name. Reading the ends is one system call."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[int, str]] = {}
        self._ends = select.poll()

    def pids(self) -> set[int]:
        """Return the pids of the held processes."""
        return {pid for pid, _ in self._held.values()}

    def hold(self, pid: int, server: str, is_it: Callable[[], bool]) -> bool:
        """Open a pidfd, unless the process is gone. Then the pid cannot be reused, and `is_it` checks it.

        Raises NotNow where either cannot be known now.
        """
        handle = process_table.pidfd(pid)
        if handle is None:
            return False
        try:
            if not is_it():
                os.close(handle)
                return False
        except NotNow:
            os.close(handle)
            raise
        self._held[handle] = (pid, server)
        self._ends.register(handle, select.POLLIN)
        return True

    def ended(self) -> list[tuple[int, str]]:
        """Return the processes that ended, with their servers, and close their pidfds."""
        return [self._let_go(handle) for handle, _ in self._ends.poll(0)]

    def keep(self, servers: Collection[str]) -> None:
        """Close the pidfds of other servers' processes."""
        for handle, (_, server) in tuple(self._held.items()):
            if server not in servers:
                self._let_go(handle)

    def _let_go(self, handle: int) -> tuple[int, str]:
        self._ends.unregister(handle)
        os.close(handle)
        return self._held.pop(handle)


class TritonEnds:
    """Ends of Tritons that are plain processes: a server's id is its Triton's pid."""

    def __init__(self) -> None:
        self._handles = Handles()
        self._told: set[str] = set()
        self._asked: list[Server] = []

    def news(self, servers: Collection[Server]) -> tuple[News, ...]:
        """Return the servers whose Triton has ended, each once."""
        ended: list[str] = []
        if [*servers] != self._asked:
            self._asked = [*servers]
            ended = self._asked_about({s.name: s for s in servers})
        ended += [server for _, server in self._handles.ended()]
        self._told.update(ended)
        return tuple(News((name,), _ENDED, certain=True) for name in ended)

    def close(self) -> None:
        """Close every pidfd."""
        self._handles.keep(())

    def _asked_about(self, asked: Mapping[str, Server]) -> list[str]:
        """Hold the processes of these servers; return the servers whose process is already gone."""
        self._handles.keep(asked)
        self._told &= asked.keys()
        known = self._handles.pids()
        gone = []
        for name, server in asked.items():
            try:
                if name not in self._told and not self._held(server, known):
                    gone.append(name)
            except NotNow:
                self._asked = []  # look again in the next call
        return gone

    def _held(self, server: Server, known: Collection[int]) -> bool:
        """Hold a server's process; return False where it is gone."""
        # A server without an id ended right after its start.
        pid = int(server.id or -1)

        def is_it() -> bool:
            member = process_table.find(pid)
            return member is not None and member.name == server.name

        return pid in known or self._handles.hold(pid, server.name, is_it)


class ListedEnds:
    """Ends of Tritons and of models' processes, also in containers. `listed` returns them by pid.

    `memory_kills` returns how many processes of a Triton's group the kernel killed for lack of memory. Triton
    2.51 neither restarts a model's process that died nor becomes unready: it takes a second to refuse each
    request. The ends of processes that a model starts itself are not reported.
    """

    def __init__(
        self, listed: Callable[[], Mapping[int, Listed]], memory_kills: Callable[[int], int] = lambda _: 0
    ) -> None:
        self._list = listed
        self._memory_kills = memory_kills
        self._handles = Handles()
        self._told: set[str] = set()
        self._asked: list[Server] = []
        self._listed: Mapping[int, Listed] = {}
        self._watched: dict[int, Listed] = {}
        self._ended: list[tuple[int, str]] = []

    def news(self, servers: Collection[Server]) -> tuple[News, ...]:
        """Return the servers whose Triton ended, or with a model's process that was killed or crashed."""
        listed = self._list()
        if listed is not self._listed or [*servers] != self._asked:
            self._asked, self._listed = [*servers], listed
            self._asked_about({s.name for s in servers})
        died: dict[str, News] = {}
        ended, self._ended = [*self._ended, *self._handles.ended()], []
        for pid, server in ended:
            try:
                if pid == self._watched[pid].triton:
                    died[server] = News((server,), _ENDED, certain=True)
                elif server not in self._told and (how := process_table.died(pid)):
                    died.setdefault(server, self._impaired(server, pid, how))
            except NotNow:
                self._ended.append((pid, server))
        self._told.update(died)
        return tuple(died.values())

    def _impaired(self, name: str, pid: int, how: str) -> News:
        server = next((s for s in self._asked if s.name == name), None)
        reason = f"a process of its models ended {how}"
        if server is not None and self._memory_kills(self._watched[pid].triton):
            reason = out_of_memory(server)
        return News((name,), reason, health=Health.IMPAIRED, certain=True)

    def close(self) -> None:
        """Let go of every handle."""
        self._handles.keep(())

    def _asked_about(self, asked: Collection[str]) -> None:
        self._handles.keep(asked)
        self._told.intersection_update(asked)
        held = self._handles.pids()
        ended = {pid for pid, _ in self._ended}
        self._watched = {pid: one for pid, one in self._watched.items() if pid in held or pid in ended}
        for pid, one in self._listed.items():
            if one.server in asked and pid not in held:
                with contextlib.suppress(NotNow):  # the next list has it too
                    if self._handles.hold(pid, one.server, partial(_is_listed, pid, one)):
                        self._watched[pid] = one


def _is_listed(pid: int, one: Listed) -> bool:
    if pid == one.triton:
        return process_table.is_triton(pid, one.server)
    return process_table.parent(pid) == one.triton
