"""A family partitioned into groups that fill their servers.

Groups are made one after the other, each from the strictest workload left: as many workloads as come next,
then some of the following ones that fill what is left of its servers. So what stays empty gathers in the last
group, which takes a part of a GPU. Each group is chosen by its cost and by what the rest would cost if groups
could end within a workload.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controlplane.latency.protocol import BoolArray, FloatArray, IntArray
from controlplane.planning.joint.offers import Offer, Offers

_OFFERS_TRIED = 8
"""For each group, the most promising."""
_GIVEN_BACK = 3
"""Of the workloads that come next, the last so many may be left to a later group, ..."""
_WINDOW = 9
"""... for the best subset of so many: these and those that follow."""
_HOPELESS = 1e6
"""Cost of a workload that nothing holds."""
_ROUNDING = 1e-9

_SUBSETS: BoolArray = (np.arange(1 << _WINDOW)[:, None] >> np.arange(_WINDOW) & 1).astype(np.bool_)
"""The first 2 ** n rows and n columns are the subsets of n."""
_SIZE: IntArray = _SUBSETS.sum(axis=1)
_FIRST_OUT: IntArray = np.where(_SUBSETS.all(axis=1), _WINDOW, _SUBSETS.argmin(axis=1))
_AS_FACTORS: FloatArray = _SUBSETS.astype(np.float64)
"""A product with rates adds up those of each subset."""


@dataclass(frozen=True, slots=True)
class OfferedGroup:
    """A group: its members as places in the family, rising, and what serves it, None for nothing."""

    members: tuple[int, ...]
    offer: Offer | None


def cheapest_partition(rates: FloatArray, offers: Offers, most_together: int) -> list[OfferedGroup]:
    """The cheapest partition found; `rates` (places,) in order of the SLO, with a row of `offers` each.

    A group has at most `most_together` members.
    """
    family = _Family.of(rates, offers, most_together)
    best: _Partial | None = None
    now: _Partial | None = _Partial(float(family.cost[0]), 0.0, (), 0, ())
    while now is not None:
        further = family.continued(now)
        for partial in further:
            if partial.is_complete(rates.size) and (best is None or partial.spent < best.spent - _ROUNDING):
                best = partial
        promising = [
            p
            for p in further
            if not p.is_complete(rates.size) and (best is None or p.likely < best.spent - _ROUNDING)
        ]
        now = min(promising, key=lambda p: (p.likely, p.spent, p.tail, p.skipped), default=None)
    assert best is not None
    return list(best.groups)


@dataclass(frozen=True, slots=True)
class _Partial:
    """Groups made so far, what they cost (`spent`) and what all groups likely will.

    `skipped` are places before `tail` that are in no group yet; nor is any from `tail` on.
    """

    likely: float
    spent: float
    skipped: tuple[int, ...]
    tail: int
    groups: tuple[OfferedGroup, ...]

    def is_complete(self, places: int) -> bool:
        """Whether every place is in a group."""
        return not self.skipped and self.tail == places

    def with_group(self, members: list[int], offer: Offer | None, rest: float) -> _Partial:
        """With one more group, after which all others likely cost `rest`."""
        tail, grouped = max(self.tail, members[-1] + 1), set(members)
        skipped = tuple(p for p in (*self.skipped, *range(self.tail, tail)) if p not in grouped)
        spent = self.spent + (_HOPELESS if offer is None else offer.cost)
        groups = (*self.groups, OfferedGroup(tuple(members), offer))
        return _Partial(spent + rest, spent, skipped, tail, groups)


@dataclass(frozen=True, slots=True)
class _Family:
    """What is partitioned. `edges` (places + 1,) are where workloads begin and end on a line, by rate.

    `cost` (places + 1,): of those from some place on if groups could end within a workload. `most` (places,):
    what any offer carries within its SLO. Both without offers that may run out: those are best used at once.
    """

    rates: FloatArray
    offers: Offers
    most_together: int
    edges: FloatArray
    cost: FloatArray
    most: FloatArray

    @staticmethod
    def of(rates: FloatArray, offers: Offers, most_together: int) -> _Family:
        """Costs are calculated from the end to the beginning."""
        edges = np.concatenate([[0.0], np.cumsum(rates)])
        count = rates.size
        lasting = np.where(np.isfinite(offers.stock[offers.stand]) & (offers.stand > 0), 0.0, offers.rate)
        cost = np.zeros(count + 1)
        for i in range(count - 1, -1, -1):
            until = np.minimum(edges[i] + lasting[i], edges[min(count, i + most_together)])
            rest = offers.cost + np.interp(until, edges[i + 1 :], cost[i + 1 :])
            best = float(rest[until >= edges[i + 1] - _ROUNDING].min(initial=np.inf))
            cost[i] = best if np.isfinite(best) else cost[i + 1] + _HOPELESS
        return _Family(rates, offers, most_together, edges, cost, lasting.max(axis=1))

    def cost_of_rest(self, rate: FloatArray | float) -> FloatArray:
        """Cost of the loosest workloads that together send so much."""
        answer: FloatArray = np.interp(self.edges[-1] - rate, self.edges, self.cost)
        return answer

    def continued(self, now: _Partial) -> list[_Partial]:
        """The most promising ways to make the next group."""
        rates, offers, count = self.rates, self.offers, self.rates.size
        until = min(count, now.tail + self.most_together + _WINDOW)
        place = np.array([*now.skipped, *range(now.tail, until)])
        load = np.cumsum(rates[place])
        left = float(load[-1] + self.edges[-1] - self.edges[until])
        most, first = min(self.most_together, place.size), int(place[0])
        carried = np.minimum(offers.rate[first], load[most - 1])
        likely = offers.cost + self.cost_of_rest(np.maximum(left - carried, 0.0))
        likely[offers.rate[first] < rates[first] - _ROUNDING] = np.inf
        likely[offers.servers > self._stock_left(now)[offers.stand]] = np.inf
        found: list[_Partial] = []
        for number in np.argsort(likely, kind="stable")[:_OFFERS_TRIED].tolist():
            if not np.isfinite(likely[number]):
                break
            rate, offer = float(offers.rate[first, number]) + _ROUNDING, offers.at(number)
            fit = min(int(np.searchsorted(load, rate, side="right")), most)
            if fit == place.size and until == count:
                found.append(now.with_group(place.tolist(), offer, 0.0))
                continue
            kept = max(1, fit - _GIVEN_BACK)
            some = place[kept : kept + _WINDOW]
            subsets = slice(1 << some.size)
            more = _AS_FACTORS[subsets, : some.size] @ rates[some]
            rest = left - load[kept - 1] - more
            begins = np.append(some, place[min(kept + some.size, place.size - 1)])[_FIRST_OUT[subsets]]
            worth = self.cost_of_rest(rest) + self._strictness_cost(begins, rest)
            worth[(load[kept - 1] + more > rate) | (_SIZE[subsets] > most - kept)] = np.inf
            best = int(worth.argmin())
            if np.isfinite(worth[best]):
                members = [*place[:kept].tolist(), *some[_SUBSETS[best, : some.size]].tolist()]
                found.append(now.with_group(members, offer, float(worth[best])))
        if not found:
            rest_cost = float(self.cost_of_rest(left - rates[first]))
            found.append(now.with_group([first], None, rest_cost))
        return found

    def _stock_left(self, now: _Partial) -> FloatArray:
        """Servers left of each stand; the last entry is for stands without a limit."""
        left = np.append(self.offers.stock, np.inf)
        for group in now.groups:
            if group.offer is not None:
                left[group.offer.stand] -= group.offer.servers
        return left

    def _strictness_cost(self, begins: IntArray, rest: FloatArray) -> FloatArray:
        """What it costs that the rest begins earlier than the loosest workloads that send as much."""
        natural = np.searchsorted(self.edges, self.edges[-1] - rest + _ROUNDING, side="right") - 1
        carries = self.most[np.minimum(natural, self.rates.size - 1)]
        slower = np.maximum(carries / np.maximum(self.most[begins], _ROUNDING) - 1.0, 0.0)
        answer: FloatArray = slower * np.minimum(self.offers.cost.max(), self.cost_of_rest(rest))
        return answer
