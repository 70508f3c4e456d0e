"""What a plan changes about another: started, stopped, moved, resized."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from controlplane.domain.plan import Partition, Plan


class Change(StrEnum):
    """What happens to a partition."""

    STARTED = "started"
    STOPPED = "stopped"
    MOVED = "moved"
    """To another GPU; its share may change too."""
    RESIZED = "resized"
    """Another share, batch or rate on the same GPU."""


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """One partition; `before` and `after` are (GPU, percent, batch), None where it does not exist."""

    change: Change
    partition: str
    before: tuple[str, float, int] | None
    after: tuple[str, float, int] | None


def changes(before: Plan, after: Plan) -> tuple[PartitionChange, ...]:
    """Every partition that differs, by id; a rate alone changes nothing that runs."""
    old = {p.id: (g.id, p) for g, p in before.partitions()}
    new = {p.id: (g.id, p) for g, p in after.partitions()}
    found = []
    for name in dict.fromkeys((*old, *new)):
        was, now = old.get(name), new.get(name)
        if was is None and now is not None:
            found.append(PartitionChange(Change.STARTED, name, None, _told(*now)))
        elif was is not None and now is None:
            found.append(PartitionChange(Change.STOPPED, name, _told(*was), None))
        elif was is not None and now is not None:
            if serves(was[1]) != serves(now[1]):
                found.append(PartitionChange(Change.STOPPED, name, _told(*was), None))
                found.append(PartitionChange(Change.STARTED, name, None, _told(*now)))
            elif was[0] != now[0]:
                found.append(PartitionChange(Change.MOVED, name, _told(*was), _told(*now)))
            elif _told(*was) != _told(*now):
                found.append(PartitionChange(Change.RESIZED, name, _told(*was), _told(*now)))
    return tuple(found)


def moves(before: Plan, after: Plan) -> int:
    """How many partitions are started on another GPU or for the first time."""
    return sum(c.change in (Change.MOVED, Change.STARTED) for c in changes(before, after))


def _told(gpu: str, partition: Partition) -> tuple[str, float, int]:
    return gpu, partition.percent, partition.models[0].batch


def serves(partition: Partition) -> tuple[str, ...]:
    """Its model and workloads: a partition that serves others is another one, whatever its id."""
    return (partition.models[0].model, *sorted(w.name for w in partition.workloads))
