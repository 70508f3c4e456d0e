"""What a launcher hears: servers that end or are impaired, and GPUs whose fault ended all of theirs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from controlplane.domain.fleet import Server
from controlplane.domain.observation import News
from launchers.gpu_faults import GpuFaults
from launchers.mps import MpsDaemons


class Ends(Protocol):
    """One launcher's way to hear that servers end; as `controlplane.ports.Watch`."""

    def news(self, servers: Collection[Server]) -> tuple[News, ...]:
        """One item for each server that ended, or lost a process of its models."""

    def close(self) -> None:
        """Stop listening."""


class LauncherWatch:
    """`controlplane.ports.Watch` of any launcher."""

    def __init__(self, ends: Ends, daemons: MpsDaemons) -> None:
        self._ends = ends
        self._faults = GpuFaults(daemons)

    def news(self, servers: Collection[Server]) -> tuple[News, ...]:
        """A fault of a GPU is one item, whatever else was heard of its servers."""
        ends = self._ends.news(servers)
        ended = {name for end in ends if not end.impaired for name in end.servers}
        faults = self._faults.news(servers, ended)
        taken = {name for fault in faults for name in fault.servers}
        return (*faults, *(end for end in ends if not taken.issuperset(end.servers)))

    def close(self) -> None:
        """Stop listening."""
        self._ends.close()
        self._faults.close()
