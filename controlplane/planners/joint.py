"""The default strategy: batch, share, GPU, servers and shadow chosen together.

Who shares a queue comes from `weighing` where workloads are few and from `grouping` where they are many, the
ways to serve a group from `kinds`; `search` makes a plan of each, and the cheapest is kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from controlplane.domain.plan import Plan, Rule
from controlplane.domain.workload import Workload
from controlplane.planners.bound import prices
from controlplane.planners.client_batches import InRequests
from controlplane.planners.finish import Draft, finish
from controlplane.planners.grouping import Grouping, groupings
from controlplane.planners.keep import kept
from controlplane.planners.kinds import Kind, kinds_of
from controlplane.planners.proof import proven
from controlplane.planners.protocol import Device, PlanRequest
from controlplane.planners.refusal import Reasons
from controlplane.planners.renaming import renamed
from controlplane.planners.room import most_served, on_free_gpus
from controlplane.planners.search import DEFAULT_ITERATIONS, Desk, Search
from controlplane.planners.weighing import Weighed, weighed

FEW, SOME = 12, 60
"""Workloads up to which cuts are weighed: instead of others, and besides them."""
SOME_EFFORT = 4
"""How many times as much is weighed of the latter."""
ROOMY = 0.85
"""Part of what GPUs cost that shares take, at most, where company is worth avoiding."""
MOST_PLACED = 5
"""Of the likeliest, that are put to the exact queue, and as many more for each further effort."""


@dataclass(frozen=True, slots=True)
class Joint:
    """See the module."""

    name: str = "joint"
    rule: Rule = Rule.P99
    latency_model: str = "ours"

    def plan(self, request: PlanRequest) -> Plan:
        """See `Strategy.plan`."""
        started = request.clock.monotonic()
        asked = InRequests.of(request)
        draft = asked.counted_back(_Choice(Desk.of(asked.request, started)).draft())
        if request.previous is None:
            return finish(self.name, request, draft, started)
        fresh = finish(
            self.name, request, replace(draft, gpus=renamed(draft.gpus, request.previous)), started
        )
        gpus = kept(request.previous, request)
        if gpus is None:
            return fresh
        same = finish(self.name, request, replace(draft, gpus=gpus, infeasible=()), started)
        # What runs now moves nothing: it stays unless another plan costs less.
        worth = (len(fresh.infeasible), sum(g.price_per_hour for g in fresh.gpus))
        return same if same.verified and (0, sum(g.price_per_hour for g in same.gpus)) <= worth else fresh


def strategy() -> Joint:
    """The default strategy."""
    return Joint()


@dataclass(frozen=True, slots=True)
class _Choice:
    """The best of all searches."""

    desk: Desk

    def draft(self) -> Draft:
        """The best plan for all, or for as many as there are GPUs for; with reasons."""
        first = self.best(self.desk.workloads)
        if not first.infeasible:
            return first
        ways = kinds_of([(w,) for w in self.desk.workloads], *self.desk.told)
        best, crowded_out = most_served(
            self.desk.workloads,
            ways,
            self.desk.request.devices,
            first,
            self.best,
            self.cheaper,
            self.desk.stop,
        )
        waiting = [w for w in self.desk.workloads if w.name in crowded_out]
        best = on_free_gpus(best, waiting, self.desk.request.devices, self.elsewhere)
        lost = {i.workload for i in best.infeasible}
        reasons = Reasons(
            self.desk.request,
            self.desk.alone,
            self.desk.quantile,
            best.gpus,
            lambda w: not self.best([w]).infeasible,
        )
        return replace(
            best,
            infeasible=tuple(
                reasons.no_room(w) if w.name in crowded_out else reasons.refusal(w)
                for w in self.desk.request.workloads
                if w.name in lost
            ),
            # The best for fewer is not known to be the best.
            stopped_by=self.desk.stopped_by if crowded_out else best.stopped_by,
        )

    def elsewhere(self, workloads: Sequence[Workload], devices: Mapping[str, Device]) -> Draft:
        """The best plan on other GPUs."""
        return _Choice(Desk.of(replace(self.desk.request, devices=devices), self.desk.started)).best(
            workloads
        )

    def best(self, workloads: Sequence[Workload]) -> Draft:
        """The cheapest of all groupings; between equals the one with fewer together, then fewer servers."""
        price = prices(self.desk.request.devices)
        few = len(workloads) <= FEW
        # Who has told of more iterations than usual has more time.
        effort = max(1, (self.desk.request.iterations or 0) // DEFAULT_ITERATIONS)
        likely: list[Weighed] = []
        if 0 < len(workloads) <= SOME:
            likely = weighed(workloads, price, *self.desk.told, effort if few else effort * SOME_EFFORT)
        best = self.likeliest(likely, MOST_PLACED * (effort if few else effort * SOME_EFFORT))
        if few and best is not None and self.cost(best) <= min(w.least for w in likely):
            return proven(
                best, workloads, self.desk.request, self.desk.alone, self.desk.quantile, self.desk.stop
            )
        for grouping in () if few else groupings(workloads, price, *self.desk.told, effort):
            if best is not None and self.desk.stop():
                break
            best = self.cheaper(best, self.served(grouping))
        kinds = kinds_of([(w,) for w in workloads], *self.desk.told)
        if best is None or (not self.desk.stop() and self.may_be_cheaper(kinds, best)):
            search = Search.of(self.desk, Grouping.apart(workloads), kinds)
            apart = search.draft(search.pack())
            best = apart if best is None else self.cheaper(apart, best)
        return proven(best, workloads, self.desk.request, self.desk.alone, self.desk.quantile, self.desk.stop)

    def likeliest(self, likely: Sequence[Weighed], most: int) -> Draft | None:
        """The best of so many, cheapest first."""
        best: Draft | None = None
        for w in likely[:most]:
            if best is not None and (self.desk.stop() or w.cost >= self.cost(best)):
                break
            best = self.cheaper(best, self.placed(w))
        if best is None or self.desk.stop():
            return best
        # Where hardly any room is left the exact queue seldom agrees.
        equals = [w for w in likely if w.cost <= self.cost(best) and w.share <= ROOMY * w.cost]
        apart = min(equals, key=lambda w: (w.together, w.share), default=None)
        if apart is not None and apart.together < _together(best):
            best = self.cheaper(best, self.placed(apart))
        return best

    def placed(self, likely: Weighed) -> Draft:
        """These pools where they likely fit, and where the exact queue lets them."""
        grouping = Grouping.of([(k.item.workloads, k.item.servers, None) for k in likely.pools])
        search = Search.of(self.desk, grouping, [[k] for k in likely.pools])
        return search.draft(search.settled(likely.gpus))

    def served(self, grouping: Grouping) -> Draft:
        """GPUs for these groups; one that finds none though some are left is parted until it does."""
        while True:
            search = Search.of(self.desk, grouping)
            gpus = search.pack()
            parted = grouping if search.taken else grouping.halved(search.lost)
            if parted == grouping:
                return search.draft(gpus)
            grouping = parted

    def cheaper(self, one: Draft | None, other: Draft) -> Draft:
        """The better of two; the first where they are equal."""
        return other if one is None or self.worth(other) < self.worth(one) else one

    def cost(self, draft: Draft) -> float:
        """By `bound.prices`; infinite where somebody is lost."""
        price = prices(self.desk.request.devices)
        return math.inf if draft.infeasible else sum(price[g.type] for g in draft.gpus)

    def worth(self, draft: Draft) -> tuple[float, ...]:
        """Less is better."""
        price = prices(self.desk.request.devices)
        return (
            float(len(draft.infeasible)),
            sum(price[g.type] for g in draft.gpus),
            float(_together(draft)),
            float(sum(len(g.partitions) for g in draft.gpus)),
        )

    def may_be_cheaper(self, kinds: Sequence[Sequence[Kind]], than: Draft) -> bool:
        """Whether every workload by itself could cost less, by what each takes at least."""
        price = prices(self.desk.request.devices)
        least = sum(
            min((k.least * k.item.servers * price[k.device] for k in ways), default=0.0) for ways in kinds
        )
        return bool(than.infeasible) or least / 100.0 < sum(price[g.type] for g in than.gpus)


def _together(draft: Draft) -> int:
    """How many workloads are not the first of their partition."""
    return sum(len(p.workloads) - 1 for g in draft.gpus for p in g.partitions)
