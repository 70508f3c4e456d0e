"""Events of servers, and faults that end all servers of a GPU, as one `controlplane.ports.Watch`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from controlplane.domain.fleet import Server
from controlplane.domain.observation import Health, News
from launchers.gpu.faults import GpuFaults
from launchers.gpu.mps import MpsDaemons


class ServerWatcher(Protocol):
    """One source of events of servers, as `controlplane.ports.Watch`."""

    def news(self, servers: Collection[Server]) -> tuple[News, ...]:
        """Return an item for each server whose health has changed."""

    def close(self) -> None:
        """Stop listening."""


class LauncherWatch:
    """`controlplane.ports.Watch` of any launcher."""

    def __init__(self, watchers: Sequence[ServerWatcher], daemons: MpsDaemons) -> None:
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
