"""Which workloads to serve where the number of GPUs is limited: as many as possible.

The workloads that take most of a type's GPUs are left out first, and only as many as must be.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace

from controlplane.domain.plan import Infeasible
from controlplane.domain.workload import Workload
from controlplane.planning.capacity.options import ServingOption
from controlplane.planning.judge.finalise import Draft
from controlplane.planning.judge.placements import gpu_of
from controlplane.planning.protocol import Device

_MOST_TRIED_ALONE = 16
"""Of the workloads that found no GPU, the largest: whether the fleet could hold them at all."""

Plan = Callable[[Sequence[Workload]], Draft]
"""The best plan for some workloads that a strategy finds."""
Better = Callable[[Draft, Draft], Draft]
"""The better of two plans; the first where they are equal."""


def part_taken(options: Sequence[ServingOption], devices: Mapping[str, Device]) -> float:
    """The least part of all GPUs of a type that a workload takes by itself.

    0 where a type has no limit, infinite where nothing holds the workload.
    """
    parts = [
        o.total_percent / (100.0 * count) if (count := devices[o.gpu_type].pool.count) else 0.0
        for o in options
    ]
    return min(parts, default=math.inf)


def most_served(
    options: Mapping[Workload, Sequence[ServingOption]],
    devices: Mapping[str, Device],
    first: Draft,
    plan: Plan,
    better: Better,
    stop: Callable[[], bool],
) -> tuple[Draft, frozenset[str]]:
    """The best plan found for some or all workloads, and those left out though the fleet could hold them.

    `first` is the plan for all workloads; `options` are each one's ways to be served by itself. How many of
    the largest must be left out, so that nothing else is lost, is found by bisection.
    """
    part = {w.name: part_taken(own, devices) for w, own in options.items()}
    types = {w.name: {o.gpu_type for o in own} for w, own in options.items()}
    largest_first = sorted(
        (w for w in options if 0.0 < part[w.name] < math.inf), key=lambda w: (-part[w.name], w.name)
    )
    refused = lost_names(first)
    lost = [w for w in largest_first if w.name in refused]
    if not lost:
        return first, frozenset()
    hopeless = {name for name in refused if part[name] == math.inf}
    hopeless |= {w.name for w in lost[:_MOST_TRIED_ALONE] if plan([w]).infeasible}
    crowded = set().union(*(types[w.name] for w in lost))
    rivals = [w.name for w in largest_first if w.name not in hopeless and types[w.name] & crowded]

    def without(names: Set[str]) -> Draft:
        draft = plan([w for w in options if w.name not in names])
        return replace(draft, infeasible=(*draft.infeasible, *(Infeasible(n, "") for n in sorted(names))))

    # A workload that cannot be held changes nothing for the others.
    best = without(hopeless) if hopeless else first
    fewest, most = 1, len(lost_names(best) - hopeless)
    while fewest <= most and not stop():
        count = (fewest + most) // 2
        away = hopeless | set(rivals[:count])
        trial = without(away)
        best = better(best, trial)
        fewest, most = (fewest, count - 1) if lost_names(trial) == away else (count + 1, most)
        most = min(most, len(lost_names(best) - hopeless))
    return best, frozenset(lost_names(best) & {w.name for w in largest_first} - hopeless)


def on_free_gpus(
    draft: Draft,
    workloads: Sequence[Workload],
    devices: Mapping[str, Device],
    plan: Callable[[Sequence[Workload], Mapping[str, Device]], Draft],
) -> Draft:
    """The draft with those of `workloads` that find room on GPUs it leaves unused.

    A workload that is cheapest on one type stays there, though another runs there only and its second best
    type is free.
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
    more = plan(able, free)
    served = {w.name for w in able} - lost_names(more)
    gpus = list(draft.gpus)
    for gpu in more.gpus:
        gpus.append(gpu_of(used[gpu.type], devices[gpu.type], gpu.partitions))
        used[gpu.type] += 1
    lost = tuple(i for i in draft.infeasible if i.workload not in served)
    return replace(draft, gpus=tuple(gpus), infeasible=lost)


def lost_names(draft: Draft) -> set[str]:
    """The workloads that a draft does not serve."""
    return {i.workload for i in draft.infeasible}
