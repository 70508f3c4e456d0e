"""Mechanisms that limit a server to a percentage of one core, best first, behind one protocol.

mechanism      cores as devices, the quota of a percentage, the interface of mechanisms
cgroup         a cgroup for each server
systemd        a scope of the user's systemd
counters       what the kernel counts of a process's groups
"""

from __future__ import annotations

from collections.abc import Sequence

from launchers.cpu_quota.cgroup import V1, V2, Cgroup
from launchers.cpu_quota.mechanism import Group, Mechanism
from launchers.cpu_quota.systemd import SystemdScope

__all__ = ["CHAIN", "Group", "Mechanism", "first_that_holds"]

CHAIN: tuple[Mechanism, ...] = (Cgroup(V2), Cgroup(V1), SystemdScope())


def first_that_holds(mechanisms: Sequence[Mechanism]) -> Mechanism | None:
    """Return the first mechanism that passes its trial."""
    return next((mechanism for mechanism in mechanisms if mechanism.obstacle() is None), None)
