"""The check that the active shares of a GPU add up to at most 100 %."""

from __future__ import annotations

from collections.abc import Iterable

from controlplane.domain.errors import InputError
from controlplane.domain.fleet import Role, ServerSpec


def check(spec: ServerSpec, running: Iterable[ServerSpec]) -> None:
    """Raise InputError where `spec` and the active servers that stay on its GPU exceed 100 %."""
    total = spec.percent + sum(other.percent for other in running if _stays(other, spec))
    if spec.labels.role is Role.ACTIVE and total > 100:
        raise InputError(
            f"{spec.name}: the active shares of {spec.device} would add up to {total:g} %: plan again, or "
            "destroy the other fleet that uses this GPU",
            field="percent",
        )


def _stays(other: ServerSpec, wanted: ServerSpec) -> bool:
    """Return whether a server's share adds to the new one's permanently.

    A shadow standing by owns nothing. What an earlier plan of the fleet started is being drained or will be:
    while plans change, the sum rightly exceeds 100.
    """
    theirs, ours = other.labels, wanted.labels
    ending = theirs.fleet == ours.fleet and (
        theirs.plan_hash != ours.plan_hash or theirs.partition == ours.partition
    )
    return other.device == wanted.device and theirs.role is Role.ACTIVE and not ending
