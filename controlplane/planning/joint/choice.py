"""The cheapest of all searches, and what to leave out where the number of GPUs is limited.

As many workloads as possible are served: those that take most of a type's GPUs are left out first, and only
as many as must be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from controlplane.domain.plan import Infeasible
from controlplane.domain.workload import Workload
from controlplane.planning.capacity.context import Context
from controlplane.planning.capacity.options import ServingOption, serving_options
from controlplane.planning.explain.infeasible import Reasons
from controlplane.planning.joint.grouping import Grouping, Pool, groupings, options_of
from controlplane.planning.joint.search import DEFAULT_ITERATIONS, Search
from controlplane.planning.joint.small_cases import Combination, combinations
from controlplane.planning.judge.finalise import Draft
from controlplane.planning.judge.placements import devices_left, numbered

_FEW_WORKLOADS = 12
"""Up to so many all combinations are weighed instead of a few groupings."""
_MOST_PLACED = 5
"""Of the most promising combinations, that the exact queue is asked about; as many more for each effort."""
_MOST_TRIED_ALONE = 16
"""Of the workloads that found no GPU, the largest: whether the fleet could hold them at all."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The best plan of a question, of all that the searches find."""

    context: Context
    iterations: int | None = None

    def draft(self) -> Draft:
        """The best plan for all workloads, or for as many as there are GPUs for; with reasons."""
        context, request = self.context, self.context.request
        first = self.best(context.workloads)
        if not first.infeasible:
            return first
        best, crowded_out = self._most_served(first)
        best = self._on_free_gpus(best, [w for w in context.workloads if w.name in crowded_out])
        lost = _lost(best)
        reasons = Reasons(request, context.gpu_types, best.gpus, lambda w: not self.best([w]).infeasible)
        infeasible = tuple(
            reasons.no_room(w) if w.name in crowded_out else reasons.refusal(w)
            for w in request.workloads
            if w.name in lost
        )
        return replace(best, infeasible=infeasible, stopped_by=context.stopped_by)

    # -- the best of all searches ------------------------------------------------------------------------

    def best(self, workloads: Sequence[Workload]) -> Draft:
        """The cheapest plan; between equals the one with fewer workloads together, then fewer servers."""
        gpu_types = self.context.gpu_types
        best: Draft | None = None
        if 0 < len(workloads) <= _FEW_WORKLOADS:
            effort = max(1, (self.iterations or 0) // DEFAULT_ITERATIONS)
            found = combinations(workloads, gpu_types, effort)
            for combination in found[: _MOST_PLACED * effort]:
                if best is not None and (self.context.stop() or combination.cost >= self._cost(best)):
                    break
                best = self._cheaper(best, self._placed(combination))
            if best is not None and self._cost(best) <= min(c.least for c in found):
                return best
        else:
            for grouping in groupings(workloads, gpu_types):
                if best is not None and self.context.stop():
                    break
                options = options_of(grouping, gpu_types)
                search = Search.of(self.context, grouping, options, self.iterations)
                best = self._cheaper(best, search.pack())
        own = serving_options([(w,) for w in workloads], gpu_types)
        if best is None or (not self.context.stop() and self._may_be_cheaper(own, best)):
            apart = Search.of(self.context, Grouping.apart(workloads), own, self.iterations).pack()
            best = apart if best is None else self._cheaper(apart, best)
        return best

    def _placed(self, combination: Combination) -> Draft:
        """These pools where they likely fit, and where the exact queue allows them."""
        grouping = Grouping(tuple(Pool(o.item.workloads, o.item.servers) for o in combination.pools))
        options = [[o] for o in combination.pools]
        return Search.of(self.context, grouping, options, self.iterations).place(combination.gpus)

    def _cheaper(self, one: Draft | None, other: Draft) -> Draft:
        """The better of two; the first where they are equal."""
        return other if one is None or self._rank(other) < self._rank(one) else one

    def _cost(self, draft: Draft) -> float:
        """Infinite where a workload is lost."""
        return math.inf if draft.infeasible else self.context.cost(draft.gpus)

    def _rank(self, draft: Draft) -> tuple[float, ...]:
        """Less is better."""
        partitions = [p for gpu in draft.gpus for p in gpu.partitions]
        together = sum(len(p.workloads) - 1 for p in partitions)
        return len(draft.infeasible), self.context.cost(draft.gpus), together, len(partitions)

    def _may_be_cheaper(self, options: Sequence[Sequence[ServingOption]], than: Draft) -> bool:
        """Whether workloads with queues of their own could cost less, by what each takes at least."""
        price = {name: gpu_type.price for name, gpu_type in self.context.gpu_types.items()}
        each = [[o.least_percent * o.item.servers * price[o.gpu_type] for o in own] for own in options]
        least = sum(min(costs, default=0.0) for costs in each) / 100.0
        return bool(than.infeasible) or least < self.context.cost(than.gpus)

    # -- where GPUs are limited --------------------------------------------------------------------------

    def _most_served(self, first: Draft) -> tuple[Draft, Set[str]]:
        """The best plan found for some or all workloads, and those left out though the fleet could hold them.

        `first` is the plan for all. How many of the largest must be left out, so that nothing else is lost,
        is found by bisection.
        """
        workloads = self.context.workloads
        options = serving_options([(w,) for w in workloads], self.context.gpu_types)
        counts = {name: device.pool.count for name, device in self.context.request.devices.items()}
        # The least part of all GPUs of a type that each takes by itself: 0 where the type has no limit,
        # infinite where nothing holds it.
        part: dict[str, float] = {}
        types: dict[str, set[str]] = {}
        for w, own in zip(workloads, options, strict=True):
            parts = [o.total_percent / (100.0 * n) if (n := counts[o.gpu_type]) else 0.0 for o in own]
            part[w.name] = min(parts, default=math.inf)
            types[w.name] = {o.gpu_type for o in own}
        limited = [w for w in workloads if 0.0 < part[w.name] < math.inf]
        largest_first = sorted(limited, key=lambda w: (-part[w.name], w.name))
        refused = _lost(first)
        lost = [w for w in largest_first if w.name in refused]
        if not lost:
            return first, frozenset()
        hopeless = {name for name in refused if part[name] == math.inf}
        hopeless |= {w.name for w in lost[:_MOST_TRIED_ALONE] if self.best([w]).infeasible}
        crowded = set().union(*(types[w.name] for w in lost))
        rivals = [w.name for w in largest_first if w.name not in hopeless and types[w.name] & crowded]
        # A workload that cannot be held changes nothing for the others.
        best = self._without(hopeless) if hopeless else first
        fewest, most = 1, len(_lost(best) - hopeless)
        while fewest <= most and not self.context.stop():
            count = (fewest + most) // 2
            away = hopeless | set(rivals[:count])
            trial = self._without(away)
            best = self._cheaper(best, trial)
            fewest, most = (fewest, count - 1) if _lost(trial) == away else (count + 1, most)
            most = min(most, len(_lost(best) - hopeless))
        return best, _lost(best) & {w.name for w in largest_first} - hopeless

    def _without(self, names: Set[str]) -> Draft:
        draft = self.best([w for w in self.context.workloads if w.name not in names])
        return replace(draft, infeasible=(*draft.infeasible, *(Infeasible(n, "") for n in sorted(names))))

    def _on_free_gpus(self, draft: Draft, workloads: Sequence[Workload]) -> Draft:
        """The draft with those of `workloads` that find room on GPUs it leaves unused.

        A workload that is cheapest on one type stays there, though another runs there only and its second
        best type is free.
        """
        request = self.context.request
        left = devices_left(request.devices, draft.gpus)
        free = {name: device for name, device in left.items() if device.pool.count is not None}
        able = [w for w in workloads if any(w.model in d.profiles for d in free.values())]
        if not able:
            return draft
        there = Context.of(replace(request, devices=free), self.context.started)
        more = replace(self, context=there).best(able)
        served = {w.name for w in able} - _lost(more)
        lost = tuple(i for i in draft.infeasible if i.workload not in served)
        return replace(draft, gpus=numbered((*draft.gpus, *more.gpus), request.devices), infeasible=lost)


def _lost(draft: Draft) -> set[str]:
    """The workloads that a draft does not serve."""
    return {i.workload for i in draft.infeasible}
