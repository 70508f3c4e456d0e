"""Names for GPUs and partitions of a new plan, so that as much as possible of what runs stays where it is."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from controlplane.domain.plan import Partition, Plan, PlannedGpu
from controlplane.latency.protocol import FloatArray
from controlplane.planners.changes import served

Queue = tuple[str, ...]
"""What a partition serves: its model, then its workloads by name. Servers of a pool have the same."""


def renamed(gpus: tuple[PlannedGpu, ...], before: Plan) -> tuple[PlannedGpu, ...]:
    """The same GPUs under the names with which the fewest partitions move; then, the fewest are resized.

    GPUs of a type are interchangeable and so are the servers of a pool, so only names decide what moves. The
    names are an optimal assignment: each GPU to the one before with which it has most partitions in common.
    A queue continues the one before with which it shares most workloads, whoever else joined or left.
    """
    from scipy.optimize import linear_sum_assignment

    same = _continued(gpus, before.gpus)
    name: dict[str, str] = {}
    for kind in dict.fromkeys(g.type for g in gpus):
        now, was = [g for g in gpus if g.type == kind], [g for g in before.gpus if g.type == kind]
        worth = _in_common(now, was, same)
        for i, j in zip(*linear_sum_assignment(worth, maximize=True), strict=True):
            if worth[i, j] > 0:
                name[now[i].id] = was[j].id
        taken = set(name.values())
        free = (n for n in _names(kind) if n not in taken)
        for gpu in now:
            if gpu.id not in name:
                name[gpu.id] = next(free)
    return _same_servers(tuple(replace(g, id=name[g.id]) for g in gpus), before, same)


def _queue(partition: Partition) -> Queue:
    return (partition.models[0].model, *served(partition))


def _continued(now: Sequence[PlannedGpu], was: Sequence[PlannedGpu]) -> dict[Queue, Queue]:
    """Each queue to the one before that it continues."""
    home: dict[tuple[str, str], Queue] = {}
    for gpu in was:
        for p in gpu.partitions:
            home.update({(p.models[0].model, name): _queue(p) for name in served(p)})
    shared = Counter(
        (queue, home[queue[0], name])
        for queue in dict.fromkeys(_queue(p) for g in now for p in g.partitions)
        for name in queue[1:]
        if (queue[0], name) in home
    )
    same: dict[Queue, Queue] = {}
    for (queue, old), _ in sorted(shared.items(), key=lambda pair: (-pair[1], pair[0])):
        if queue not in same and old not in same.values():
            same[queue] = old
    return same


def _in_common(
    now: Sequence[PlannedGpu], was: Sequence[PlannedGpu], same: Mapping[Queue, Queue]
) -> FloatArray:
    """Partitions in common, (now, was); one with the same share and batch is worth a little more."""
    least = 1.0 / (1 + sum(len(g.partitions) for g in now))
    worth = np.zeros((len(now), len(was)))
    for runs, weight in ((False, 1.0), (True, least)):
        mine = [_counts(g, runs, same) for g in now]
        theirs = [_counts(g, runs, {}) for g in was]
        where: dict[Hashable, list[int]] = defaultdict(list)
        for j, counts in enumerate(theirs):
            for key in counts:
                where[key].append(j)
        for i, counts in enumerate(mine):
            for key, here in counts.items():
                for j in where[key]:
                    worth[i, j] += weight * min(here, theirs[j][key])
    return worth


def _counts(gpu: PlannedGpu, runs: bool, same: Mapping[Queue, Queue]) -> Counter[Hashable]:
    """A GPU's partitions by the queue they serve, with `runs` by share and batch too."""
    told = ((same.get(_queue(p), _queue(p)), p) for p in gpu.partitions)
    return Counter((q, p.percent, p.models[0].batch) if runs else q for q, p in told)


def _same_servers(
    gpus: tuple[PlannedGpu, ...], before: Plan, same: Mapping[Queue, Queue]
) -> tuple[PlannedGpu, ...]:
    """Servers that continue those before have their ids: first those on the same GPU, then any others."""
    there: dict[tuple[str, Queue], list[str]] = defaultdict(list)
    every: dict[Queue, list[str]] = defaultdict(list)
    for gpu, p in before.partitions():
        there[gpu.id, _queue(p)].append(p.id)
        every[_queue(p)].append(p.id)
    places = [(g.id, p) for g in gpus for p in g.partitions]
    ids: dict[tuple[str, str], str] = {}
    for where, p in places:
        if (old := same.get(_queue(p))) and there[where, old]:
            ids[where, p.id] = there[where, old].pop(0)
    taken = set(ids.values())
    for where, p in places:
        if (where, p.id) not in ids:
            known = every[same[_queue(p)]] if _queue(p) in same else []
            ids[where, p.id] = next(i for i in _ids(p.id, known) if i not in taken)
            taken.add(ids[where, p.id])
    return tuple(
        replace(g, partitions=tuple(replace(p, id=ids[g.id, p.id]) for p in g.partitions)) for g in gpus
    )


def _ids(own: str, known: Sequence[str]) -> Iterator[str]:
    """The ids of the servers before, then further numbers of theirs; for a new queue its own."""
    yield from known
    if known:
        base = known[0].rsplit("-", 1)[0] if len(known) > 1 else known[0]
        yield from (f"{base}-{number}" for number in count(1 if len(known) > 1 else 2))
    yield own
    yield from (f"{own}.{number}" for number in count(2))


def _names(kind: str) -> Iterator[str]:
    return (f"{kind}-{number}" for number in count())
