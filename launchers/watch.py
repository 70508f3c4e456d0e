"""Events of servers, and faults that end all servers of a GPU, as one `controlplane.ports.Watch`.

A fatal fault of one MPS client ends all clients of the device, and not always their processes: a Triton
stays up and fails every request. So a fault names all servers of the GPU, dead or not, in one event.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from controlplane.domain.fleet import Server
from controlplane.domain.observation import Health, News
from controlplane.ports import Watch
from launchers.gpu import control, gpus, mps

GONE_XIDS = {
    48: "double-bit ECC error",
    79: "GPU has fallen off the bus",
    95: "uncontained ECC error",
    119: "GSP RPC timeout",
    120: "GSP error",
}
"""Xid errors that no client survives, by NVIDIA's list. Others may concern one program; MPS decides."""
_ANSWER_S = 0.5
"""Short, because redirects wait for the answer, and the fault itself may make the daemon hang."""


class LauncherWatch:
    """`controlplane.ports.Watch` of any launcher, from one or several sources of events."""

    def __init__(self, watchers: Sequence[Watch], daemons: mps.MpsDaemons) -> None:
        self._watchers = watchers
        self._faults = GpuFaults(daemons)
        self._ended: set[str] = set()

    def news(self, servers: Collection[Server]) -> tuple[News, ...]:
        """Return the news: a GPU's fault is one item, and an end replaces other news of a server."""
        heard = [news for watcher in self._watchers for news in watcher.news(servers)]
        # An end may have two sources.
        self._ended &= {server.name for server in servers}
        heard = [news for news in heard if not self._ended.issuperset(news.servers)]
        ended = {name for news in heard if news.health is Health.GONE for name in news.servers}
        self._ended |= ended
        faults = self._faults.news(servers, ended)
        taken = {name for fault in faults for name in fault.servers}
        rest = (n for n in heard if n.health is Health.GONE or not ended.issuperset(n.servers))
        return (*faults, *(news for news in rest if not taken.issuperset(news.servers)))

    def close(self) -> None:
        """Stop listening."""
        for watcher in self._watchers:
            watcher.close()
        self._faults.close()


class GpuFaults:
    """Listens for faults of the servers' GPUs."""

    def __init__(self, daemons: mps.MpsDaemons) -> None:
        self._daemons = daemons
        self._events: gpus.XidEvents | None = None
        self._asked: list[Server] = []
        self._on: dict[str, list[str]] = {}

    def news(self, servers: Collection[Server], ended: Collection[str]) -> tuple[News, ...]:
        """Return an item for each GPU with a fault; `ended` are the servers that just ended."""
        if [*servers] != self._asked:
            self._asked, self._on = [*servers], {}
            for server in servers:
                if gpus.is_gpu(server.spec.device):
                    self._on.setdefault(server.spec.device, []).append(server.name)
        on = self._on
        if not on:
            return ()
        if self._events is None:
            self._events = gpus.XidEvents()
        xids = self._events.take(on)
        found = []
        for uuid, names in on.items():
            mine = [xid for where, xid in xids if where == uuid]
            dead = [name for name in names if name in ended]
            reason = self._reason(uuid, mine, dead, names) if mine or dead else None
            if reason is not None:
                found.append(News(tuple(names), f"{uuid}: {reason}", uuid))
        return tuple(found)

    def close(self) -> None:
        """Stop listening to the driver."""
        if self._events is not None:
            self._events.close()

    def _reason(self, uuid: str, xids: list[int], dead: list[str], names: list[str]) -> str | None:
        """Return why a fault is the GPU's; None where it is one server's."""
        for xid in xids:
            if xid in GONE_XIDS:
                return f"Xid {xid} ({GONE_XIDS[xid]})"
        if control.FAULT in control.state(self._daemons.pipes(uuid), _ANSWER_S):
            after = "".join(f", Xid {xid}" for xid in xids)
            return f"the MPS server reports a fatal fault{after}: every client of the GPU is lost"
        if len(dead) == len(names) > 1:
            return f"all {len(dead)} servers ended at once"
        return None
