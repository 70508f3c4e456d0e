"""Fewer GPUs by turns: models share a partition, of which one executes at a time.

A share cannot be as small as a light model needs (a core is cut into five), and workloads of different models
share no queue. So the partitions of the emptiest GPU join others, as long as the judge finds every promise
kept, and the GPU is given up. A workload that found no GPU joins a partition in the same way.

With late binding a joined partition whose promises no batches keep is tried in the gateway's order too: one
request at a time, those of the shortest time first.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from controlplane.domain.plan import Infeasible, Partition, Placement, PlannedGpu, Rule, ServedModel
from controlplane.domain.serving import MOST_RANKS, ranks_of
from controlplane.domain.units import MILLIS_PER_SECOND
from controlplane.domain.workload import Workload
from controlplane.planning.capacity.context import Context
from controlplane.planning.judge.evaluate import SLACK, Terms, judge
from controlplane.planning.judge.finalise import Draft
from controlplane.planning.judge.placements import (
    common_step,
    largest_batch,
    memory_together,
    numbered,
    partition_of,
    tells_apart,
)
from controlplane.planning.judge.queues import QueueCache
from controlplane.planning.judge.shadows import has_room_for_shadows

_MOST_EMPTIED = 4
"""GPUs that are tried, emptiest first, before no more is given up."""
_MOST_HOMES = 4
"""Partitions that the judge is asked about for one that moves, those with the lowest load first."""
_SPANS = (0.5, 0.25, 0.125)
"""Batches hold what arrives in such a part of the strictest SLO."""


class _Home(NamedTuple):
    """A partition of a GPU, both by number, that a guest may join, and its load then."""

    load: float
    gpu: int
    partition: int


@dataclass(frozen=True, slots=True)
class Turns:
    """The search for one question, in inferences.

    `queues` are those solved so far. `apart` are the workloads that join no other: those with servers in a
    pool, bursty and isolated ones. `workloads` are by name. `late_binding`: requests may wait at the gateway
    for their turn.
    """

    context: Context
    queues: QueueCache
    apart: frozenset[str]
    workloads: Mapping[str, Workload]
    late_binding: bool = False

    @staticmethod
    def of(context: Context, draft: Draft) -> Turns:
        """For a draft that answers the question."""
        servers = Counter(w.name for g in draft.gpus for p in g.partitions for w in p.workloads)
        alone = (w for w in context.workloads if w.isolated or w.dispersion > 1.0 or servers[w.name] > 1)
        apart = frozenset(w.name for w in alone)
        return Turns(context, draft.queues, apart, {w.name: w for w in context.workloads})

    def fewer(self, draft: Draft) -> Draft:
        """The draft with more of its refused workloads and on fewer GPUs; itself where nothing joins."""
        gpus: Sequence[PlannedGpu] = draft.gpus
        infeasible: list[Infeasible] = []
        for refused in draft.infeasible:
            workload = self.workloads[refused.workload]
            guest = partition_of(workload.name, [workload], 100.0, workload.client_batch, None)
            if (joined := self._hosted([guest], gpus)) is None:
                infeasible.append(refused)
            else:
                gpus = joined
        while (smaller := self._one_less(gpus)) is not None:
            gpus = smaller
        if gpus is draft.gpus:
            return draft
        return replace(draft, gpus=numbered(gpus, self.context.request.devices), infeasible=tuple(infeasible))

    def _one_less(self, gpus: Sequence[PlannedGpu]) -> Sequence[PlannedGpu] | None:
        """The partitions of one of the emptiest GPUs as guests of the others."""
        for gpu in sorted(gpus, key=lambda g: (g.percent, g.id))[:_MOST_EMPTIED]:
            guests = sorted(gpu.partitions, key=lambda p: (-p.percent, p.id))
            if (found := self._hosted(guests, [g for g in gpus if g.id != gpu.id])) is not None:
                return found
        return None

    def _hosted(self, guests: Sequence[Partition], gpus: Sequence[PlannedGpu]) -> Sequence[PlannedGpu] | None:
        """These GPUs with all guests in partitions of theirs; None where one finds no partition."""
        found = list(gpus)
        for guest in guests:
            for home in self._homes(guest, found)[:_MOST_HOMES]:
                if self.context.stop():
                    return None
                if (joined := self._joined(found[home.gpu], home.partition, guest)) is not None:
                    found[home.gpu] = joined
                    break
            else:
                return None
        return found

    def _homes(self, guest: Partition, gpus: Sequence[PlannedGpu]) -> list[_Home]:
        """The partitions that a guest may join, the lowest load first."""
        homes = [
            _Home(self._load((*home.workloads, *guest.workloads), gpu, home), n, j)
            for n, gpu in enumerate(gpus)
            for j, home in enumerate(gpu.partitions)
            if self._may_join(guest, home, gpu)
        ]
        return sorted(home for home in homes if home.load < 1.0)

    def _may_join(self, guest: Partition, home: Partition, gpu: PlannedGpu) -> bool:
        models = {m.model for p in (guest, home) for m in p.models}
        distinct = len(guest.models) + len(home.models) == len(models)
        names = {w.name for p in (guest, home) for w in p.workloads}
        joined = replace(home, models=(*home.models, *guest.models))
        few = tells_apart([len((joined if p is home else p).models) for p in gpu.partitions])
        return distinct and few and self.apart.isdisjoint(names)

    def _load(self, workloads: Sequence[Placement], gpu: PlannedGpu, home: Partition) -> float:
        """The part of the time that workloads take at least in all the share that `home` may have.

        Under P99 the judge charges every request its time alone.
        """
        gpu_type = self.context.gpu_types[gpu.type]
        execution = gpu_type.alone.execution[:, :, gpu_type.floor(_reach(gpu, home))]
        load = 0.0
        for w in workloads:
            model = gpu_type.number_of(w.model)
            if model < 0:
                return math.inf
            times = execution[model] / np.arange(1, execution.shape[1] + 1)
            if self.context.request.rule is Rule.P99:
                times = times[w.client_batch - 1 : w.client_batch]
            load += w.rate_rps * float(times.min(initial=math.inf)) / MILLIS_PER_SECOND
        return load

    def _joined(self, gpu: PlannedGpu, number: int, guest: Partition) -> PlannedGpu | None:
        """A GPU with a guest in that partition, at the smallest share that keeps all promises there."""
        home = gpu.partitions[number]
        percents = self.context.gpu_types[gpu.type].percents
        shares = percents[(percents >= home.percent) & (percents <= _reach(gpu, home))].tolist()
        workloads = (*home.workloads, *guest.workloads)
        asked = [self.workloads[w.name] for w in workloads]
        device = self.context.request.devices[gpu.type]
        wishes = {name: w.shadow for name, w in self.workloads.items()}
        ways = self._batches(workloads, gpu)
        if self.late_binding:
            ways.append(self._in_order(workloads, gpu, home))
        for models in ways:
            memory_mb = memory_together(asked, models, device)
            joined = replace(home, models=models, workloads=workloads, memory_mb=memory_mb)
            if common_step((joined,), device.profiles) is not None:
                continue
            at = [_with(gpu, number, replace(joined, percent=percent)) for percent in shares]
            if has_room_for_shadows(at[-1], wishes, device) and self._keeps(at[-1]):
                return at[bisect_left(at, True, hi=len(at) - 1, key=self._keeps)]
        return None

    def _in_order(
        self, workloads: Sequence[Placement], gpu: PlannedGpu, home: Partition
    ) -> tuple[ServedModel, ...]:
        """One request at a time, ranked by its time alone in all the share that `home` may have."""
        gpu_type = self.context.gpu_types[gpu.type]
        execution = gpu_type.alone.execution[:, :, gpu_type.floor(_reach(gpu, home))]
        size = {w.model: w.client_batch for w in workloads}
        ranks = ranks_of({m: float(execution[gpu_type.number_of(m), k - 1]) for m, k in size.items()})
        return tuple(ServedModel(m, k, rank=min(ranks[m], MOST_RANKS - 1)) for m, k in size.items())

    def _batches(self, workloads: Sequence[Placement], gpu: PlannedGpu) -> list[tuple[ServedModel, ...]]:
        """Batches for the models of these workloads: what arrives within a part of the strictest SLO."""
        device = self.context.request.devices[gpu.type]
        rates: dict[tuple[str, int], float] = {}
        for w in workloads:
            key = w.model, w.client_batch
            rates[key] = rates.get(key, 0.0) + w.requests_rps
        strictest_ms = min(w.slo_ms for w in workloads)
        found = []
        for part in _SPANS:
            span = part * strictest_ms / MILLIS_PER_SECOND
            models = tuple(
                ServedModel(model, min(max(math.ceil(rate * span), 1) * k, largest_batch(device, model, k)))
                for (model, k), rate in rates.items()
            )
            found.append(models)
        return list(dict.fromkeys(found))

    def _keeps(self, gpu: PlannedGpu) -> bool:
        """Whether every promise on a GPU is kept; servers of pools are judged alone, which is stricter."""
        terms = Terms(self.context.request.rule, self.context.request.deciding_quantile, self.queues)
        return all(one.meets_slo for one in judge([gpu], self.context.request.devices, terms))


def _reach(gpu: PlannedGpu, home: Partition) -> float:
    return (100.0 - gpu.percent + home.percent) * (1.0 + SLACK)


def _with(gpu: PlannedGpu, number: int, partition: Partition) -> PlannedGpu:
    others = gpu.partitions
    return replace(gpu, partitions=(*others[:number], partition, *others[number + 1 :]))
