"""The cheapest plan of a small case, by integer programming over everything a GPU may hold.

    min   sum_p price_p y_p           y_p: how many GPUs hold the content p
    s.t.  sum_(k serves w) x_k = 1    every workload w is served in one way k, perhaps with others
          sum_p a_kp y_p >= c_k x_k   each of a way's c_k servers stands somewhere
          sum_p y_p <= count          over the contents of one GPU type

Contents are enumerated by tables whose error is taken in their favour; those that a solution uses are put to
the exact queue, and what it refuses leaves, until a solution stands. What fits with one partition more is not
needed: whoever is too much is left away. The relaxation comes first: where it costs as much as the plan to
beat, that plan is proven best and no integer program is solved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.domain.plan import Plan, PlannedGpu
from controlplane.domain.workload import Workload
from controlplane.latency.protocol import BoolArray, FloatArray, IntArray
from controlplane.planners.bound import prices
from controlplane.planners.contents import Contents, Judge, Options, contents_of
from controlplane.planners.finish import gpu_of, partition_of
from controlplane.planners.menu import Alone
from controlplane.planners.protocol import PlanRequest

MOST_WORKLOADS, MOST_CONTENTS = 6, 4000
"""Of a case, and of one GPU type in it: a larger one is left to search and lower bound."""
PATIENT_ITERATIONS = 100
"""Who asks the search for so many has the time for cases of `PATIENT_WORKLOADS` and `PATIENT_CONTENTS`."""
PATIENT_WORKLOADS, PATIENT_CONTENTS = 12, 25_000
MOST_ROUNDS = 200
"""Programs solved, relaxed ones included."""
MOST_NODES = 5000
"""Of one integer program's tree."""
USED = 1e-6
NEAR, AT_ONCE = 0.05, 40
"""Contents that cost so little more than they are worth, of a GPU's price, are asked about early."""
SAME_COST = 1e-6


@dataclass(frozen=True, slots=True)
class Answer:
    """`gpus`: a plan cheaper than the one to beat, None where there is none or none was found in time.

    `bound`: no plan costs less. `proven`: the cheaper of the two plans costs just that.
    """

    gpus: tuple[PlannedGpu, ...] | None
    bound: float
    proven: bool


def may_cost_less(plan: Plan, iterations: int | None) -> bool:
    """Whether `PATIENT_ITERATIONS` would have a plan of `joint` settled that these did not."""
    totals = plan.totals
    if plan.strategy != "joint" or totals is None or (iterations or 0) >= PATIENT_ITERATIONS:
        return False
    count = len({w.name for _, _, w in plan.placements()})
    least = totals.lower_bound_cost_per_hour
    return (
        MOST_WORKLOADS < count <= PATIENT_WORKLOADS
        and least is not None
        and totals.cost_per_hour > least * (1.0 + SAME_COST)
    )


def solve(
    workloads: Sequence[Workload], request: PlanRequest, alone: Mapping[str, Alone], quantile: float | None,
    to_beat: float, stop: Callable[[], bool],
) -> Answer | None:  # fmt: skip
    """The cheapest plan for all these workloads; None for a case that is too large.

    `to_beat` is the cost, by `bound.prices`, of a plan for the same workloads, infinite for none.
    """
    patient = (request.iterations or 0) >= PATIENT_ITERATIONS
    if len(workloads) > (PATIENT_WORKLOADS if patient else MOST_WORKLOADS):
        return None
    options = Options.of(workloads, request, alone, quantile)
    columns = _columns(options, PATIENT_CONTENTS if patient else MOST_CONTENTS)
    if columns is None:
        return None
    program = _Program(columns, request)
    bound = 0.0
    use: FloatArray | None = None
    whole = False
    for _ in range(MOST_ROUNDS):
        if stop():
            break
        if whole:
            cost, use = program.solved()
            asked = None if use is None else np.flatnonzero(use[: columns.gone.size] > USED)
        else:
            cost, asked = program.relaxed()
        bound = max(bound, program.attainable(cost))
        if bound >= to_beat - SAME_COST:
            return Answer(None, to_beat, True)
        if asked is None:
            break
        if columns.refuse(asked):
            continue
        if whole and use is not None:
            return Answer(_planned(columns, use, request), bound, True)
        whole = True
    return Answer(None, bound, False)


@dataclass(slots=True)
class _Columns:
    """All contents of all GPU types; `stands`: the shares are known to hold; `gone`: none do.

    `way` numbers all ways of all workloads, -1 where empty; `share` is the index of its share. Shapes
    (contents, slots); `device`, `stands` and `gone` (contents,). `pairs` (pairs, 2): the first of each is the
    second without one of its partitions.
    """

    options: Options
    devices: tuple[str, ...]
    device: IntArray
    way: IntArray
    share: IntArray
    stands: BoolArray
    gone: BoolArray
    pairs: IntArray
    judges: Mapping[str, Judge]

    @property
    def needed(self) -> BoolArray:
        """Those that a solution may use: there, and with no larger one there: (contents,)."""
        needed = ~self.gone
        needed[self.pairs[~self.gone[self.pairs[:, 1]], 0]] = False
        return needed

    def refuse(self, used: IntArray) -> bool:
        """Ask the exact queue about these contents; whether one of them does not hold.

        What refuses one often refuses parts of it, and with a part leaves all that holds it.
        """
        refused = self._ask(used)
        found = bool(refused.size)
        while refused.size:
            refused = self._ask(np.unique(self.pairs[np.isin(self.pairs[:, 1], refused), 0]))
        while found:
            held = np.unique(self.pairs[self.gone[self.pairs[:, 0]], 1])
            if self.gone[held].all():
                break
            self.gone[held] = True
        return found

    def _ask(self, contents: IntArray) -> IntArray:
        """Those of these that do not hold, of those not asked about before."""
        for d, name in enumerate(self.devices):
            asked = contents[(self.device[contents] == d) & ~self.stands[contents] & ~self.gone[contents]]
            if asked.size:
                fits, settled = self.judges[name].settle(Contents(self.way[asked], self.share[asked]))
                self.share[asked], self.stands[asked], self.gone[asked] = settled.share, fits, ~fits
        refused: IntArray = contents[self.gone[contents]]
        return refused


def _columns(options: Options, most: int) -> _Columns | None:
    parts: list[Contents] = []
    for name in options.menus:
        found = contents_of(options, name, most)
        if found is None:
            return None
        parts.append(found)
    width = max(p.item.shape[1] for p in parts)
    wide = [np.pad(p.item, ((0, 0), (0, width - p.item.shape[1])), constant_values=-1) for p in parts]
    shares = [np.pad(p.share, ((0, 0), (0, width - p.share.shape[1])), constant_values=-1) for p in parts]
    way, quantile = np.concatenate(wide), options.quantile
    items = [w.item for w in options.ways]
    judges = {} if quantile is None else {n: Judge(m, items, quantile) for n, m in options.menus.items()}
    device = np.repeat(np.arange(len(parts)), [p.item.shape[0] for p in parts])
    told = np.full(way.shape[0], quantile is None)
    return _Columns(
        options, tuple(options.menus), device, way, np.concatenate(shares), told, np.zeros_like(told),
        _pairs(device, way), judges,
    )  # fmt: skip


def _pairs(device: IntArray, way: IntArray) -> IntArray:
    """Each content with those that lack one of its partitions, see `_Columns.pairs`."""
    keys = [(d, *(w for w in row if w >= 0)) for d, row in zip(device.tolist(), way.tolist(), strict=True)]
    number = {key: p for p, key in enumerate(keys)}
    told = [
        (number[fewer], p)
        for p, key in enumerate(keys)
        for fewer in {key[:i] + key[i + 1 :] for i in range(1, len(key))}
        if fewer in number
    ]
    pairs: IntArray = np.array(told, dtype=np.int64).reshape(-1, 2)
    return pairs


class _Program:
    """The matrices of the module's program: columns are contents, then ways."""

    def __init__(self, columns: _Columns, request: PlanRequest) -> None:
        from scipy.sparse import coo_array

        self.columns = columns
        options = columns.options
        self.ways, self.workloads = len(options.ways), options.workloads
        contents, ways = columns.way.shape[0], len(options.ways)
        told = prices(request.devices)
        price = np.array([told[n] for n in columns.devices])
        self.cost = np.concatenate([price[columns.device], np.zeros(ways)])
        # Prices that are all one and the same: costs are its multiples.
        self.step = float(price[0]) if np.all(price == price[0]) else 0.0
        at, slot = np.nonzero(columns.way >= 0)
        each = np.arange(ways)
        counts = [request.devices[n].pool.count for n in columns.devices]
        limited = [d for d, count in enumerate(counts) if count is not None]
        few = np.concatenate([[], *(np.flatnonzero(columns.device == d) for d in limited)]).astype(np.int64)
        first = ways + options.workloads
        serves = np.array(
            [
                (k, w)
                for k, way in enumerate(options.ways)
                for w in range(options.workloads)
                if way.owners >> w & 1
            ]
        )
        rows = [columns.way[at, slot], each, ways + serves[:, 1]]
        rows += [np.full(np.count_nonzero(columns.device == d), first + i) for i, d in enumerate(limited)]
        where = [at, contents + each, contents + serves[:, 0], few]
        servers = np.array([way.item.servers for way in options.ways], dtype=np.float64)
        values = [np.ones(at.size), -servers, np.ones(len(serves)), np.ones(few.size)]
        shape = (first + len(limited), contents + ways)
        place = (np.concatenate(rows).astype(np.int64), np.concatenate(where))
        self.matrix = coo_array((np.concatenate(values), place), shape=shape).tocsr()
        once, enough = np.ones(options.workloads), np.zeros(ways)
        self.low = np.concatenate([enough, once, np.full(len(limited), -np.inf)])
        self.high = np.concatenate([enough + np.inf, once, [float(counts[d] or 0) for d in limited]])

    def relaxed(self) -> tuple[float, IntArray | None]:
        """What no solution goes below, and the contents that nearly pay for themselves there.

        Infinite and None where there is no solution.
        """
        from scipy.optimize import linprog
        from scipy.sparse import vstack

        ways, last = self.ways, self.ways + self.workloads
        found = linprog(
            self.cost, A_ub=vstack([-self.matrix[:ways], self.matrix[last:]]),
            b_ub=np.append(np.zeros(ways), self.high[last:]), A_eq=self.matrix[ways:last],
            b_eq=np.ones(self.workloads), bounds=np.column_stack([np.zeros(self.cost.size), self._most()]),
        )  # fmt: skip
        if found.status != 0:
            return (math.inf if found.status == 2 else 0.0), None
        over = np.where(self.columns.needed, found.lower.marginals[:-ways], np.inf)
        # Those in use before others that are worth as much.
        order = np.lexsort((-found.x[:-ways], over))[:AT_ONCE]
        return float(found.fun), order[over[order] <= NEAR * self.cost[order]]

    def solved(self) -> tuple[float, FloatArray | None]:
        """The same of whole GPUs, and the best: GPUs that hold each content, then whether a way is used.

        Infinite and None where there is none, None too where the tree grew too large.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp

        found = milp(
            self.cost,
            integrality=np.ones(self.cost.size),
            bounds=Bounds(0.0, self._most()),
            constraints=LinearConstraint(self.matrix, self.low, self.high),
            options={"node_limit": MOST_NODES, "mip_rel_gap": 0.0},
        )
        if found.status == 0:
            return float(found.fun), np.asarray(found.x)
        below = math.inf if found.status == 2 else found.mip_dual_bound
        return (0.0 if below is None else float(below)), None

    def _most(self) -> FloatArray:
        """Of each variable: nothing of contents that are not needed."""
        return np.concatenate([np.where(self.columns.needed, np.inf, 0.0), np.full(self.ways, np.inf)])

    def attainable(self, cost: float) -> float:
        """The least that a plan which costs at least this can cost."""
        if not self.step or not math.isfinite(cost):
            return cost
        return math.ceil(cost / self.step - SAME_COST) * self.step


def _planned(columns: _Columns, use: FloatArray, request: PlanRequest) -> tuple[PlannedGpu, ...]:
    """A solution as GPUs, fullest first."""
    contents, ways = columns.gone.size, columns.options.ways
    left = [round(x) * way.item.servers for x, way in zip(use[contents:].tolist(), ways, strict=True)]
    number: dict[int, int] = {}
    gpus: list[PlannedGpu] = []
    for d, name in enumerate(columns.devices):
        menu, device = columns.options.menus[name], request.devices[name]
        times = np.where(columns.device == d, np.rint(use[:contents]), 0.0).astype(np.int64)
        held = []
        for p in np.repeat(np.arange(contents), times).tolist():
            pairs = []
            for w, s in zip(columns.way[p].tolist(), columns.share[p].tolist(), strict=True):
                if w >= 0 and left[w]:
                    left[w] -= 1
                    pairs.append((-s, w))
            if pairs:
                held.append(sorted(pairs))
        held.sort(key=lambda pairs: (-sum(float(menu.percents[-s]) for s, _ in pairs), pairs))
        for n, pairs in enumerate(held):
            partitions = []
            for s, w in pairs:
                item = ways[w].item
                number[w] = number.get(w, 0) + 1
                partitions.append(
                    partition_of(
                        item.name + (f"-{number[w]}" if item.servers > 1 else ""), item.workloads,
                        float(menu.percents[-s]), int(menu.batch[w, -s]), item.memory_mb(device),
                        1.0 / item.servers,
                    )
                )  # fmt: skip
            gpus.append(gpu_of(n, device, partitions))
    return tuple(gpus)
