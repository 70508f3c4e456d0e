"""Mechanisms that limit a server to a percentage of one core, best first, behind one protocol."""

from __future__ import annotations

from collections.abc import Sequence

from launchers.cpu_quota.cgroup_v1 import CgroupV1
from launchers.cpu_quota.cgroup_v2 import CgroupV2
from launchers.cpu_quota.duty_cycle import DutyCycle
from launchers.cpu_quota.mechanism import Group, Mechanism
from launchers.cpu_quota.systemd_scope import SystemdScope

__all__ = ["CHAIN", "Group", "Mechanism", "first_that_holds"]

CHAIN: tuple[Mechanism, ...] = (CgroupV2(), CgroupV1(), SystemdScope(), DutyCycle())


def first_that_holds(mechanisms: Sequence[Mechanism]) -> tuple[Mechanism | None, dict[str, str]]:
    """Return the first mechanism that passes its trial, and the obstacles of those before it."""
    obstacles: dict[str, str] = {}
    for mechanism in mechanisms:
        obstacle = mechanism.obstacle()
        if obstacle is None:
            return mechanism, obstacles
        obstacles[mechanism.name] = obstacle
    return None, obstacles
