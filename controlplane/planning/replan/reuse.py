"""Reuse of the running plan: its GPUs with today's rates and SLOs, and its ids for another plan's GPUs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, ServedModel
from controlplane.latency.protocol import FloatArray
from controlplane.planning.judge.placements import gpu_of, memory_together, placement_of
from controlplane.planning.protocol import PlanRequest

Served = tuple[tuple[str, str], ...]
"""What a partition serves: (model, workload) pairs in order. Servers of a pool serve the same."""


def reused(previous: Plan, request: PlanRequest) -> tuple[PlannedGpu, ...] | None:
    """The GPUs of `previous` with today's rates and SLOs, without workloads and models that are gone.

    None where it does not serve every workload asked for, by batches of whole requests, or uses GPUs that are
    not offered. Whether it still keeps its promises is for `verify` to say.
    """
    asked = {w.name: w for w in request.workloads}
    served = {w.name: 0.0 for w in request.workloads}
    for _, _, w in previous.placements():
        if w.name in served:
            served[w.name] += w.rate_rps
    if any(total <= 0.0 for total in served.values()):
        return None
    gpus = []
    for gpu in previous.gpus:
        if gpu.type not in request.devices:
            return None
        device = request.devices[gpu.type]
        partitions = []
        for partition in gpu.partitions:
            placements = tuple(
                placement_of(now, now.rate_rps * w.rate_rps / served[w.name])
                for w in partition.workloads
                if (now := asked.get(w.name)) is not None
            )
            if not placements:
                continue
            models = _still_called(partition.models, placements)
            batch = {m.model: m.batch for m in models}
            if any(
                w.model not in batch or w.model not in device.profiles or batch[w.model] % w.client_batch
                for w in placements
            ):
                return None
            memory_mb = memory_together([asked[w.name] for w in placements], models, device)
            today = replace(partition, models=models, workloads=placements, shadow=None)
            partitions.append(replace(today, memory_mb=memory_mb))
        if partitions:
            gpus.append(replace(gpu_of(0, device, partitions), id=gpu.id))
    return tuple(gpus)


def _still_called(models: Sequence[ServedModel], workloads: Sequence[Placement]) -> tuple[ServedModel, ...]:
    """Those of the models that workloads are left for: the others would run for no request.

    The last one of a partition has no rank, since nothing waits for its turn.
    """
    called = {w.model for w in workloads}
    left = tuple(m for m in models if m.model in called)
    return left if len(left) > 1 else tuple(replace(m, rank=None) for m in left)


def cost_of(gpus: Sequence[PlannedGpu]) -> float:
    """The price per hour, or the number of GPUs where all of them are free."""
    return sum(g.price_per_hour for g in gpus) or float(len(gpus))


def with_stable_ids(gpus: tuple[PlannedGpu, ...], before: Plan) -> tuple[PlannedGpu, ...]:
    """The same GPUs with the ids with which the fewest partitions move; then, the fewest are resized.

    GPUs of a type are interchangeable and so are the servers of a pool, so only ids decide what moves. They
    are an optimal assignment: each GPU to the one before with which it has most partitions in common.
    A partition continues the one before with which it shares most workloads, whatever else joined or left.
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
        free = (n for number in count() if (n := f"{kind}-{number}") not in taken)
        for gpu in now:
            if gpu.id not in name:
                name[gpu.id] = next(free)
    return _same_servers(tuple(replace(g, id=name[g.id]) for g in gpus), before, same)


def _served(partition: Partition) -> Served:
    return tuple(sorted((w.model, w.name) for w in partition.workloads))


def _continued(now: Sequence[PlannedGpu], was: Sequence[PlannedGpu]) -> dict[Served, Served]:
    """What each partition serves, to what the one before that it continues served."""
    home = {pair: _served(p) for gpu in was for p in gpu.partitions for pair in _served(p)}
    shared = Counter(
        (served, home[pair])
        for served in dict.fromkeys(_served(p) for g in now for p in g.partitions)
        for pair in served
        if pair in home
    )
    same: dict[Served, Served] = {}
    for (served, old), _ in sorted(shared.items(), key=lambda pair: (-pair[1], pair[0])):
        if served not in same and old not in same.values():
            same[served] = old
    return same


def _in_common(
    now: Sequence[PlannedGpu], was: Sequence[PlannedGpu], same: Mapping[Served, Served]
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


def _counts(gpu: PlannedGpu, runs: bool, same: Mapping[Served, Served]) -> Counter[Hashable]:
    """A GPU's partitions by what they serve, with `runs` by share and batches too."""
    parts = ((same.get(_served(p), _served(p)), p) for p in gpu.partitions)
    return Counter((served, p.percent, p.models) if runs else served for served, p in parts)


def _same_servers(
    gpus: tuple[PlannedGpu, ...], before: Plan, same: Mapping[Served, Served]
) -> tuple[PlannedGpu, ...]:
    """Servers that continue those before have their ids: first those on the same GPU, then any others."""
    there: dict[tuple[str, Served], list[str]] = defaultdict(list)
    every: dict[Served, list[str]] = defaultdict(list)
    for gpu, p in before.partitions():
        there[gpu.id, _served(p)].append(p.id)
        every[_served(p)].append(p.id)
    places = [(g.id, p) for g in gpus for p in g.partitions]
    ids: dict[tuple[str, str], str] = {}
    for where, p in places:
        if (old := same.get(_served(p))) and there[where, old]:
            ids[where, p.id] = there[where, old].pop(0)
    taken = set(ids.values())
    for where, p in places:
        if (where, p.id) not in ids:
            known = every[same[_served(p)]] if _served(p) in same else []
            ids[where, p.id] = next(i for i in _ids(p.id, known) if i not in taken)
            taken.add(ids[where, p.id])
    return tuple(
        replace(g, partitions=tuple(replace(p, id=ids[g.id, p.id]) for p in g.partitions)) for g in gpus
    )


def _ids(own: str, known: Sequence[str]) -> Iterator[str]:
    """The ids of the servers before, then further numbers of theirs; for a new partition its own."""
    yield from known
    if known:
        base = known[0].rsplit("-", 1)[0] if len(known) > 1 else known[0]
        yield from (f"{base}-{number}" for number in count(1 if len(known) > 1 else 2))
    yield own
    yield from (f"{own}.{number}" for number in count(2))
