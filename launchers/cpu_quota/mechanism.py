"""Cores as devices, the quota of a percentage of a core, and the interface of mechanisms that enforce it."""

from __future__ import annotations

import contextlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from controlplane.domain.errors import InputError
from controlplane.domain.fleet import ServerSpec, ShareUsage
from launchers.triton.labels import digest

PERIOD_US = 10_000
"""The bandwidth period. The kernel's default of 100 ms more than doubles P99 at a quarter of a core."""
_SHORTEST_QUOTA_US = 1_000
_LONGEST_PARTITION = 64


@dataclass(frozen=True, slots=True)
class Group:
    """The group of one server's processes. `server` is the digest of the server's name."""

    fleet: str
    partition: str
    server: str

    @classmethod
    def of(cls, spec: ServerSpec) -> Group:
        """Return the group of this server."""
        return cls(spec.labels.fleet, spec.labels.partition[:_LONGEST_PARTITION], digest(spec.name))

    @classmethod
    def parse(cls, folder: str) -> Group | None:
        """Return the group of a folder; None where it is not ours."""
        found = re.fullmatch(r"trisect~([^~]+)~([^~]+)~([0-9a-f]{12})", folder)
        return cls(*found.groups()) if found else None

    @property
    def folder(self) -> str:
        """A folder name with fleet, partition and server; no name contains `~`."""
        return f"trisect~{self.fleet}~{self.partition}~{self.server}"


def bandwidth(percent: float) -> tuple[int, int]:
    """Return (quota, period) in microseconds for a percentage of one core.

    The kernel takes no quota below 1 ms: the period of a tiny share is as long as that needs.
    """
    period = max(PERIOD_US, round(_SHORTEST_QUOTA_US * 100 / percent))
    return round(period * percent / 100), period


class Weight(Enum):
    """A group's weight against the others of its core; other programs have the one of SLOW_START.

    The values are `cpu.shares` of cgroups version 1, and `cpu.weight` of version 2.
    """

    START = (64, 6)
    """A start that gives way takes only what its neighbours leave."""
    SLOW_START = (1024, 100)
    """Of a start that gets nearly nothing: a busy host may delay it, but not for ever."""
    FULL = (32768, 1250)
    """So that a busy host takes little from a server."""

    @property
    def shares(self) -> int:
        """The weight in version 1."""
        return int(self.value[0])

    @property
    def weight(self) -> int:
        """The weight in version 2."""
        return int(self.value[1])


class Mechanism(ABC):
    """One way to enforce a share. The quota is set before the server's first instruction."""

    name: str
    """The name in `Server.enforced_by`."""

    @abstractmethod
    def obstacle(self) -> str | None:
        """Return why it does not work here; None after a trial was written, read back and removed."""

    @abstractmethod
    def enter(self, group: Group, percent: float) -> list[str]:
        """Make the group with the weight of a start; return how a command line that runs in it begins.

        Raises OSError.
        """

    @abstractmethod
    def weigh(self, group: Group, weight: Weight) -> None:
        """Change the weight of a running group, where it has one. Raises OSError."""

    @abstractmethod
    def resize(self, group: Group, percent: float) -> None:
        """Change the percentage of a running server. Raises OSError."""

    @abstractmethod
    def usage(self, group: Group, pids: tuple[int, ...]) -> ShareUsage:
        """Return the counters of the group with these processes."""

    def leave(self, group: Group) -> bool:
        """Remove a group whose processes are gone; return whether there was one. Raises OSError."""
        return False

    def groups(self, fleet: str) -> tuple[Group, ...]:
        """Return the fleet's groups, which may be left behind."""
        return ()


def core_of(device: str) -> int:
    """Return the core that `cpu-i` names.

    Raises InputError for another kind of device, or a core this program may not use.
    """
    found = re.fullmatch(r"cpu-(\d+)", device)
    if found is None:
        raise InputError(f"{device!r} is no core of this host: cores are cpu-0, cpu-1, ...", field="device")
    core = int(found.group(1))
    with pinned(core):
        return core


@contextlib.contextmanager
def pinned(core: int) -> Iterator[None]:
    """Keep this thread on one core; processes that it starts inherit that.

    Raises InputError for an absent core.
    """
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {core})
    except OSError as error:
        usable = ", ".join(f"cpu-{i}" for i in sorted(before))
        raise InputError(f"this host has no core {core} for us; usable: {usable}", field="device") from error
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
