"""The cheapest plan of a small case, by integer programming over everything a GPU may hold.

    min   sum_p price_p y_p          y_p: how many GPUs hold the content p
    s.t.  sum_k x_k = 1              over the ways k to serve a workload
          sum_p a_kp y_p = c_k x_k   each of a way's c_k servers stands somewhere
          sum_p y_p <= count         over the contents of one GPU type

Contents are enumerated by tables whose error is taken in their favour; those that a solution uses are put to
the exact queue, and what it refuses leaves, until a solution stands. The relaxation comes first: where it
costs as much as the plan to beat, that plan is proven best and no integer program is solved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from controlplane.domain.plan import PlannedGpu
from controlplane.latency.protocol import FloatArray, IntArray
from controlplane.planners.bound import prices
from controlplane.planners.contents import MOST_WORKLOADS, Contents, Judge, Options, contents_of
from controlplane.planners.finish import gpu_of, partition_of
from controlplane.planners.protocol import PlanRequest

MOST_CONTENTS = 4000
"""Of one GPU type; a case with more is too large."""
MOST_ROUNDS = 200
"""Programs solved, relaxed ones included."""
MOST_NODES = 5000
"""Of one integer program's tree."""
USED = 1e-6
SAME_COST = 1e-6


@dataclass(frozen=True, slots=True)
class Answer:
    """`gpus`: a plan cheaper than the one to beat, None where there is none or none was found in time.

    `bound`: no plan costs less. `proven`: the cheaper of the two plans costs just that.
    """

    gpus: tuple[PlannedGpu, ...] | None
    bound: float
    proven: bool


def solve(options: Options, request: PlanRequest, to_beat: float, stop: Callable[[], bool]) -> Answer | None:
    """The cheapest plan for all workloads of `options`; None for a case that is too large.

    `to_beat` is the cost, by `bound.prices`, of a plan for the same workloads, infinite for none.
    """
    if options.workloads > MOST_WORKLOADS:
        return None
    columns = _columns(options)
    if columns is None:
        return None
    program = _Program(columns, request)
    integer = False
    bound = 0.0
    for _ in range(MOST_ROUNDS):
        if stop():
            break
        cost, use = program.solve(integer)
        bound = max(bound, program.attainable(cost))
        if bound >= to_beat - SAME_COST:
            return Answer(None, to_beat, True)
        if use is None:
            break
        if columns.refuse(np.flatnonzero(use > USED)):
            continue
        if integer:
            return Answer(_planned(columns, use, request), bound, True)
        integer = True
    return Answer(None, bound, False)


@dataclass(slots=True)
class _Columns:
    """All contents of all GPU types; `stands` is True where the shares are known to hold.

    `way` numbers all ways of all workloads, -1 where empty; `share` is the index of its share. Shapes
    (contents, slots); `device` and `stands` (contents,).
    """

    options: Options
    devices: tuple[str, ...]
    device: IntArray
    way: IntArray
    share: IntArray
    stands: list[bool]
    gone: list[bool]
    judges: Mapping[str, Judge]

    def refuse(self, used: IntArray) -> bool:
        """Ask the exact queue about these contents; whether one of them does not hold."""
        found = False
        for d, name in enumerate(self.devices):
            asked = np.array([p for p in used.tolist() if self.device[p] == d and not self.stands[p]])
            if not asked.size:
                continue
            fits, settled = self.judges[name].settle(Contents(self.way[asked], self.share[asked]))
            self.share[asked] = settled.share
            for p, ok in zip(asked.tolist(), fits.tolist(), strict=True):
                self.stands[p], self.gone[p] = ok, not ok
                found |= not ok
        return found


def _columns(options: Options) -> _Columns | None:
    parts: list[Contents] = []
    for name in options.menus:
        found = contents_of(options, name, MOST_CONTENTS)
        if found is None:
            return None
        parts.append(found)
    width = max(p.item.shape[1] for p in parts)
    wide = [np.pad(p.item, ((0, 0), (0, width - p.item.shape[1])), constant_values=-1) for p in parts]
    shares = [np.pad(p.share, ((0, 0), (0, width - p.share.shape[1])), constant_values=-1) for p in parts]
    way, quantile = np.concatenate(wide), options.quantile
    items = [w.item for w in options.ways]
    judges = {} if quantile is None else {n: Judge(m, items, quantile) for n, m in options.menus.items()}
    return _Columns(
        options, tuple(options.menus), np.repeat(np.arange(len(parts)), [p.item.shape[0] for p in parts]),
        way, np.concatenate(shares), [quantile is None] * way.shape[0], [False] * way.shape[0], judges,
    )  # fmt: skip


class _Program:
    """The matrices of the module's program: columns are contents, then ways."""

    def __init__(self, columns: _Columns, request: PlanRequest) -> None:
        from scipy.sparse import coo_array

        self.columns = columns
        options = columns.options
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
        rows = [
            columns.way[at, slot],
            each,
            ways + np.array([way.owner for way in options.ways], dtype=np.int64),
        ]
        rows += [np.full(np.count_nonzero(columns.device == d), first + i) for i, d in enumerate(limited)]
        where = [at, contents + each, contents + each, few]
        servers = np.array([way.item.servers for way in options.ways], dtype=np.float64)
        values = [np.ones(at.size), -servers, np.ones(ways), np.ones(few.size)]
        shape = (first + len(limited), contents + ways)
        place = (np.concatenate(rows).astype(np.int64), np.concatenate(where))
        self.matrix = coo_array((np.concatenate(values), place), shape=shape).tocsr()
        equal = np.concatenate([np.zeros(ways), np.ones(options.workloads)])
        self.low = np.concatenate([equal, np.full(len(limited), -np.inf)])
        self.high = np.concatenate([equal, [float(counts[d] or 0) for d in limited]])

    def solve(self, integer: bool) -> tuple[float, FloatArray | None]:
        """What no solution goes below, and how many GPUs hold each content in the best.

        Infinite and None where there is none, None too where the tree grew too large.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp

        contents = self.columns.way.shape[0]
        upper = np.full(self.cost.size, np.inf)
        upper[:contents][self.columns.gone] = 0.0
        found = milp(
            self.cost,
            integrality=np.full(self.cost.size, int(integer)),
            bounds=Bounds(0.0, upper),
            constraints=LinearConstraint(self.matrix, self.low, self.high),
            options={"node_limit": MOST_NODES, "mip_rel_gap": 0.0},
        )
        if found.status == 0:
            return float(found.fun), np.asarray(found.x[:contents])
        below = math.inf if found.status == 2 else found.mip_dual_bound
        return (0.0 if below is None else float(below)), None

    def attainable(self, cost: float) -> float:
        """The least that a plan which costs at least this can cost."""
        if not self.step or not math.isfinite(cost):
            return cost
        return math.ceil(cost / self.step - SAME_COST) * self.step


def _planned(columns: _Columns, use: FloatArray, request: PlanRequest) -> tuple[PlannedGpu, ...]:
    """The contents of a solution as GPUs, fullest first."""
    number: dict[int, int] = {}
    gpus: list[PlannedGpu] = []
    for d, name in enumerate(columns.devices):
        menu, device = columns.options.menus[name], request.devices[name]
        times = np.where(columns.device == d, np.rint(use), 0.0).astype(np.int64)
        chosen = np.repeat(np.arange(use.size), times)
        held = [
            sorted((-s, w) for w, s in zip(ways, shares, strict=True) if w >= 0)
            for ways, shares in zip(columns.way[chosen].tolist(), columns.share[chosen].tolist(), strict=True)
        ]
        held.sort(key=lambda pairs: (-sum(float(menu.percents[-s]) for s, _ in pairs), pairs))
        for n, pairs in enumerate(held):
            partitions = []
            for s, w in pairs:
                item = columns.options.ways[w].item
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
