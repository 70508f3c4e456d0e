"""Servers that are processes of this host: what a launcher of such processes lists, ends, counts and watches.

Every process with a server's label belongs to it. Nothing is remembered that /proc does not say again, so
the next program finds the same servers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import Server, ServerSpec, ServerState, ShareUsage
from launchers.host import process_table
from launchers.host.process_ends import ListedEnds, TritonEnds
from launchers.host.process_table import Listed, Member
from launchers.host.unread import await_read
from launchers.triton import labels, readiness

_TERM = "another program sent it SIGTERM"


class HostServers:
    """Servers of this user, found by the labels of their processes."""

    def __init__(self) -> None:
        self._stubs: dict[str, Mapping[int, Listed]] = {}

    def of_fleet(self, fleet: str) -> tuple[Server, ...]:
        """Return a fleet's servers by name; one whose Triton is gone while its models run has exited."""
        found: dict[str, Server] = {}
        members = process_table.members(fleet=fleet)
        # For the watch.
        processes = process_table.listed({m.pid: m.name for m in members if m.leader})
        self._stubs[fleet] = {pid: one for pid, one in processes.items() if pid != one.triton}
        for member in members:
            known = found.get(member.name)
            if known is None or known.state is ServerState.EXITED:
                found[member.name] = _server(member)
        return tuple(found[name] for name in sorted(found))

    def running(self, name: str | None = None) -> tuple[Server, ...]:
        """Return the servers of this name, or of any, whose Triton runs; of all fleets."""
        return tuple(_server(m) for m in process_table.members(name=name) if m.leader)

    def names(self, fleet: str) -> set[str]:
        """Return the names of a fleet's servers that have a process."""
        return {m.name for m in process_table.members(fleet=fleet)}

    def pids(self, name: str) -> tuple[int, ...]:
        """Return all processes of a server."""
        return tuple(m.pid for m in process_table.members(name=name))

    def is_up(self, server: Server, pid: int) -> bool | None:
        """Return whether process `pid` is this server, ready on its own ports; None where it has ended."""
        try:
            member = process_table.find(pid)
        except process_table.Denied:
            return False  # it makes its namespace, for which it has other rights
        if member is None:
            return None
        ready = member.leader and readiness.is_ready(server)
        return ready and process_table.listens(pid, process_table.ports_of(server))

    def stop(self, server: Server, drain_s: float) -> bool:
        """Have Triton finish its requests and end, then kill all processes of the server.

        Triton waits for idle connections too: close those first, or the whole of `drain_s` passes. Returns
        whether nothing of that name is left: a later server of the name stays. Raises EngineError where a
        process does not even end by SIGKILL.
        """
        deadline = time.monotonic() + drain_s
        members = process_table.members_of(server)
        stopped = any(process_table.is_stopped(member.pid) for member in members)
        for member in members:
            process_table.send(member, process_table.CONTINUE)
        for leader in (m for m in members if m.leader):
            if stopped and drain_s > 0:
                await_read(server, leader.pid, process_table.ports_of(server), drain_s / 4)
            process_table.send(leader, process_table.END)
            process_table.wait_gone(leader, deadline - time.monotonic())
        _kill(server.spec, partial(process_table.members_of, server))
        return not process_table.members(name=server.name)

    def kill(self, spec: ServerSpec) -> None:
        """Kill every process of that name, whichever server it is of. Raises EngineError as `stop` does."""
        _kill(spec, partial(process_table.members, name=spec.name))

    def usage(self, name: str) -> ShareUsage:
        """Return the processor time and the memory of a server's processes."""
        pids = self.pids(name)
        return ShareUsage(None, None, process_table.cpu_seconds(pids), process_table.memory_mb(pids))

    def ends(self, fleet: str) -> tuple[TritonEnds, ListedEnds]:
        """Watch the processes by pidfd; a model's from the first `of_fleet` that lists it."""
        return TritonEnds(), ListedEnds(lambda: self._stubs.get(fleet, {}))


def _server(member: Member) -> Server:
    state = ServerState.RUNNING if member.leader else ServerState.EXITED
    found = labels.server_of(member.text, id=str(member.pid), state=state)
    return replace(found, end=_TERM) if process_table.has_pending_term(member.pid) else found


def _kill(spec: ServerSpec, present: Callable[[], tuple[Member, ...]]) -> None:
    left = process_table.kill_all(present)
    if left:
        raise EngineError(f"{spec.name}: processes {left} do not end, not even by SIGKILL")
