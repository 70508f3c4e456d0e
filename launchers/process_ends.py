"""Ends of plain processes, from the kernel itself: a handle on a process becomes readable when it ends."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from controlplane.domain.fleet import Server
from controlplane.domain.observation import News
from launchers import process_table

_ENDED = "its process ended"


@dataclass(frozen=True, slots=True)
class _Held:
    """A process that is listened to: a server's Triton, or (`stub`) one of its models'."""

    server: str
    pid: int
    stub: bool


class ProcessEnds:
    """A handle on each server's Triton that was asked about and on its models' processes, and no thread.

    Asking is one system call. `stubs` are the models' processes that are known by now: pid -> server. Triton
    2.51 neither starts a dead one again nor calls itself unready: it takes a second to refuse each request.
    """

    def __init__(self, stubs: Callable[[], Mapping[int, str]]) -> None:
        self._stubs = stubs
        self._handles: dict[int, _Held] = {}
        self._told: set[str] = set()
        self._impaired: set[str] = set()
        self._asked: list[Server] = []
        self._listed: Mapping[int, str] = {}
        self._ends = select.poll()

    def news(self, servers: Collection[Server]) -> tuple[News, ...]:
        """Those whose Triton ended since they were asked about, or before, and those that lost a model."""
        ended: list[str] = []
        listed = self._stubs()
        if listed is not self._listed or [*servers] != self._asked:
            self._asked, self._listed = [*servers], listed
            ended = self._asked_about({s.name: s for s in servers})
        impaired: dict[str, str] = {}
        for handle, _ in self._ends.poll(0):
            held = self._handles[handle]
            self._drop(handle)
            if not held.stub:
                ended.append(held.server)
            elif how := process_table.died(held.pid):
                impaired.setdefault(held.server, f"a process of its models ended {how}")
        self._told.update(ended)
        fresh = {name: why for name, why in impaired.items() if name not in self._told | self._impaired}
        self._impaired.update(fresh)
        return (
            *(News((name,), _ENDED) for name in ended),
            *(News((name,), why, impaired=True) for name, why in fresh.items()),
        )

    def _asked_about(self, asked: Mapping[str, Server]) -> list[str]:
        """Others than before, or other processes of theirs; those of them that are gone already."""
        for handle, held in tuple(self._handles.items()):
            if held.server not in asked:
                self._drop(handle)
        self._told &= asked.keys()
        self._impaired &= asked.keys()
        known = {held.pid for held in self._handles.values()}
        for pid, name in self._listed.items():
            if name in asked and pid not in known:
                self._hold_stub(pid, asked[name])
        return [n for n, s in asked.items() if n not in self._told and not self._hold_triton(s, known)]

    def close(self) -> None:
        """Let go of every handle."""
        for handle in tuple(self._handles):
            self._drop(handle)

    def _hold_triton(self, server: Server, known: Collection[int]) -> bool:
        """Take a handle where there is none; False where the process is gone."""
        # Without an id it was gone as soon as it had started.
        pid = int(server.id or -1)
        if pid in known:
            return True
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            return False
        member = process_table.find(pid)
        if member is None or member.name != server.name:
            os.close(handle)
            return False
        self._hold(handle, _Held(server.name, pid, stub=False))
        return True

    def _hold_stub(self, pid: int, server: Server) -> None:
        """Take a handle on a child of Triton; what its models start themselves may end as it likes."""
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            return
        if str(process_table.parent(pid)) != server.id:
            os.close(handle)
            return
        self._hold(handle, _Held(server.name, pid, stub=True))

    def _hold(self, handle: int, held: _Held) -> None:
        self._handles[handle] = held
        self._ends.register(handle, select.POLLIN)

    def _drop(self, handle: int) -> None:
        del self._handles[handle]
        self._ends.unregister(handle)
        os.close(handle)
