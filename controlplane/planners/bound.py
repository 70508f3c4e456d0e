"""What no plan can cost less than, however workloads share queues, pools and GPUs.

Give every request per second of a workload a price. If no GPU can hold partitions that together earn more
than the GPU costs, then no plan costs less than all workloads pay. The best prices are the dual of a linear
program over all contents of a GPU; its columns are made as they are needed, each the one that earns most at
the prices so far.

A partition earns at most what a run of workloads pays that begins at its strictest SLO and is as long as its
pool can carry, each workload once, divided by the servers of the pool. What it can carry is `capacity`'s.
Of up to three partitions on a GPU `company` tells what they do to each other; of more, and where it tells
nothing, each has the least harmful neighbours there are, and which stand together is a knapsack of shares.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.domain.plan import Rule
from controlplane.domain.workload import Arrivals, Workload
from controlplane.latency.protocol import BoolArray, FloatArray, IntArray
from controlplane.planners.capacity import FEW_MODELS, NEIGHBOURS, Fastest, carried, pool_sizes
from controlplane.planners.company import LEVELS, Mutual
from controlplane.planners.grouping import families
from controlplane.planners.menu import Alone
from controlplane.planners.protocol import Device

MOST_CLASSES = 100
"""SLOs told apart, of all families together: the workloads between two are all as loose as the looser."""
MANY_WORKLOADS = 400
"""From so many on fewer classes, or programs take longer than the plan."""
FEWER_CLASSES = 64
FEW_WORKLOADS = 20
"""Up to so many neighbours are taken for harmless: the little that they gain takes longer than the plan."""
MOST_ROUNDS = 200
"""Linear programs solved."""
MANY_CLASSES = 100
"""Beyond so many, where most workloads have their own queues, programs grow large: fewer are solved."""
MANY_ROUNDS = 3000
"""That many over the classes. The bound holds whenever one stops, and the first rounds raise it most."""
MANY_FAMILIES = 1000
"""From so many on each family's own contents are left out: they would fill the memory."""
MUTUAL = 3
"""Partitions of a GPU up to which each one's effect on the others is counted; `NEIGHBOURS` is no less."""
NEAR = 3e-4
"""Relative: prices this near to the best are good enough."""
ROUNDING = 1e-6
"""Of a GPU: sums of prices are floats."""


def prices(devices: Mapping[str, Device]) -> dict[str, float]:
    """What a GPU of each type costs; 1 each where all are free, so that GPUs count."""
    told = {name: d.pool.price_per_hour for name, d in devices.items()}
    return told if any(told.values()) else dict.fromkeys(told, 1.0)


def lower_bound(
    workloads: Sequence[Workload], devices: Mapping[str, Device], alone: Mapping[str, Alone], rule: Rule,
    quantile: float | None,
) -> float:  # fmt: skip
    """By `prices`, of all plans for these workloads, each of which some plan can hold."""
    if not workloads:
        return 0.0
    asked = _Question.of(workloads, devices, alone, rule, quantile)
    told = list(asked.price)
    # Prices that are all one and the same: costs are its multiples.
    step = told[0] if len(set(told)) == 1 else 0.0
    return _attainable(_priced(asked, step), step)


def _attainable(cost: float, step: float) -> float:
    """The least that a plan which costs at least this can cost."""
    return math.ceil(cost / step - ROUNDING) * step if step else cost


@dataclass(frozen=True, slots=True)
class _Family:
    """Workloads that may share queues, as classes of rising SLO.

    `rate` (classes,) is per second; `carried` holds for each GPU type (classes, pool sizes, neighbours,
    shares), see `capacity.carried`. `whole`: it is one workload, which a pool serves or does not.
    """

    rate: FloatArray
    carried: tuple[FloatArray, ...]
    whole: bool

    @property
    def edges(self) -> FloatArray:
        """Where classes begin and end, by rate: (classes + 1,)."""
        return np.concatenate([[0.0], np.cumsum(self.rate)])


@dataclass(frozen=True, slots=True)
class _Question:
    """All families; `first` (families + 1,) is the number of each one's first class.

    For each GPU type: its price, and how many steps of the grid each of its shares takes, rounded down, out
    of `steps`. `pools` (pool sizes, 2) are the fewest and most servers of each size. `mutual`: what
    neighbours do to each other, None where only the least harmful are known. Of all classes (classes,): its
    `rate`, the `end` of its family and whether it is one workload as a `whole`.
    """

    families: tuple[_Family, ...]
    first: IntArray
    price: tuple[float, ...]
    weight: tuple[IntArray, ...]
    steps: tuple[int, ...]
    pools: IntArray
    mutual: tuple[Mutual | None, ...]
    rate: FloatArray
    end: IntArray
    whole: BoolArray

    @staticmethod
    def of(
        workloads: Sequence[Workload], devices: Mapping[str, Device], alone: Mapping[str, Alone], rule: Rule,
        quantile: float | None,
    ) -> _Question:  # fmt: skip
        grouped = families(workloads, rule)
        loosest: dict[str, float] = {}
        for family in grouped:
            loosest[family[0].model] = max(loosest.get(family[0].model, 0.0), family[-1].slo_ms)
        # Under half-SLO no batch may take longer than that.
        patience = math.inf if rule is Rule.P99 else 0.5 + ROUNDING
        classes = MOST_CLASSES if len(workloads) < MANY_WORKLOADS else FEWER_CLASSES
        most = max(1, classes // len(grouped))
        runs = [_classes(family, most) for family in grouped]
        slos = [
            np.array([f[int(run[-1])].slo_ms for run in own]) for f, own in zip(grouped, runs, strict=True)
        ]
        several = len(workloads) > FEW_WORKLOADS and len(grouped) <= MOST_CLASSES
        fastest, mutual = {}, []
        for n, d in devices.items():
            limit = {m: loosest[d.latency.models[m]] * patience for m in _numbers(d, [*loosest])}
            told = None
            if several and 0 < len(limit) <= FEW_MODELS:
                told = Mutual.of(d, alone[n], limit, grouped, slos, rule, quantile)
            mutual.append(told)
            neighbours = NEIGHBOURS if len(workloads) > FEW_WORKLOADS else 0
            fastest[n] = Fastest.of(d, alone[n], limit, rule, quantile, neighbours)
        found = []
        for family, own, slo in zip(grouped, runs, slos, strict=True):
            rate = np.array([sum(family[i].rate_rps for i in run) for run in own])
            constant = family[0].arrivals is Arrivals.CONSTANT
            held = []
            for name, device in devices.items():
                (model,) = _numbers(device, [family[0].model]) or (-1,)
                shape = (rate.size, len(pool_sizes(rule)), 1, alone[name].execution.shape[2])
                nothing = np.zeros(shape)
                held.append(
                    nothing if model < 0 else carried(fastest[name], device, model, slo, rule, constant)
                )
            found.append(_Family(rate, tuple(held), len(family) == 1))
        grids = [d.pool.device.grid for d in devices.values()]
        sizes = [f.rate.size for f in found]
        first = np.cumsum([0, *sizes])
        return _Question(
            tuple(found), first, tuple(prices(devices).values()),
            tuple(_steps(np.array(g.percents()), g.step_percent) for g in grids),
            tuple(math.floor(100.0 / g.step_percent + ROUNDING) for g in grids),
            np.array(pool_sizes(rule), dtype=np.int64), tuple(mutual),
            np.concatenate([f.rate for f in found]), np.repeat(first[1:], sizes),
            np.repeat([f.whole for f in found], sizes),
        )  # fmt: skip


def _classes(family: Sequence[Workload], most: int) -> list[IntArray]:
    """Its workloads by number, those of a class together.

    What a server carries falls about as 1 / SLO rises, so a class loses its rate times its spread of that: at
    the best cuts the root of both, summed along the family, is the same for each.
    """
    if len(family) <= most:
        return list(np.arange(len(family))[:, None])
    rate = np.array([w.rate_rps for w in family])
    strictness = np.array([1.0 / w.slo_ms for w in family])
    along = np.append(0.0, np.cumsum(np.sqrt(rate[1:] * -np.diff(strictness))))
    part = along / along[-1] if along[-1] > 0.0 else along
    number = np.minimum(np.floor(part * most), most - 1)
    return [np.flatnonzero(number == n) for n in np.unique(number)]


def _steps(percents: FloatArray, step_percent: float) -> IntArray:
    steps: IntArray = np.floor(percents / step_percent + ROUNDING).astype(np.int64)
    return steps


def _numbers(device: Device, models: Sequence[str]) -> list[int]:
    """Of those models that this GPU type serves, as its latency model numbers them."""
    known = device.latency.models
    return [known.index(m) for m in models if m in known]


@dataclass(frozen=True, slots=True)
class _Filled:
    """The contents that earn most on a GPU of a type: what they earn, how much of each class they serve."""

    device: int
    earned: float
    served: FloatArray


def _priced(asked: _Question, step: float) -> float:
    """What all workloads pay at the best prices found."""
    from scipy.optimize import linprog

    rate = asked.rate
    most = np.array([_dearest(asked, a, i) for a, f in enumerate(asked.families) for i in range(f.rate.size)])
    looser = [_falling(asked, a, i) for a, f in enumerate(asked.families) for i in range(f.rate.size - 1)]
    columns: list[_Filled] = []
    paid, best = most.copy(), 0.0
    for _ in range(MOST_ROUNDS if rate.size <= MANY_CLASSES else max(2, MANY_ROUNDS // rate.size)):
        filled = _best_contents(asked, paid / rate)
        # Lower all prices until no GPU earns more than it costs.
        over = max((_over(f.earned, asked.price[f.device]) for f in filled), default=1.0)
        best = max(best, float(paid.sum()) / max(over, 1.0))
        if over <= 1.0 + NEAR or _attainable(best, step) >= _attainable(float(paid.sum()), step) > 0.0:
            break
        columns += [f for f in filled if f.earned > asked.price[f.device]]
        rows = np.array([f.served / rate for f in columns] + [row / rate for row in looser])
        high = np.array([asked.price[f.device] for f in columns] + [0.0] * len(looser))
        found = linprog(-np.ones(rate.size), A_ub=rows, b_ub=high, bounds=np.column_stack([0.0 * most, most]))
        if found.status != 0:
            break
        paid = found.x
    return best


def _over(earned: float, price: float) -> float:
    """How many times its price a GPU earns; a free one may earn nothing."""
    if price > 0.0:
        return earned / price
    return math.inf if earned > ROUNDING else 0.0


def _dearest(asked: _Question, family: int, number: int) -> float:
    """All that a class can be made to pay: by then a GPU that serves it alone earns its price."""
    its = asked.families[family]
    rate = float(its.rate[number])
    best = math.inf
    for most, price in zip(its.carried, asked.price, strict=True):
        held = float(most[number, 0, 0].max(initial=0.0))
        if held > 0.0:
            best = min(best, price * max(1.0, rate / held))
    return best if math.isfinite(best) else 0.0


def _falling(asked: _Question, family: int, number: int) -> FloatArray:
    """A row by which the next class pays no more for a request than this one."""
    row = np.zeros(int(asked.first[-1]))
    at = int(asked.first[family]) + number
    row[at + 1], row[at] = 1.0, -1.0
    return row


def _best_contents(asked: _Question, price: FloatArray) -> list[_Filled]:
    """Those that earn most at `price` (classes,), of each GPU type; none where none earns what it costs."""
    filled: list[_Filled] = []
    for d, mutual in enumerate(asked.mutual):
        fewest = 0
        if mutual is not None:
            filled += _mutually_harmed(asked, d, mutual, price)
            fewest = MUTUAL
        filled += _least_harmed(asked, d, price, fewest)
    return filled


def _least_harmed(asked: _Question, d: int, price: FloatArray, fewest: int) -> list[_Filled]:
    """The best contents of GPU type d for each number of neighbours from `fewest` on, the least harmful.

    Of all families together first; then of each alone, so that fewer rounds find the best prices.
    """
    from controlplane.planners.bound_kernel import best_runs, fill

    found = []
    every = range(len(asked.families))
    each = [[a] for a in every] if len(every) <= MANY_FAMILIES else []
    weight, steps = asked.weight[d], asked.steps[d]
    shape = max(f.carried[d].shape[2] for f in asked.families), weight.size
    worth = np.zeros((len(every), *shape))
    who = np.zeros((*worth.shape, 2), dtype=np.int64)
    for a, family in enumerate(asked.families):
        own = price[asked.first[a] : asked.first[a + 1]]
        best_runs(family.carried[d], asked.pools, family.edges, own, family.whole, worth[a], who[a])
    for neighbours, several in itertools.product(range(fewest, shape[0]), (every, *each)):
        more = neighbours == shape[0] - 1
        own_worth = worth[list(several), neighbours]
        earned, shares = fill(own_worth.max(axis=0), weight, steps, neighbours + 1, more)
        served = np.zeros(price.size)
        for s in shares.tolist():
            a = several[int(own_worth[:, s].argmax())]
            number, size = who[a, neighbours, s]
            held = float(asked.families[a].carried[d][number, size, neighbours, s])
            served += _run(asked, int(asked.first[a]) + int(number), int(size), held)
        found.append(_Filled(d, earned, served))
    return found


def _mutually_harmed(asked: _Question, d: int, mutual: Mutual, price: FloatArray) -> list[_Filled]:
    """Contents of GPU type d of up to `MUTUAL` partitions that earn more than it costs."""
    from controlplane.planners.company_kernel import best_contents

    rate, company = asked.rate, mutual.company
    paid, edges = (np.append(0.0, np.cumsum(part)) for part in (price * rate, rate))
    sale = mutual.carried, edges, paid, price, asked.end, asked.whole, asked.pools, mutual.span
    shape = (len(company.models), *mutual.carried.shape[:3])
    who = np.zeros((*shape, 2), dtype=np.int64)
    earned, parts = best_contents(
        sale, np.full(shape, -1.0), who, LEVELS, company.effect, company.least, asked.weight[d],
        asked.steps[d], asked.price[d],
    )  # fmt: skip
    found = []
    for at in np.argwhere(earned > 0.0):
        served = np.zeros(rate.size)
        for m, g, level, s in parts[*at].tolist():
            if m >= 0:
                number, size = who[m, g, level, s]
                held = float(mutual.carried[g, level, s, number, size])
                served += _run(asked, int(number), int(size), held)
        found.append(_Filled(d, float(earned[*at]), served))
    return found


def _run(asked: _Question, number: int, size: int, held: float) -> FloatArray:
    """How much of each class a server of a pool of this size serves, whose run begins at this class."""
    served = np.zeros(asked.rate.size)
    fewest = float(asked.pools[size, 0])
    if held <= 0.0:
        return served
    if asked.whole[number]:
        served[number] = asked.rate[number] / max(fewest, math.ceil(asked.rate[number] / held - ROUNDING))
        return served
    edges = np.append(0.0, np.cumsum(asked.rate))
    until = min(edges[number] + held * fewest, edges[asked.end[number]])
    covered = np.minimum(edges[1:], until) - np.maximum(edges[:-1], edges[number])
    answer: FloatArray = np.maximum(covered, 0.0) / fewest
    return answer
