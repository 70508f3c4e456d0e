"""The core that a plan for this host must leave free.

`cpu-i` is core i of the host that plans and applies. The gateway, the controller and often the clients run
on the same cores without a quota: where servers are pinned to every core, requests wait for the gateway and
verified P99s break.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.domain.device import CPU_DEVICE
from controlplane.domain.plan import Plan
from controlplane.domain.spec import Spec
from controlplane.files.documents import Document
from controlplane.files.mistakes import Location

if TYPE_CHECKING:
    from controlplane.runtime.fleet.execute import Say


def shortage(plan: Plan, cores: int) -> str | None:
    """Return the problem of a plan that takes all of this host's `cores`; None where one stays free."""
    # A core with shadows only is idle until a redirect.
    planned = len({gpu.id for gpu in plan.gpus if gpu.type == CPU_DEVICE and gpu.partitions})
    if planned < cores:
        return None
    has = f"this host has {cores} core{'' if cores == 1 else 's'} and {planned}"
    return f"{has} are planned: none is left for the gateway, the controller and clients, and P99s will break"


def check_spare_core_of_spec(
    plan: Plan, spec: Spec, document: Document, cores: int, say: Say, *, accepted: bool
) -> None:
    """Raise InputError at the spec's count for a plan that takes every core; `accepted`: warn instead."""
    at = next((i for i, gpu in enumerate(spec.gpus) if gpu.type == CPU_DEVICE), 0)
    field = "type" if spec.gpus[at].count is None else "count"
    _refuse_full_host(document, ("gpus", at, field), shortage(plan, cores), cores, say, accepted)


def check_spare_core(plan: Plan, document: Document, cores: int, say: Say, *, accepted: bool) -> None:
    """Raise InputError at the plan's last core for one that takes every core; `accepted`: warn instead."""
    at = max((i for i, gpu in enumerate(plan.gpus) if gpu.type == CPU_DEVICE), default=0)
    _refuse_full_host(document, ("gpus", at, "id"), shortage(plan, cores), cores, say, accepted)


def _refuse_full_host(
    document: Document, location: Location, problem: str | None, cores: int, say: Say, accepted: bool
) -> None:
    if problem is None:
        return
    if accepted:
        say(f"warning: {problem}")
        return
    way_out = f"plan with `count: {cores - 1}`" if cores > 1 else "take a host with two cores"
    document.fail(f"{problem}; {way_out}, or accept it with --all-cores", location)
