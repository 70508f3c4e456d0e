"""How a fleet stands, in a few figures and one word, from the states of its partitions."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.control.guard.state import Phase
from controlplane.domain.observation import FleetStanding, Guarding
from controlplane.domain.plan import Plan

_TROUBLES = {
    Phase.DOWN: ("PartitionDown", "no server answers"),
    Phase.EXHAUSTED: ("Exhausted", "late, and no shadow is left"),
    Phase.LATE: ("Late", "requests are late"),
    Phase.EXPOSED: ("WithoutShadow", "no shadow stands by"),
}
"""The worst first."""
_NAMED = 3


def standing(plan: Plan, guarding: Sequence[Guarding], redirects: int) -> FleetStanding:
    """Return how a fleet with this plan stands; a partition without a state is not ready yet."""
    planned = {partition.id: partition for _, partition in plan.partitions()}
    states = {one.partition: one.phase for one in guarding if one.partition in planned}
    covers = [p.shadow.covers or 1.0 if p.shadow is not None else 1.0 for p in planned.values()]
    trouble, message = None, "every partition is served as planned"
    for phase, (word, text) in _TROUBLES.items():
        found = [
            name
            for name, seen in states.items()
            if seen == phase and not (phase is Phase.EXPOSED and planned[name].shadow is None)
        ]
        if found:
            more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
            trouble, message = word, f"{', '.join(found[:_NAMED])}{more}: {text}"
            break
    return FleetStanding(
        ready=sum(phase != Phase.DOWN for phase in states.values()),
        partitions=len(planned),
        gpus=len(plan.gpus),
        redirects=redirects,
        covers=min(covers, default=1.0),
        trouble=trouble,
        message=message,
    )
