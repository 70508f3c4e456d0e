"""What no plan can cost less than, however workloads share queues, pools and GPUs.

Give every request per second of a workload a price. If no GPU can hold partitions that together earn more
than the GPU costs, then no plan costs less than all workloads pay. The best prices are the dual of a linear
program over all contents of a GPU; its columns are made as they are needed, each the one that earns most at
the prices so far.

A partition earns at most what a run of workloads pays that begins at its strictest SLO and is as long as its
pool can carry, each workload once, divided by the servers of the pool (`serving.lower_bound`). Of up to three
partitions on a GPU `interference` says what they do to each other; of more, and where it says nothing, each
has the least harmful neighbours there are, and which stand together is a knapsack of shares.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.domain.workload import Workload
from controlplane.latency.protocol import FloatArray
from controlplane.planners.bounds.bound_problem import BoundProblem
from controlplane.planners.bounds.interference import LEVELS, MutualRates
from controlplane.planners.serving.gpu_types import GpuType
from controlplane.planners.serving.lower_bound import attainable

_MOST_ROUNDS = 200
"""Linear programs solved."""
_MANY_CLASSES, _MANY_ROUNDS = 100, 3000
"""Beyond so many classes, where most workloads have their own queues, programs grow large: only so many over
the classes are solved. The bound holds whenever one stops, and the first rounds raise it most."""
_MANY_FAMILIES = 1000
"""From so many on each family's own contents are left out: they would fill the memory."""
_MUTUAL = 3
"""Partitions of a GPU up to which each one's effect on the others is counted."""
_NEAR = 3e-4
"""Relative: prices this near to the best are good enough."""
_ROUNDING = 1e-6
"""Of a GPU: sums of prices are floats."""


def lower_bound(workloads: Sequence[Workload], gpu_types: Mapping[str, GpuType]) -> float:
    """A cost that no plan for these workloads goes below, if each of them fits some GPU."""
    if not workloads:
        return 0.0
    return attainable(_paid(BoundProblem.of(workloads, gpu_types), gpu_types), gpu_types)


@dataclass(frozen=True, slots=True)
class _Contents:
    """Contents of a GPU of a type: what they earn, and how much of each class they serve."""

    device: int
    earned: float
    served: FloatArray


def _paid(problem: BoundProblem, gpu_types: Mapping[str, GpuType]) -> float:
    """What all workloads pay at the best prices found."""
    from scipy.optimize import linprog

    rate, families = problem.rate, range(len(problem.families))
    most = np.array([p for a in families for p in problem.dearest(a)])
    looser = [row for a in families for row in problem.falling(a)]
    columns: list[_Contents] = []
    paid, best = most.copy(), 0.0
    rounds = _MOST_ROUNDS if rate.size <= _MANY_CLASSES else max(2, _MANY_ROUNDS // rate.size)
    for _ in range(rounds):
        contents = _best_contents(problem, paid / rate)
        # Lower all prices until no GPU earns more than it costs.
        over = max((_over(c.earned, problem.price[c.device]) for c in contents), default=1.0)
        best = max(best, float(paid.sum()) / max(over, 1.0))
        reached, possible = (attainable(x, gpu_types) for x in (best, float(paid.sum())))
        if over <= 1.0 + _NEAR or reached >= possible > 0.0:
            break
        columns += [c for c in contents if c.earned > problem.price[c.device]]
        rows = np.array([c.served / rate for c in columns] + [row / rate for row in looser])
        high = np.array([problem.price[c.device] for c in columns] + [0.0] * len(looser))
        found = linprog(-np.ones(rate.size), A_ub=rows, b_ub=high, bounds=np.column_stack([0.0 * most, most]))
        if found.status != 0:
            break
        paid = found.x
    return best


def _over(earned: float, price: float) -> float:
    """How many times its price a GPU earns; a free one may earn nothing."""
    if price > 0.0:
        return earned / price
    return math.inf if earned > _ROUNDING else 0.0


def _best_contents(problem: BoundProblem, price: FloatArray) -> list[_Contents]:
    """Those that earn most at `price` (classes,), of each GPU type; none where none earns what it costs."""
    found: list[_Contents] = []
    for d, mutual in enumerate(problem.mutual):
        if mutual is not None:
            found += _mutually_slowed(problem, d, mutual, price)
        found += _least_harmed(problem, d, price, 0 if mutual is None else _MUTUAL)
    return found


def _least_harmed(problem: BoundProblem, d: int, price: FloatArray, fewest: int) -> list[_Contents]:
    """The best contents of GPU type d for each number of neighbours from `fewest` on, the least harmful.

    Of all families together first; then of each alone, so that fewer rounds find the best prices.
    """
    from controlplane.planners.bounds.lower_bound_kernel import best_runs, fill

    found = []
    every = range(len(problem.families))
    each = [[a] for a in every] if len(every) <= _MANY_FAMILIES else []
    weight, steps = problem.weight[d], problem.steps[d]
    shape = max(f.rates[d].shape[2] for f in problem.families), weight.size
    worth = np.zeros((len(every), *shape))
    run = np.zeros((*worth.shape, 2), dtype=np.int64)
    for a, family in enumerate(problem.families):
        own = price[problem.first[a] : problem.first[a + 1]]
        best_runs(family.rates[d], problem.pools, family.edges, own, family.whole, worth[a], run[a])
    for neighbours, several in itertools.product(range(fewest, shape[0]), (every, *each)):
        more = neighbours == shape[0] - 1
        own_worth = worth[list(several), neighbours]
        earned, shares = fill(own_worth.max(axis=0), weight, steps, neighbours + 1, more)
        served = np.zeros(price.size)
        for s in shares.tolist():
            a = several[int(own_worth[:, s].argmax())]
            number, size = run[a, neighbours, s]
            rate = float(problem.families[a].rates[d][number, size, neighbours, s])
            served += problem.run(int(problem.first[a]) + int(number), int(size), rate)
        found.append(_Contents(d, earned, served))
    return found


def _mutually_slowed(
    problem: BoundProblem, d: int, mutual: MutualRates, price: FloatArray
) -> list[_Contents]:
    """Contents of GPU type d of up to `_MUTUAL` partitions that earn more than it costs."""
    from controlplane.planners.bounds.interference_kernel import best_contents

    rate, effects = problem.rate, mutual.effects
    paid, edges = (np.append(0.0, np.cumsum(part)) for part in (price * rate, rate))
    prices = edges, paid, price, problem.end, problem.whole
    shape = (len(effects.models), *mutual.rate.shape[:3])
    run = np.zeros((*shape, 2), dtype=np.int64)
    sale = mutual.rate, *prices, problem.pools, mutual.span
    gpu = problem.weight[d], problem.steps[d], problem.price[d]
    tables = sale, np.full(shape, -1.0), run, LEVELS
    earned, parts = best_contents(tables, effects.effect, effects.least, *gpu)
    found = []
    for at in np.argwhere(earned > 0.0):
        served = np.zeros(rate.size)
        for m, g, level, s in parts[*at].tolist():
            if m >= 0:
                number, size = run[m, g, level, s]
                served += problem.run(int(number), int(size), float(mutual.rate[g, level, s, number, size]))
        found.append(_Contents(d, float(earned[*at]), served))
    return found
