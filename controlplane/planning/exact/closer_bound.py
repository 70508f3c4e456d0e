"""What no plan can cost less than, with what neighbours do to each other.

    max   sum_w rate_w price_w                       what all workloads pay
    s.t.  sum_(p in contents) earned_p <= cost       for all contents of a GPU
          price_w >= price_v                         where w has the stricter SLO, both in one family

Give every request per second of a workload a price. If no GPU can hold partitions that together earn more
than the GPU costs, no plan costs less than all workloads pay. The linear program grows by the contents that
earn most at its prices (`Gpu.best`), and all prices are lowered until none earns more than it costs.

A partition earns at most what a run of workloads pays that begins at its strictest SLO and is as long as its
pool carries, divided by the servers of the pool.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.domain.workload import Arrivals, Workload
from controlplane.latency.protocol import FloatArray, IntArray
from controlplane.planning.capacity.gpu_types import GpuType
from controlplane.planning.capacity.items import Group, families
from controlplane.planning.capacity.lower_bound import attainable, calibration_spread, lower_bound
from controlplane.planning.exact.effects import LEVELS, POOLS, PairEffects

_MOST_CLASSES = 100
"""SLOs that are distinguished, of all families: the workloads between two count as loose as the looser."""
_MOST_FAMILIES = 20
_MOST_ROUNDS = 200
_NEAR = 3e-4
"""Relative: prices this near to the best are good enough."""
_MOST_PAIRS = 2_000
"""Pairs to which thirds are tried in a round: the rest count with what they earn at most."""
_MANY = 4
"""Partitions from which on neighbours are the least harmful ones."""


def closer_bound(
    workloads: Sequence[Workload], gpu_types: Mapping[str, GpuType], stop: Callable[[], bool]
) -> float:
    """A cost that no plan for these workloads goes below, if each of them fits some GPU.

    That of `lower_bound` where there are many families, constant arrivals or a free GPU type, and where pairs
    of neighbours do not say what several do.
    """
    simple = lower_bound(workloads, gpu_types)
    kin = families(workloads, next(iter(gpu_types.values())).rule) if workloads else []
    constant = any(w.arrivals is Arrivals.CONSTANT for w in workloads)
    free = any(gpu_type.price <= 0.0 for gpu_type in gpu_types.values())
    if not kin or len(kin) > _MOST_FAMILIES or constant or free:
        return simple
    classes = _Classes.of(kin)
    markets = [_Market.of(gpu_type, classes) for gpu_type in gpu_types.values()]
    known = [market for market in markets if market is not None]
    if len(known) < len(markets):
        return simple
    return max(simple, _paid(classes, known, gpu_types, stop))


@dataclass(frozen=True, slots=True)
class _Classes:
    """All families as classes of rising SLO, one family after the other.

    `rate` (classes,), `slo_ms` that of the loosest of a class, `family` its family's number. `models` are
    those of the families.
    """

    rate: FloatArray
    slo_ms: FloatArray
    family: IntArray
    models: tuple[str, ...]

    @staticmethod
    def of(kin: Sequence[Group]) -> _Classes:
        runs = [_runs(family, max(1, _MOST_CLASSES // len(kin))) for family in kin]
        return _Classes(
            np.array([sum(w.rate_rps for w in run) for own in runs for run in own]),
            np.array([run[-1].slo_ms for own in runs for run in own]),
            np.repeat(np.arange(len(kin)), [len(own) for own in runs]),
            tuple(family[0].model for family in kin),
        )


def _runs(family: Group, most: int) -> list[Group]:
    """A family cut where SLOs differ.

    What a server carries falls about as 1 / SLO rises, so a class loses its rate times its spread of that: at
    the best cuts the root of both, summed along the family, is the same for each.
    """
    if len(family) <= most:
        return [(w,) for w in family]
    rate, strictness = np.array([(w.rate_rps, 1.0 / w.slo_ms) for w in family]).T
    along = np.append(0.0, np.cumsum(np.sqrt(rate[1:] * -np.diff(strictness))))
    part = along / along[-1] if along[-1] > 0.0 else along
    number = np.minimum(np.floor(part * most), most - 1)
    return [tuple(family[i] for i in np.flatnonzero(number == n)) for n in np.unique(number)]


@dataclass(frozen=True, slots=True)
class _Sides:
    """Where runs of one family end that options of its model serve.

    All (options, levels, classes, pools): `last` the class in which a run ends, `part` how far along it.
    `option` (options,) are numbers, `begin` is the family's first class.
    """

    option: IntArray
    begin: int
    last: IntArray
    part: FloatArray

    def earned(self, paid: FloatArray, at: tuple[int, int] | slice = slice(None)) -> FloatArray:
        """What one server of each run earns, at all options and levels or at one (`at`).

        `paid` (classes + 1,): by all classes before each edge.
        """
        start = paid[self.begin : self.begin + self.last.shape[2], None]
        fewest, last = np.array([first for first, _ in POOLS]), self.last[at]
        until = paid[last] + self.part[at] * (paid[last + 1] - paid[last])
        return np.asarray((until - start) / fewest)


@dataclass(frozen=True, slots=True)
class _Market:
    """One GPU type: its contents, and which runs its options serve."""

    gpu: Gpu
    sides: tuple[_Sides, ...]
    price: float

    @staticmethod
    def of(gpu_type: GpuType, classes: _Classes) -> _Market | None:
        """None where neighbours' effects are unknown."""
        numbers = np.array([gpu_type.number_of(m) for m in classes.models])
        models = np.unique(numbers[numbers >= 0])
        fast = calibration_spread(gpu_type.device.latency) > 1.0
        effects = None if fast or not models.size else PairEffects.of(gpu_type, models)
        if effects is None:
            return None
        sides = []
        edges, fewest = np.append(0.0, np.cumsum(classes.rate)), np.array([first for first, _ in POOLS])
        for family in np.flatnonzero(numbers >= 0):
            own, model = np.flatnonzero(classes.family == family), int(numbers[family])
            carried = effects.carried(model, classes.slo_ms[own])
            until = np.minimum(edges[own][:, None] + carried * fewest, edges[own[-1] + 1])
            last = np.clip(np.searchsorted(edges, until, side="right") - 1, own[0], own[-1])
            part = (until - edges[last]) / classes.rate[last]
            sides.append(_Sides(np.flatnonzero(effects.model == model), int(own[0]), last, part))
        return _Market(Gpu.of(effects), tuple(sides), gpu_type.price)

    def worth(self, paid: FloatArray) -> FloatArray:
        """What each option earns at most at each level: (options, levels)."""
        found = np.zeros((self.gpu.effects.model.size, self.sides[0].last.shape[1]))
        for side in self.sides:
            found[side.option] = np.maximum(found[side.option], side.earned(paid).max(axis=(2, 3)))
        return found

    def served(self, contents: Contents, paid: FloatArray) -> FloatArray:
        """The part of each class that contents serve: (classes,)."""
        found = np.zeros(paid.size - 1)
        for option, level in contents.parts:
            runs = [
                (side.earned(paid, (int(at), level)), side, int(at))
                for side in self.sides
                for at in np.flatnonzero(side.option == option)
            ]
            earned, side, at = max(runs, key=lambda run: float(run[0].max()))
            first, pool = divmod(int(earned.argmax()), len(POOLS))
            last, servers = int(side.last[at, level, first, pool]), POOLS[pool][0]
            found[side.begin + first : last] += 1.0 / servers
            found[last] += float(side.part[at, level, first, pool]) / servers
        return found


def _paid(
    classes: _Classes, markets: Sequence[_Market], gpu_types: Mapping[str, GpuType], stop: Callable[[], bool]
) -> float:
    """What all workloads pay at the best prices found, as a cost that a plan can have."""
    from scipy.optimize import linprog

    # No class pays more for a request than the one before it in its family.
    same = np.flatnonzero(np.diff(classes.family) == 0)
    falling = np.zeros((same.size, classes.rate.size))
    rows = np.arange(same.size)
    falling[rows, same + 1], falling[rows, same] = 1.0 / classes.rate[same + 1], -1.0 / classes.rate[same]
    most = _dearest(classes, markets)
    by_class, best = most, 0.0
    columns, prices = list[FloatArray](), list[float]()
    for _ in range(_MOST_ROUNDS):
        paid, over = np.append(0.0, np.cumsum(by_class)), 1.0
        for market in markets:
            found, earned = market.gpu.best(market.worth(paid), market.price)
            over = max(over, earned / market.price)
            columns += [market.served(contents, paid) for contents in found]
            prices += [market.price] * len(found)
        best = max(best, float(by_class.sum()) / over)
        if over <= 1.0 + _NEAR or stop():
            break
        if attainable(best, gpu_types) >= attainable(float(by_class.sum()), gpu_types):
            break
        above, limit = np.vstack([np.array(columns), falling]), np.append(prices, np.zeros(same.size))
        solved = linprog(-np.ones(most.size), above, limit, bounds=np.column_stack([0.0 * most, most]))
        if solved.status != 0:
            break
        by_class = solved.x
    return attainable(best, gpu_types)


def _dearest(classes: _Classes, markets: Sequence[_Market]) -> FloatArray:
    """What each class can pay at most: by then a GPU that serves it alone earns its price."""
    found = np.full(classes.rate.size, np.inf)
    for market in markets:
        for side in market.sides:
            whole = np.flatnonzero(market.gpu.effects.percent[side.option] > 100.0 - 1e-9)
            alone = side.last[whole, 0, :, 0], side.part[whole, 0, :, 0]
            for n in range(side.last.shape[2]):
                number = side.begin + n
                filled = np.where(alone[0][:, n] > number, 1.0, alone[1][:, n]).max(initial=0.0)
                if filled > 0.0:
                    found[number] = min(found[number], market.price / float(filled))
    return np.where(np.isfinite(found), found, 0.0)


# -- the contents of one GPU that earn most: the columns -------------------------------------------------


@dataclass(frozen=True, slots=True)
class Contents:
    """What one GPU may hold, and what that earns.

    `parts`: options, and the level at which its neighbours slow each of them.
    """

    earned: float
    parts: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Gpu:
    """Everything that a GPU of a type may hold.

    Of up to three partitions what they do to each other is counted; of more, each has the least harmful
    neighbours that there are.

    `pair` (2, pairs) are options that fit together, the larger share first, and `felt` (2, pairs) how much
    they slow each other; `left` (pairs,) is the room that a third may take. `least` (options,): by how much
    the least harmful neighbour slows each. `weight` (options,) and `room` of the GPU are in units, rounded
    down: what fits in percent fits in units.
    """

    effects: PairEffects
    pair: IntArray
    felt: FloatArray
    left: IntArray
    least: FloatArray
    weight: IntArray
    room: int

    @staticmethod
    def of(effects: PairEffects) -> Gpu:
        """Look at every two options once."""
        effect, percents = effects.effect, effects.gpu_type.percents
        unit = min(percents[0], np.diff(percents).min(initial=percents[0]))
        weight = np.floor(effects.percent / unit + 1e-6).astype(np.int64)
        room = int(100.0 / unit + 1e-6)
        order = np.argsort(np.argsort(-weight, kind="stable"))
        a, b = np.nonzero(np.isfinite(effect) & (order[:, None] <= order))
        felt, left = (
            np.stack([effect[a, b], effect[b, a]]),
            np.minimum(room - weight[a] - weight[b], weight[b]),
        )
        # What fits beside nothing is in no pair.
        least = np.where(np.isfinite(effect), effect, np.inf).min(axis=1)
        least = np.where(np.isfinite(least), least, 0.0)
        return Gpu(effects, np.stack([a, b]), felt, left, least, weight, room)

    def best(self, worth: FloatArray, price: float) -> tuple[list[Contents], float]:
        """Contents that earn more than the price of a GPU, and what none earns more than.

        `worth` (options, levels).
        """
        options = np.arange(worth.shape[0])[None]
        found = [*self._contents(worth, options, np.zeros(options.shape)), *self._many(worth)]
        found += self._contents(worth, self.pair, self.felt)
        above = max(price, *(c.earned for c in found))
        # A third beside each pair, the most promising ones first.
        sure = worth[self.pair, _level_of(self.felt + self.least[self.pair])].sum(axis=0)
        third = worth[options[0], _level_of(2.0 * self.least)]
        best_third = np.zeros(self.room + 1)
        np.maximum.at(best_third, self.weight, third)
        at_most = np.where(self.left > 0, sure + np.maximum.accumulate(best_third)[self.left], 0.0)
        likely = np.flatnonzero(at_most > above)
        likely = likely[np.argsort(-at_most[likely], kind="stable")]
        if likely.size:
            some = likely[:_MOST_PAIRS]
            fits = self.weight <= self.left[some, None]
            row, c = np.nonzero(fits & (sure[some, None] + third > above))
            effect, (a, b) = self.effects.effect, self.pair[:, some[row]]
            felt = [effect[a, b] + effect[a, c], effect[b, a] + effect[b, c], effect[c, a] + effect[c, b]]
            found += self._contents(worth, np.stack([a, b, c]), np.stack(felt))
        most = max(above, *(c.earned for c in found))
        if likely.size > _MOST_PAIRS:
            most = max(most, float(at_most[likely[_MOST_PAIRS]]))
        return [c for c in found if c.earned > price], most

    def _contents(self, worth: FloatArray, option: IntArray, felt: FloatArray) -> list[Contents]:
        """The best of these sets (parts, sets) for each two models of its largest: so fewer rounds do."""
        level = _level_of(felt)
        value = worth[option, level].sum(axis=0)
        key = self.effects.model[option[:2]]
        order = np.lexsort((-value, *key))
        heads = np.flatnonzero((np.diff(key[:, order], prepend=-1, axis=1) != 0).any(axis=0))
        return [
            Contents(float(value[n]), tuple(zip(option[:, n].tolist(), level[:, n].tolist(), strict=True)))
            for n in order[heads].tolist()
        ]

    def _many(self, worth: FloatArray) -> list[Contents]:
        """The best contents of four or more, each beside the three least harmful: a knapsack."""
        felt = np.maximum(self.effects.by_three, 3.0 * self.least)
        fits = np.isfinite(felt)
        level = _level_of(np.where(fits, felt, 0.0))
        value = np.where(fits, worth[np.arange(level.size), level], 0.0)
        heaviest = np.unique(self.weight)
        option = np.array([np.where(self.weight == w, value, -1.0).argmax() for w in heaviest])
        # Rows: with one partition more each, the last one with four or more.
        best = np.full((_MANY + 1, self.room + 1), -np.inf)
        last = np.full(best.shape, -1)
        best[0] = 0.0
        for n, units in itertools.product(range(1, _MANY + 1), range(1, self.room + 1)):
            taken = np.flatnonzero(heaviest <= units)
            before = best[n - 1, units - heaviest[taken]]
            if n == _MANY:
                before = np.maximum(before, best[n, units - heaviest[taken]])
            total = before + value[option[taken]]
            if total.size and total.max() > best[n, units]:
                best[n, units], last[n, units] = total.max(), taken[total.argmax()]
        parts, n, left = list[tuple[int, int]](), _MANY, self.room
        while n > 0 and last[n, left] >= 0:
            own = int(option[last[n, left]])
            parts.append((own, int(level[own])))
            left -= int(self.weight[own])
            if n < _MANY or best[n - 1, left] >= best[n, left]:
                n -= 1
        return [Contents(float(best[_MANY, self.room]), tuple(parts))] if parts else []


def _level_of(felt: FloatArray) -> IntArray:
    """The index of the largest of `LEVELS` up to each."""
    return np.asarray(np.searchsorted(LEVELS, felt, side="right") - 1)
