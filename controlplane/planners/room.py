"""Whom to serve where GPUs are counted and not enough for all: as many workloads as possible.

Who takes most of a type's GPUs stays away first, and only as many as must.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace

from controlplane.domain.plan import Infeasible
from controlplane.domain.workload import Workload
from controlplane.planners.finish import Draft, gpu_of
from controlplane.planners.kinds import Kind
from controlplane.planners.protocol import Device

MOST_ASKED = 16
"""Of those who found no room, the largest: whether the fleet could hold them at all."""

Planned = Callable[[Sequence[Workload]], Draft]
"""The best plan for some workloads that a strategy finds."""
Better = Callable[[Draft, Draft], Draft]
"""The better of two plans; the first where they are equal."""


def part_taken(ways: Sequence[Kind], devices: Mapping[str, Device]) -> float:
    """The least part of all GPUs of a type that a workload takes by itself.

    0 where a type has no end, infinite where nothing holds it.
    """
    parts = [
        k.cost_percent / (100.0 * count) if (count := devices[k.device].pool.count) else 0.0 for k in ways
    ]
    return min(parts, default=math.inf)


def most_served(
    workloads: Sequence[Workload], ways: Sequence[Sequence[Kind]], devices: Mapping[str, Device],
    first: Draft, planned: Planned, better: Better, stop: Callable[[], bool],
) -> tuple[Draft, frozenset[str]]:  # fmt: skip
    """The best plan found for some or all, and who found no room though the fleet could hold him.

    `first` is the plan for all of `workloads`; each of these has its `ways` to be served by itself. The
    others are bisected by `part_taken`: from the least who stay away, so that nobody else is lost.
    """
    part = {w.name: part_taken(k, devices) for w, k in zip(workloads, ways, strict=True)}
    types = {w.name: {k.device for k in kinds} for w, kinds in zip(workloads, ways, strict=True)}
    largest_first = sorted(
        (w for w in workloads if 0.0 < part[w.name] < math.inf), key=lambda w: (-part[w.name], w.name)
    )
    refused = _names(first)
    lost = [w for w in largest_first if w.name in refused]
    if not lost:
        return first, frozenset()
    hopeless = {name for name in refused if part[name] == math.inf}
    hopeless |= {w.name for w in lost[:MOST_ASKED] if planned([w]).infeasible}
    crowded = set().union(*(types[w.name] for w in lost))
    rivals = [w.name for w in largest_first if w.name not in hopeless and types[w.name] & crowded]

    def without(away: Set[str]) -> Draft:
        draft = planned([w for w in workloads if w.name not in away])
        return replace(draft, infeasible=(*draft.infeasible, *(Infeasible(n, "") for n in sorted(away))))

    # Who cannot be held changes nothing for the others.
    best = without(hopeless) if hopeless else first
    fewest, most = 1, len(_names(best) - hopeless)
    while fewest <= most and not stop():
        count = (fewest + most) // 2
        away = hopeless | set(rivals[:count])
        trial = without(away)
        best = better(best, trial)
        fewest, most = (fewest, count - 1) if _names(trial) == away else (count + 1, most)
        most = min(most, len(_names(best) - hopeless))
    return best, frozenset(_names(best) & {w.name for w in largest_first} - hopeless)


def on_free_gpus(
    draft: Draft, workloads: Sequence[Workload], devices: Mapping[str, Device],
    planned: Callable[[Sequence[Workload], Mapping[str, Device]], Draft],
) -> Draft:  # fmt: skip
    """The draft with those of `workloads` that find room on GPUs it leaves unused.

    Who costs least on a type stays there, though another only runs there and his second best is free.
    """
    used = Counter(g.type for g in draft.gpus)
    free = {
        name: replace(d, pool=replace(d.pool, count=count - used[name]))
        for name, d in devices.items()
        if (count := d.pool.count) is not None and count > used[name]
    }
    able = [w for w in workloads if any(w.model in d.profiles for d in free.values())]
    if not able:
        return draft
    more = planned(able, free)
    served = {w.name for w in able} - _names(more)
    gpus = list(draft.gpus)
    for gpu in more.gpus:
        gpus.append(gpu_of(used[gpu.type], devices[gpu.type], gpu.partitions))
        used[gpu.type] += 1
    lost = tuple(i for i in draft.infeasible if i.workload not in served)
    return replace(draft, gpus=tuple(gpus), infeasible=lost)


def _names(draft: Draft) -> set[str]:
    return {i.workload for i in draft.infeasible}
