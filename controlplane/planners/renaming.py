"""Names for the GPUs of a new plan, so that as much as possible of what runs stays where it is."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from controlplane.domain.plan import Partition, Plan, PlannedGpu
from controlplane.latency.protocol import FloatArray
from controlplane.planners.changes import serves


def renamed(gpus: tuple[PlannedGpu, ...], before: Plan) -> tuple[PlannedGpu, ...]:
    """The same GPUs under the names with which the fewest partitions move; then, the fewest are resized.

    GPUs of a type are interchangeable and so are the servers of a pool, so only names decide what moves. The
    names are an optimal assignment: each GPU to the one before with which it has most partitions in common.
    """
    from scipy.optimize import linear_sum_assignment

    name: dict[str, str] = {}
    for kind in dict.fromkeys(g.type for g in gpus):
        now, was = [g for g in gpus if g.type == kind], [g for g in before.gpus if g.type == kind]
        worth = _in_common(now, was)
        for i, j in zip(*linear_sum_assignment(worth, maximize=True), strict=True):
            if worth[i, j] > 0:
                name[now[i].id] = was[j].id
        taken = set(name.values())
        free = (n for n in _names(kind) if n not in taken)
        for gpu in now:
            if gpu.id not in name:
                name[gpu.id] = next(free)
    return _same_servers(tuple(replace(g, id=name[g.id]) for g in gpus), before)


def _in_common(now: Sequence[PlannedGpu], was: Sequence[PlannedGpu]) -> FloatArray:
    """Partitions in common, (now, was); one with the same share and batch is worth a little more."""
    stays = {(p.id, serves(p)) for g in now for p in g.partitions}
    least = 1.0 / (1 + sum(len(g.partitions) for g in now))
    worth = np.zeros((len(now), len(was)))
    for key_of, weight in ((serves, 1.0), (_runs, least)):
        mine, theirs = (
            [Counter(key_of(p) for p in g.partitions if (p.id, serves(p)) in stays) for g in gpus]
            for gpus in (now, was)
        )
        where: dict[Hashable, list[int]] = defaultdict(list)
        for j, counts in enumerate(theirs):
            for key in counts:
                where[key].append(j)
        for i, counts in enumerate(mine):
            for key, count in counts.items():
                for j in where[key]:
                    worth[i, j] += weight * min(count, theirs[j][key])
    return worth


def _same_servers(gpus: tuple[PlannedGpu, ...], before: Plan) -> tuple[PlannedGpu, ...]:
    """The servers of each pool under the ids that those on their GPUs have."""
    ids: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for gpu in gpus:
        for p in gpu.partitions:
            ids[serves(p)].append(p.id)
    there: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for gpu, p in before.partitions():
        if p.id in ids[serves(p)]:
            there[gpu.id, serves(p)].append(p.id)
    stays = {
        (gpu.id, p.id): there[gpu.id, serves(p)].pop(0)
        for gpu in gpus
        for p in gpu.partitions
        if there[gpu.id, serves(p)]
    }
    kept = set(stays.values())
    left = {serves: [i for i in all_ids if i not in kept] for serves, all_ids in ids.items()}
    return tuple(
        replace(
            gpu,
            partitions=tuple(
                replace(p, id=stays.get((gpu.id, p.id)) or left[serves(p)].pop(0)) for p in gpu.partitions
            ),
        )
        for gpu in gpus
    )


def _runs(partition: Partition) -> Hashable:
    return serves(partition), partition.percent, partition.models[0].batch


def _names(kind: str) -> Iterator[str]:
    number = 0
    while True:
        yield f"{kind}-{number}"
        number += 1
