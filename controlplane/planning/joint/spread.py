"""Partitions spread over the GPUs of a plan, at no GPU more, so that its shadows cover more.

Packing fills GPUs one after the other: the last one has all that is free, the others have nothing. What the
shadows of a model cover grows with what its GPU has left over what the model has there. So partitions move
from the tightest GPU, or change places with smaller ones, as long as the judge finds every promise kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from controlplane.domain.plan import Partition, PlannedGpu
from controlplane.domain.workload import ShadowWish
from controlplane.planning.judge.covers import Before, kept
from controlplane.planning.judge.evaluate import Terms, evaluate
from controlplane.planning.judge.placements import tells_apart
from controlplane.planning.judge.shadows import has_room_for_shadows, stands_here, wish_of
from controlplane.planning.protocol import Device

_MOST_MOVES = 64
_MOST_ASKED = 8
"""Moves that the judge is asked about at once, the best first."""
_WORTH = 1e-3


@dataclass(frozen=True, slots=True)
class _Tight:
    """A GPU, and what a model has there whose shadow stands beside: the most of any such model."""

    gpu: PlannedGpu
    percent: Mapping[str, float]

    @staticmethod
    def of(gpu: PlannedGpu, wishes: Mapping[str, ShadowWish]) -> _Tight:
        percent: dict[str, float] = {}
        for p in gpu.partitions:
            if stands_here(wish_of(p, wishes)):
                for m in p.models:
                    percent[m.model] = percent.get(m.model, 0.0) + p.percent
        return _Tight(gpu, percent)

    def spare(self, out: Partition | None = None, to: Partition | None = None) -> float:
        """What is left over what a model has, with one partition less or more; infinite without shadows."""
        percent = dict(self.percent)
        room = 100.0 - self.gpu.percent
        for p, sign in ((out, -1.0), (to, 1.0)):
            if p is not None:
                room -= sign * p.percent
                for m in p.models:
                    percent[m.model] = percent.get(m.model, 0.0) + sign * p.percent
        most = max(percent.values(), default=0.0)
        return room / most if most > 0.0 else math.inf

    def changed(self, out: Partition | None, to: Partition | None) -> PlannedGpu:
        """The GPU with one partition less or more."""
        left = [p for p in self.gpu.partitions if p is not out]
        return replace(self.gpu, partitions=tuple(left if to is None else [*left, to]))


def spread(
    gpus: tuple[PlannedGpu, ...],
    wishes: Mapping[str, ShadowWish],
    devices: Mapping[str, Device],
    terms: Terms,
) -> tuple[PlannedGpu, ...]:
    """The same partitions on as many GPUs, with what is free spread over them; `gpus` keep every promise."""
    step = max((d.pool.device.grid.step_percent for d in devices.values()), default=0.0)
    if len(gpus) < 2 or sum(100.0 - g.percent for g in gpus) < step * len(gpus):
        return gpus  # not a step for each
    before = Before.of(evaluate(gpus, devices, terms))
    present = {g.id: _Tight.of(g, wishes) for g in gpus}
    for _ in range(_MOST_MOVES):
        pairs = [
            pair
            for pair in _better_pairs(list(present.values()))
            if all(
                tells_apart([len(p.models) for p in gpu.partitions])
                and gpu.percent <= 100.0
                and has_room_for_shadows(gpu, wishes, devices[gpu.type])
                for gpu in pair
            )
        ]
        holds = kept(pairs, before, devices, terms)
        found = next((pair for pair, held in zip(pairs, holds, strict=True) if held), None)
        if found is None:
            break
        present |= {gpu.id: _Tight.of(gpu, wishes) for gpu in found}
    return tuple(present[g.id].gpu for g in gpus)


def _better_pairs(gpus: Sequence[_Tight]) -> list[tuple[PlannedGpu, PlannedGpu]]:
    """The tightest GPU and another one after an exchange that leaves both more to spare, the best first."""
    tightest = min(gpus, key=lambda t: (t.spare(), t.gpu.id))
    least = tightest.spare() + _WORTH
    found = []
    for n, other in enumerate(gpus):
        if other.gpu.type == tightest.gpu.type and other is not tightest:
            for out, to in _exchanges(tightest.gpu, other.gpu):
                spare = min(tightest.spare(out, to), other.spare(to, out))
                if spare > least:
                    found.append((spare, n, out, to))
    best = sorted(found, key=lambda one: (-one[0], one[1]))[:_MOST_ASKED]
    return [(tightest.changed(out, to), gpus[n].changed(to, out)) for _, n, out, to in best]


def _exchanges(tightest: PlannedGpu, other: PlannedGpu) -> Iterator[tuple[Partition, Partition | None]]:
    """What may leave the tightest GPU, and what may come for it, which is smaller."""
    for out in tightest.partitions:
        if len(tightest.partitions) > 1:
            yield out, None
        for to in other.partitions:
            if to.percent < out.percent:
                yield out, to
