"""What a plan changes about another: started, stopped, moved, resized."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from controlplane.domain.plan import Partition, Plan, PlannedGpu


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
            if _serves(was[1]) != _serves(now[1]):
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


def renamed(gpus: tuple[PlannedGpu, ...], before: Plan) -> tuple[PlannedGpu, ...]:
    """The same GPUs under the names where most of their partitions run already.

    GPUs of a type are interchangeable, so only names decide what moves. Pairs with most partitions in common
    go first.
    """
    home = {p.id: g.id for g, p in before.partitions()}
    kind = {g.id: g.type for g in before.gpus}
    common: dict[tuple[str, str], int] = defaultdict(int)
    for gpu in gpus:
        for p in gpu.partitions:
            if p.id in home and kind[home[p.id]] == gpu.type:
                common[gpu.id, home[p.id]] += 1
    name: dict[str, str] = {}
    taken: set[str] = set()
    for (now, was), _ in sorted(common.items(), key=lambda c: (-c[1], c[0])):
        if now not in name and was not in taken:
            name[now] = was
            taken.add(was)
    for gpu in gpus:
        if gpu.id not in name:
            free = next(n for n in _names(gpu.type) if n not in taken)
            name[gpu.id] = free
            taken.add(free)
    return tuple(replace(g, id=name[g.id]) for g in gpus)


def _names(kind: str) -> Iterator[str]:
    number = 0
    while True:
        yield f"{kind}-{number}"
        number += 1


def _told(gpu: str, partition: Partition) -> tuple[str, float, int]:
    return gpu, partition.percent, partition.models[0].batch


def _serves(partition: Partition) -> tuple[str, ...]:
    return (partition.models[0].model, *sorted(w.name for w in partition.workloads))
