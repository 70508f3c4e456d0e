"""Ends of plain processes, from the kernel itself: a handle on a process becomes readable when it ends."""

from __future__ import annotations

import os
import select
from collections.abc import Collection

from controlplane.domain.fleet import Server
from controlplane.domain.observation import News
from launchers import process_table

_ENDED = "its process ended"


class ProcessEnds:
    """A handle on each server's Triton that was asked about, and no thread: asking is one system call."""

    def __init__(self) -> None:
        self._handles: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._told: set[str] = set()
        self._asked: list[Server] = []
        self._ends = select.poll()

    def news(self, servers: Collection[Server]) -> tuple[News, ...]:
        """Those whose Triton ended since they were first asked about, or before."""
        ended = self._asked_about(servers) if [*servers] != self._asked else []
        ended += [self._names[handle] for handle, _ in self._ends.poll(0)]
        fresh = [name for name in ended if name not in self._told]
        self._told.update(fresh)
        for name in fresh:
            self._drop(name)
        return tuple(News((name,), _ENDED) for name in fresh)

    def _asked_about(self, servers: Collection[Server]) -> list[str]:
        """Others than before; those of them that are gone already."""
        self._asked = [*servers]
        asked = {s.name: s for s in servers}
        for name in self._handles.keys() - asked.keys():
            self._drop(name)
        self._told &= asked.keys()
        return [n for n, s in asked.items() if n not in self._handles and not self._hold(n, s)]

    def close(self) -> None:
        """Let go of every handle."""
        for name in tuple(self._handles):
            self._drop(name)

    def _hold(self, name: str, server: Server) -> bool:
        """Take a handle; False where the process is gone."""
        if name in self._told:
            return True
        try:
            # Without an id it was gone as soon as it had started.
            pid = int(server.id or -1)
            handle = os.pidfd_open(pid)
        except OSError:
            return False
        member = process_table.find(pid)
        if member is None or member.name != name:
            os.close(handle)
            return False
        self._handles[name], self._names[handle] = handle, name
        self._ends.register(handle, select.POLLIN)
        return True

    def _drop(self, name: str) -> None:
        handle = self._handles.pop(name, None)
        if handle is not None:
            self._ends.unregister(handle)
            del self._names[handle]
            os.close(handle)
