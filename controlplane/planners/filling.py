"""A family cut into groups that fill what serves them.

Groups are made one after the other, each from the strictest workload left on: as many as come next, then some
of the following that fill what is left of its servers. So what stays empty gathers in the last group,
which takes a part of a GPU. A few beginnings are followed at once, judged by what the rest would cost if
groups could end within a workload.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controlplane.latency.protocol import BoolArray, FloatArray, IntArray
from controlplane.planners.offers import Offers

BEGINNINGS = 3
"""Followed at once."""
NEXT_OFFERS, FILLINGS = 4, 2
"""Tried for the next group of each, and ways to fill what is offered."""
GIVEN_BACK = 3
"""Of the workloads that come next, the last so many may be left to a later group, ..."""
WINDOW = 9
"""... for the best subset of so many, these and those that follow."""
HOPELESS = 1e6
"""What a workload costs that nothing holds."""
ROUNDING = 1e-9

_SUBSETS: BoolArray = (np.arange(1 << WINDOW)[:, None] >> np.arange(WINDOW) & 1).astype(np.bool_)
"""The first 2 ** n rows and n columns are the subsets of n."""
_SIZE: IntArray = _SUBSETS.sum(axis=1)
_FIRST_OUT: IntArray = np.where(_SUBSETS.all(axis=1), WINDOW, _SUBSETS.argmin(axis=1))
_COUNTED: FloatArray = _SUBSETS.astype(np.float64)
"""The same as factors: a product with rates adds up those of each subset."""


@dataclass(frozen=True, slots=True)
class Filled:
    """A group: places in its family, rising, and the number of the offer that it fills, None for none."""

    members: tuple[int, ...]
    offer: int | None


def filled(rates: FloatArray, offers: Offers, together: int, beginnings: int = BEGINNINGS) -> list[Filled]:
    """The cheapest cut found; `rates` (places,) in order of the SLO, with a row of `offers` each.

    `together`: at most so many in a group.
    """
    family = _Family.of(rates, offers, together)
    best: _Beginning | None = None
    front = [_Beginning(float(family.cost[0]), 0.0, (), 0, ())]
    while front:
        further: dict[tuple[tuple[int, ...], int], _Beginning] = {}
        for more in (more for beginning in front for more in family.continued(beginning)):
            rest = more.skipped, more.tail
            if rest == ((), rates.size):
                best = more if best is None or more.spent < best.spent - ROUNDING else best
            elif rest not in further or more.spent < further[rest].spent - ROUNDING:
                further[rest] = more
        hopeful = [b for b in further.values() if best is None or b.likely < best.spent - ROUNDING]
        front = sorted(hopeful, key=lambda b: (b.likely, b.spent, b.tail, b.skipped))[:beginnings]
    assert best is not None
    return list(best.groups)


@dataclass(frozen=True, slots=True)
class _Beginning:
    """Groups made so far, what they cost and what all likely will.

    `skipped` are places before `tail` that are in none yet; from `tail` on nobody is.
    """

    likely: float
    spent: float
    skipped: tuple[int, ...]
    tail: int
    groups: tuple[Filled, ...]

    def with_group(self, members: list[int], offer: int | None, cost: float, rest: float) -> _Beginning:
        """With one more for `cost`, after which all others likely cost `rest`."""
        tail, taken = max(self.tail, members[-1] + 1), set(members)
        skipped = tuple(p for p in (*self.skipped, *range(self.tail, tail)) if p not in taken)
        spent = self.spent + cost
        return _Beginning(spent + rest, spent, skipped, tail, (*self.groups, Filled(tuple(members), offer)))


@dataclass(frozen=True, slots=True)
class _Family:
    """What is cut. `edges` (places + 1,) are where workloads begin and end on a line, by rate.

    `cost` (places + 1,): of those from some place on if groups could end within a workload. `most` (places,):
    what any offer carries within its SLO. Both without what may run out: that is best used at once.
    """

    rates: FloatArray
    offers: Offers
    together: int
    edges: FloatArray
    cost: FloatArray
    most: FloatArray

    @staticmethod
    def of(rates: FloatArray, offers: Offers, together: int) -> _Family:
        """Costs from the end to the beginning."""
        edges = np.concatenate([[0.0], np.cumsum(rates)])
        count = rates.size
        lasting = np.where(np.isfinite(offers.stock[offers.stand]) & (offers.stand > 0), 0.0, offers.rate)
        cost = np.zeros(count + 1)
        for i in range(count - 1, -1, -1):
            until = np.minimum(edges[i] + lasting[i], edges[min(count, i + together)])
            rest = offers.cost + np.interp(until, edges[i + 1 :], cost[i + 1 :])
            best = float(rest[until >= edges[i + 1] - ROUNDING].min(initial=np.inf))
            cost[i] = best if np.isfinite(best) else cost[i + 1] + HOPELESS
        return _Family(rates, offers, together, edges, cost, lasting.max(axis=1))

    def of_rest(self, rate: FloatArray | float) -> FloatArray:
        """What the loosest workloads cost that together send so much."""
        answer: FloatArray = np.interp(self.edges[-1] - rate, self.edges, self.cost)
        return answer

    def continued(self, now: _Beginning) -> list[_Beginning]:
        """The likeliest ways to make the next group."""
        rates, offers, count = self.rates, self.offers, self.rates.size
        until = min(count, now.tail + self.together + WINDOW)
        place = np.array([*now.skipped, *range(now.tail, until)])
        load = np.cumsum(rates[place])
        left = float(load[-1] + self.edges[-1] - self.edges[until])
        most, first = min(self.together, place.size), int(place[0])
        carried = np.minimum(offers.rate[first], load[most - 1])
        likely = offers.cost + self.of_rest(np.maximum(left - carried, 0.0))
        likely[offers.rate[first] < rates[first] - ROUNDING] = np.inf
        likely[offers.servers > self.left(now)[offers.stand]] = np.inf
        found: list[_Beginning] = []
        for offer in np.argsort(likely, kind="stable")[:NEXT_OFFERS].tolist():
            if not np.isfinite(likely[offer]):
                break
            rate, cost = float(offers.rate[first, offer]) + ROUNDING, float(offers.cost[offer])
            fit = min(int(np.searchsorted(load, rate, side="right")), most)
            if fit == place.size and until == count:
                found.append(now.with_group(place.tolist(), offer, cost, 0.0))
                continue
            kept = max(1, fit - GIVEN_BACK)
            some = place[kept : kept + WINDOW]
            subsets = slice(1 << some.size)
            more = _COUNTED[subsets, : some.size] @ rates[some]
            rest = left - load[kept - 1] - more
            begins = np.append(some, place[min(kept + some.size, place.size - 1)])[_FIRST_OUT[subsets]]
            worth = self.of_rest(rest) + self.strict(begins, rest)
            worth[(load[kept - 1] + more > rate) | (_SIZE[subsets] > most - kept)] = np.inf
            for n in np.argsort(worth, kind="stable")[:FILLINGS].tolist():
                if np.isfinite(worth[n]):
                    members = [*place[:kept].tolist(), *some[_SUBSETS[n, : some.size]].tolist()]
                    found.append(now.with_group(members, offer, cost, float(worth[n])))
        if not found:
            rest_likely = float(self.of_rest(left - rates[first]))
            found.append(now.with_group([first], None, HOPELESS, rest_likely))
        return found

    def left(self, now: _Beginning) -> FloatArray:
        """Of each place where servers stand, how many more there are; the last is for all that need none."""
        left = np.append(self.offers.stock, np.inf)
        for group in now.groups:
            if group.offer is not None:
                left[self.offers.stand[group.offer]] -= self.offers.servers[group.offer]
        return left

    def strict(self, begins: IntArray, rest: FloatArray) -> FloatArray:
        """What it costs that the rest begins earlier than the loosest that send as much."""
        natural = np.searchsorted(self.edges, self.edges[-1] - rest + ROUNDING, side="right") - 1
        carries = self.most[np.minimum(natural, self.rates.size - 1)]
        slower = np.maximum(carries / np.maximum(self.most[begins], ROUNDING) - 1.0, 0.0)
        answer: FloatArray = slower * np.minimum(self.offers.cost.max(), self.of_rest(rest))
        return answer
