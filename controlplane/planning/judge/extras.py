"""How much more than its partition each shadow on the same GPU gets: what covers most.

Shadows of one model on a GPU are active together, so they share what the GPU has left; those of different
models each may have all of it. A larger share does not always cover more: a latency model is less certain
where nothing was measured. So several ways to share are compared, the free part not used up among them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from controlplane.domain.plan import PlannedGpu
from controlplane.planning.judge.covers import Before, Case, largest_factors
from controlplane.planning.judge.evaluate import Evaluation, Terms, evaluate_changed
from controlplane.planning.protocol import Device

_MOST_WAYS = 28
"""To share the free part of a GPU among partitions: of one, each 27th; of two, each sixth."""

_Members = tuple[int, ...]
"""The partitions of a GPU, by number, whose shadows may be active together."""


@dataclass(frozen=True, slots=True)
class _Way:
    """Extra percents for the shadows of some partitions of a GPU."""

    gpu: PlannedGpu
    members: _Members
    extras: tuple[float, ...]

    @property
    def active(self) -> PlannedGpu:
        """The GPU with these shadows active."""
        partitions = list(self.gpu.partitions)
        for j, extra in zip(self.members, self.extras, strict=True):
            partitions[j] = replace(partitions[j], percent=min(partitions[j].percent + extra, 100.0))
        return replace(self.gpu, partitions=tuple(partitions))

    @property
    def models(self) -> list[str]:
        """Those of its partitions."""
        return list(dict.fromkeys(m.model for j in self.members for m in self.gpu.partitions[j].models))


def covering_extras(
    here: Mapping[str, Sequence[int]],
    found: Mapping[str, Evaluation],
    devices: Mapping[str, Device],
    terms: Terms,
) -> dict[str, float]:
    """The extra percents with which shadows on their own GPU cover most, by the partition's id.

    `here`: the partitions of each GPU, by number, that have such a shadow. `found` is what is expected of all
    GPUs with no shadow active.
    """
    ways = [
        way
        for name, base in found.items()
        for gpu in base.layout.gpus
        for members in _together(gpu, here.get(gpu.id, ()))
        for way in _ways(gpu, members, devices[name].pool.device.grid.step_percent)
    ]
    cases = {Case(model, n): [way.active] for n, way in enumerate(ways) for model in way.models}
    factors = largest_factors(cases, Before.of(found), devices, terms)
    best: dict[tuple[str, _Members], tuple[float, float, float]] = {}
    extras: dict[str, float] = {}
    for n, way in enumerate(ways):
        covers = min(factors[Case(model, n), way.gpu.id] for model in way.models)
        # Of equals the larger: it cures more of what none cures wholly; then the most even.
        worth = covers, sum(way.extras), min(way.extras)
        key = way.gpu.id, way.members
        if key not in best or worth > best[key]:
            best[key] = worth
            extras |= {way.gpu.partitions[j].id: x for j, x in zip(way.members, way.extras, strict=True)}
    return extras


def _together(gpu: PlannedGpu, numbers: Sequence[int]) -> list[_Members]:
    """The partitions of a GPU whose shadows may be active together: those with a model in common."""
    groups: list[tuple[set[str], list[int]]] = []
    for j in numbers:
        models, members = {m.model for m in gpu.partitions[j].models}, [j]
        for other in [g for g in groups if g[0] & models]:
            groups.remove(other)
            models, members = models | other[0], other[1] + members
        groups.append((models, members))
    return [tuple(members) for _, members in groups]


def _ways(gpu: PlannedGpu, members: _Members, step: float) -> Iterator[_Way]:
    """Ways to share what a GPU has left, each once; by the shares of the partitions first."""
    steps = math.floor((100.0 - gpu.percent) / step + 1e-9)
    if steps < 1:
        return
    percents = np.array([gpu.partitions[j].percent for j in members])
    count = len(members)
    parts = max([k for k in range(1, steps + 1) if math.comb(k + count, count) <= _MOST_WAYS], default=1)
    places = np.array([bars for bars in combinations(range(parts + count), count)]) - np.arange(count)
    shared = np.vstack([np.cumsum(percents) / percents.sum() * parts, places])
    for counts in np.unique(np.diff(np.round(shared * steps / parts), prepend=0.0, axis=1), axis=0).tolist():
        yield _Way(gpu, members, tuple(step * n for n in counts))


def harmless(base: Evaluation, extras: Mapping[str, float], device: Device, terms: Terms) -> dict[str, float]:
    """These extra percents, by partition id; the largest smaller ones where a shadow breaks a promise.

    Each shadow is active by itself, on its own GPU. `base` is what is expected with none active.
    """
    layout, step = base.layout, device.pool.device.grid.step_percent
    asked = [
        (i, j, p.percent, extras[p.id])
        for i, gpu in enumerate(layout.gpus)
        for j, p in enumerate(gpu.partitions)
        if extras.get(p.id, 0.0) > 0.0
    ]
    if not asked:
        return dict(extras)
    rows, partitions = np.array([i for i, *_ in asked]), np.array([j for _, j, *_ in asked])
    percent, extra = np.array([p for *_, p, _ in asked]), np.array([x for *_, x in asked])
    # A neighbour that breaks its promise anyhow is not the shadow's doing.
    broken_before = ~base.meets_slo
    open_ = np.arange(len(asked))
    while open_.size:
        changed = layout.resized(rows[open_], partitions[open_], percent[open_] + extra[open_])
        found = evaluate_changed(changed, rows[open_], base, device, terms)
        met = found.meets_slo | broken_before[rows[open_]]
        broken = open_[~met.all(axis=1)]
        extra[broken] -= step
        open_ = broken[extra[broken] > 1e-9]
    ids = (layout.gpus[i].partitions[j].id for i, j, *_ in asked)
    return {**extras, **dict(zip(ids, np.maximum(extra, 0.0).tolist(), strict=True))}
