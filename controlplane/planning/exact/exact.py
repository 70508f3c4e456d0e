"""The cheapest plan of a small case, by integer programming over everything that a GPU may hold.

    min   sum_p price_p y_p           y_p: how many GPUs hold the content p
    s.t.  sum_(k serves w) x_k = 1    every workload w is served in one way k, perhaps with others
          sum_p a_kp y_p >= c_k x_k   each of a way's c_k servers stands somewhere
          sum_p y_p <= count          over the contents of one GPU type

Contents are enumerated by tables whose error is taken in their favour; the exact queue is asked about those
that a solution uses, and what it refuses is removed, until a solution stands. A content that fits with one
partition more is not needed: a solution may leave partitions out. The relaxation comes first: where it costs
as much as the plan to beat, that plan is proven best and no integer program is solved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.domain.plan import PlannedGpu
from controlplane.domain.workload import Workload
from controlplane.latency.protocol import BoolArray, FloatArray, IntArray
from controlplane.planning.capacity.gpu_types import GpuType
from controlplane.planning.capacity.lower_bound import attainable
from controlplane.planning.capacity.planned import planned_gpus
from controlplane.planning.exact.gpu_contents import Contents, Ways, contents_of
from controlplane.planning.exact.integer_program import IntegerProgram
from controlplane.planning.exact.queue_judge import QueueJudge

MOST_WORKLOADS = 12
MOST_CONTENTS = 25_000
"""Of one GPU type: a larger case is left to search and lower bound."""
_MOST_ROUNDS = 200
"""Programs solved, relaxed ones included."""
_USED = 1e-6
_SAME_COST = 1e-6


@dataclass(frozen=True, slots=True)
class Answer:
    """`gpus`: a plan cheaper than the one to beat, None where there is none or none was found in time.

    `bound`: no plan costs less. `proven`: the cheaper of the two plans costs just that.
    """

    gpus: tuple[PlannedGpu, ...] | None
    bound: float
    proven: bool


def solve(
    workloads: Sequence[Workload],
    gpu_types: Mapping[str, GpuType],
    to_beat: float,
    stop: Callable[[], bool],
) -> Answer | None:
    """A plan for all workloads that costs less than `to_beat`, or the proof that there is none.

    None for a case too large.
    """
    if len(workloads) > MOST_WORKLOADS:
        return None
    columns = _columns(Ways.of(workloads, gpu_types))
    if columns is None:
        return None
    program = IntegerProgram.of(columns.ways, columns.types, columns.type_, columns.way)
    bound = 0.0
    use: FloatArray | None = None
    whole = False
    for _ in range(_MOST_ROUNDS):
        if stop():
            break
        if whole:
            cost, use = program.solved(columns.needed)
            asked = None if use is None else np.flatnonzero(use[: columns.gone.size] > _USED)
        else:
            cost, asked = program.relaxed(columns.needed)
        bound = max(bound, attainable(cost, gpu_types) if math.isfinite(cost) else cost)
        if bound >= to_beat - _SAME_COST:
            return Answer(None, to_beat, True)
        if asked is None:
            break
        if columns.refuse(asked):
            continue
        if whole and use is not None:
            return Answer(_planned(columns, use), bound, True)
        whole = True
    return Answer(None, bound, False)


@dataclass(slots=True)
class _Columns:
    """All contents of all GPU types; `stands`: the shares are known to hold; `gone`: none do.

    `way` numbers all ways of all workloads, -1 where empty; `share` is the index of its share. Shapes
    (contents, slots); `type_`, `stands` and `gone` (contents,). `pairs` (pairs, 2): the first of each is the
    second without one of its partitions.
    """

    ways: Ways
    types: tuple[GpuType, ...]
    type_: IntArray
    way: IntArray
    share: IntArray
    stands: BoolArray
    gone: BoolArray
    pairs: IntArray
    judges: Sequence[QueueJudge]

    @property
    def needed(self) -> BoolArray:
        """Those that a solution may use: there, and with no larger one there: (contents,)."""
        needed = ~self.gone
        needed[self.pairs[~self.gone[self.pairs[:, 1]], 0]] = False
        return needed

    def refuse(self, used: IntArray) -> bool:
        """Ask the exact queue about these contents; whether one of them does not hold.

        What refuses one often refuses parts of it, and with a part everything is removed that holds it:
        without that, solutions that differ in trifles are refused one by one.
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
        for t, judge in enumerate(self.judges):
            asked = contents[(self.type_[contents] == t) & ~self.stands[contents] & ~self.gone[contents]]
            if asked.size:
                fits, settled = judge.settle(Contents(self.way[asked], self.share[asked]))
                self.share[asked], self.stands[asked], self.gone[asked] = settled.share, fits, ~fits
        refused: IntArray = contents[self.gone[contents]]
        return refused


def _columns(ways: Ways) -> _Columns | None:
    parts: list[Contents] = []
    for name in ways.tables:
        found = contents_of(ways, name, MOST_CONTENTS)
        if found is None:
            return None
        parts.append(found)
    width = max(p.item.shape[1] for p in parts)

    def joined(arrays: Sequence[IntArray]) -> IntArray:
        wide = [np.pad(a, ((0, 0), (0, width - a.shape[1])), constant_values=-1) for a in arrays]
        return np.concatenate(wide)

    way, share = joined([p.item for p in parts]), joined([p.share for p in parts])
    types = tuple(table.gpu_type for table in ways.tables.values())
    type_ = np.repeat(np.arange(len(parts)), [p.item.shape[0] for p in parts])
    items = [w.item for w in ways.ways]
    # Under half-SLO the tables are exact.
    judges = [QueueJudge(table, items) for table in ways.tables.values()] if types[0].quantile else []
    stands = np.full(way.shape[0], not judges)
    pairs = _pairs(type_, way)
    return _Columns(ways, types, type_, way, share, stands, np.zeros_like(stands), pairs, judges)


def _pairs(type_: IntArray, way: IntArray) -> IntArray:
    """Each content with those that lack one of its partitions, see `_Columns.pairs`."""
    keys = [(t, *(w for w in row if w >= 0)) for t, row in zip(type_.tolist(), way.tolist(), strict=True)]
    number = {key: p for p, key in enumerate(keys)}
    found = [
        (number[fewer], p)
        for p, key in enumerate(keys)
        for fewer in {key[:i] + key[i + 1 :] for i in range(1, len(key))}
        if fewer in number
    ]
    pairs: IntArray = np.array(found, dtype=np.int64).reshape(-1, 2)
    return pairs


def _planned(columns: _Columns, use: FloatArray) -> tuple[PlannedGpu, ...]:
    """A solution as GPUs, fullest first."""
    contents, ways = columns.gone.size, columns.ways.ways
    left = [round(x) * way.item.servers for x, way in zip(use[contents:].tolist(), ways, strict=True)]
    gpus: dict[str, list[list[tuple[int, int]]]] = {}
    for t, gpu_type in enumerate(columns.types):
        times = np.where(columns.type_ == t, np.rint(use[:contents]), 0.0).astype(np.int64)
        held = []
        for p in np.repeat(np.arange(contents), times).tolist():
            pairs = []
            for w, s in zip(columns.way[p].tolist(), columns.share[p].tolist(), strict=True):
                if w >= 0 and left[w]:
                    left[w] -= 1
                    pairs.append((-s, w))
            if pairs:
                held.append(sorted(pairs))
        percents = gpu_type.percents
        held.sort(key=lambda pairs: (-sum(float(percents[-s]) for s, _ in pairs), pairs))
        gpus[gpu_type.name] = [[(w, -s) for s, w in pairs] for pairs in held]
    return planned_gpus(gpus, [way.item for way in ways], columns.ways.tables)
