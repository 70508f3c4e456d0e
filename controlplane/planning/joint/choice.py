"""The cheapest of all searches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from controlplane.domain.workload import Workload
from controlplane.planning.capacity.options import ServingOption, serving_options
from controlplane.planning.explain.infeasible import Reasons
from controlplane.planning.joint.admission import most_served, on_free_gpus
from controlplane.planning.joint.context import Context
from controlplane.planning.joint.grouping import Grouping, Pool, groupings, options_of
from controlplane.planning.joint.search import DEFAULT_ITERATIONS, Search
from controlplane.planning.joint.small_cases import Combination, combinations
from controlplane.planning.judge.finalise import Draft
from controlplane.planning.protocol import Device

_FEW_WORKLOADS = 12
"""Up to so many all combinations are weighed instead of a few groupings."""
_MOST_PLACED = 5
"""Of the most promising combinations, that the exact queue is asked about; as many more for each effort."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The best plan of a question, of all that the searches find."""

    context: Context
    iterations: int | None = None

    def draft(self) -> Draft:
        """The best plan for all workloads, or for as many as there are GPUs for; with reasons."""
        context = self.context
        request, devices = context.request, context.request.devices
        first = self.best(context.workloads)
        if not first.infeasible:
            return first
        options = serving_options([(w,) for w in context.workloads], context.gpu_types)
        own = dict(zip(context.workloads, options, strict=True))
        best, crowded_out = most_served(own, devices, first, self.best, self.cheaper, context.stop)
        waiting = [w for w in context.workloads if w.name in crowded_out]
        best = on_free_gpus(best, waiting, devices, self._elsewhere)
        lost = {i.workload for i in best.infeasible}
        reasons = Reasons(request, context.gpu_types, best.gpus, lambda w: not self.best([w]).infeasible)
        return replace(
            best,
            infeasible=tuple(
                reasons.no_room(w) if w.name in crowded_out else reasons.refusal(w)
                for w in request.workloads
                if w.name in lost
            ),
            stopped_by=context.stopped_by,
        )

    def _elsewhere(self, workloads: Sequence[Workload], devices: Mapping[str, Device]) -> Draft:
        """The best plan on other GPUs."""
        request = replace(self.context.request, devices=devices)
        return replace(self, context=Context.of(request, self.context.started)).best(workloads)

    def best(self, workloads: Sequence[Workload]) -> Draft:
        """The cheapest plan; between equals the one with fewer workloads together, then fewer servers."""
        gpu_types = self.context.gpu_types
        best: Draft | None = None
        if 0 < len(workloads) <= _FEW_WORKLOADS:
            effort = max(1, (self.iterations or 0) // DEFAULT_ITERATIONS)
            found = combinations(workloads, gpu_types, effort)
            best = self._best_of(found, _MOST_PLACED * effort)
            if best is not None and self._cost(best) <= min(c.least for c in found):
                return best
        else:
            for grouping in groupings(workloads, gpu_types):
                if best is not None and self.context.stop():
                    break
                options = options_of(grouping, gpu_types)
                search = Search.of(self.context, grouping, options, self.iterations)
                best = self.cheaper(best, search.pack())
        own = serving_options([(w,) for w in workloads], gpu_types)
        if best is None or (not self.context.stop() and self._may_be_cheaper(own, best)):
            apart = Search.of(self.context, Grouping.apart(workloads), own, self.iterations).pack()
            best = apart if best is None else self.cheaper(apart, best)
        return best

    def _best_of(self, found: Sequence[Combination], most: int) -> Draft | None:
        """The best of so many combinations, cheapest first."""
        best: Draft | None = None
        for combination in found[:most]:
            if best is not None and (self.context.stop() or combination.cost >= self._cost(best)):
                break
            best = self.cheaper(best, self._placed(combination))
        return best

    def _placed(self, combination: Combination) -> Draft:
        """These pools where they likely fit, and where the exact queue allows them."""
        grouping = Grouping(tuple(Pool(o.item.workloads, o.item.servers) for o in combination.pools))
        options = [[o] for o in combination.pools]
        return Search.of(self.context, grouping, options, self.iterations).place(combination.gpus)

    def cheaper(self, one: Draft | None, other: Draft) -> Draft:
        """The better of two; the first where they are equal."""
        return other if one is None or self._rank(other) < self._rank(one) else one

    def _cost(self, draft: Draft) -> float:
        """Infinite where a workload is lost."""
        return math.inf if draft.infeasible else self.context.cost(draft.gpus)

    def _rank(self, draft: Draft) -> tuple[float, ...]:
        """Less is better."""
        servers = sum(len(g.partitions) for g in draft.gpus)
        return len(draft.infeasible), self.context.cost(draft.gpus), _together(draft), servers

    def _may_be_cheaper(self, options: Sequence[Sequence[ServingOption]], than: Draft) -> bool:
        """Whether workloads with queues of their own could cost less, by what each takes at least."""
        price = {name: gpu_type.price for name, gpu_type in self.context.gpu_types.items()}
        each = [[o.least_percent * o.item.servers * price[o.gpu_type] for o in own] for own in options]
        least = sum(min(costs, default=0.0) for costs in each) / 100.0
        return bool(than.infeasible) or least < self.context.cost(than.gpus)


def _together(draft: Draft) -> int:
    """How many workloads are not the first of their partition."""
    return sum(len(p.workloads) - 1 for g in draft.gpus for p in g.partitions)
