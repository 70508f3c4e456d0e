"""The protocol of mechanisms that enforce a CPU share."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from controlplane.domain.fleet import ServerSpec, ShareUsage
from launchers.labels import digest

PERIOD_US = 10_000
"""The bandwidth period. The kernel's default of 100 ms more than doubles P99 at a quarter of a core."""
_SHORTEST_QUOTA_US = 1_000
_LONGEST_PARTITION = 64


@dataclass(frozen=True, slots=True)
class Group:
    """The processes of one server, as a quota sees them. `server` is the digest of the server's name."""

    fleet: str
    partition: str
    server: str

    @classmethod
    def of(cls, spec: ServerSpec) -> Group:
        """The group of this server."""
        return cls(spec.labels.fleet, spec.labels.partition[:_LONGEST_PARTITION], digest(spec.name))

    @classmethod
    def parse(cls, folder: str) -> Group | None:
        """The group a folder belongs to; None where it is not ours."""
        found = re.fullmatch(r"trisect~([^~]+)~([^~]+)~([0-9a-f]{12})", folder)
        return cls(*found.groups()) if found else None

    @property
    def folder(self) -> str:
        """A folder name that says whose it is; `~` is in no name of ours."""
        return f"trisect~{self.fleet}~{self.partition}~{self.server}"


def bandwidth(percent: float) -> tuple[int, int]:
    """(quota, period) in microseconds for a percentage of one core.

    The kernel takes no quota below 1 ms: the period of a tiny share is as long as that needs.
    """
    period = max(PERIOD_US, round(_SHORTEST_QUOTA_US * 100 / percent))
    return round(period * percent / 100), period


class Mechanism(Protocol):
    """One way to hold a share. The quota is in place before the server's first instruction."""

    @property
    def name(self) -> str:
        """What `enforced_by` says."""

    def obstacle(self) -> str | None:
        """Why it does not work here; None where a trial was written, read back and removed."""

    def enter(self, group: Group, percent: float) -> list[str]:
        """Make the group; what to put before a command line so that it runs inside. Raises OSError."""

    def resize(self, group: Group, percent: float, pids: tuple[int, ...]) -> None:
        """Hold a running server, whose processes these are, to another percentage. Raises OSError."""

    def usage(self, group: Group, pids: tuple[int, ...]) -> ShareUsage:
        """Counters of the group, whose processes these are."""

    def leave(self, group: Group) -> bool:
        """Remove a group whose processes are gone; whether there was one. Raises OSError."""

    def groups(self, fleet: str) -> tuple[Group, ...]:
        """The fleet's groups that exist."""
