"""Shares of this host's devices that other fleets of this user have, as the labels of their servers say.

No state folder is read: a fleet of another one counts too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from controlplane.domain.device import CPU_DEVICE
from controlplane.domain.errors import InputError
from controlplane.domain.fleet import Role, Server, ServerSpec
from controlplane.domain.plan import Plan
from controlplane.files.documents import Document
from controlplane.files.fleets import FleetFiles
from controlplane.runtime.fleet.execute import Say

Shares = Mapping[str, Mapping[str, float]]
"""Device -> fleet -> percent."""


def of_others(servers: Iterable[Server], fleet: str) -> Shares:
    """Return the shares of all fleets but this one. A shadow counts only where it serves alone."""
    chosen: dict[tuple[str, str], ServerSpec] = {}
    for spec in (server.spec for server in servers):
        labels = spec.labels
        if labels.fleet == fleet or labels.role is Role.PROFILE:
            continue
        key = labels.fleet, labels.partition
        before = chosen.get(key)
        if before is None or _weight(spec) > _weight(before):
            chosen[key] = spec
    found: dict[str, dict[str, float]] = {}
    for (owner, _), spec in sorted(chosen.items()):
        its = found.setdefault(spec.device, {})
        its[owner] = its.get(owner, 0.0) + spec.percent
    return found


def _weight(spec: ServerSpec) -> tuple[bool, float]:
    return spec.labels.role is Role.ACTIVE, spec.percent


def check(
    plan: Plan, document: Document, devices: Mapping[str, str], others: Shares, say: Say, *, accepted: bool
) -> None:
    """Raise InputError, at the plan's device, where a plan and other fleets take more than all of it.

    `devices` are the host's names of the plan's devices. `accepted`: warn instead, for cores; MPS refuses
    more than a whole GPU.
    """
    for index, gpu in enumerate(plan.gpus):
        theirs = others.get(devices[gpu.id], {})
        ours = sum(partition.percent for partition in gpu.partitions)
        total = ours + sum(theirs.values())
        if not theirs or not ours or total <= 100:
            continue
        whose = ", ".join(f"fleet {fleet!r} has {percent:g} %" for fleet, percent in theirs.items())
        problem = (
            f"{ours:g} % of {devices[gpu.id]} are planned, and {whose} of it: {total:g} % together, so P99s "
            "will break"
        )
        is_core = gpu.type == CPU_DEVICE
        if accepted and is_core:
            say(f"warning: {problem}")
            continue
        consent = ", or accept it with --overcommit" if is_core else ""
        document.fail(
            f"{problem}; plan smaller shares or another device, or destroy the other fleet{consent}",
            ("gpus", index, "id"),
        )


def refuse_namesake(servers: Iterable[Server], files: FleetFiles) -> None:
    """Raise InputError where a fleet of this name runs from another state folder: it would be ended."""
    if files.exists():
        return
    for server in servers:
        if server.spec.labels.fleet != files.fleet or server.log_path is None:
            continue
        root = Path(server.log_path).parents[2]
        if root != files.directory.parent and FleetFiles(root, files.fleet).exists():
            raise InputError(
                f"fleet {files.fleet!r} runs from another state folder ({root}): take another name, or set "
                f"XDG_STATE_HOME to {root.parent}",
                field="--fleet",
            )
