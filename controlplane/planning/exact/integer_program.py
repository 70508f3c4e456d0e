"""The program of `exact` as matrices: columns are contents, then ways."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from controlplane.latency.protocol import BoolArray, FloatArray, IntArray
from controlplane.planning.capacity.gpu_types import GpuType
from controlplane.planning.exact.gpu_contents import Ways

_MOST_NODES = 5000
"""Of one integer program's tree."""
_NEAR, _AT_ONCE = 0.05, 40
"""Contents that cost so little more than they are worth, of a GPU's price, are asked about early."""


@dataclass(frozen=True, slots=True)
class IntegerProgram:
    """Minimise `cost` with `low` <= `matrix` x <= `high`; x are GPUs of each content, then ways in use.

    Rows are the `ways` (each of its servers stands somewhere), then the `workloads` (each is served once),
    then the GPU types with a limited count.
    """

    cost: FloatArray
    matrix: Any
    low: FloatArray
    high: FloatArray
    ways: int
    workloads: int

    @staticmethod
    def of(ways: Ways, types: Sequence[GpuType], type_: IntArray, way: IntArray) -> IntegerProgram:
        """Of contents, `type_` (contents,) and `way` (contents, slots); see `exact`."""
        from scipy.sparse import coo_array

        contents, count, workloads = way.shape[0], len(ways.ways), ways.workloads
        price = np.array([t.price for t in types])
        at, slot = np.nonzero(way >= 0)
        serves = np.array(
            [(k, w) for k, own in enumerate(ways.ways) for w in range(workloads) if own.owners >> w & 1]
        )
        limits = {t: n for t, g in enumerate(types) if (n := g.device.pool.count) is not None}
        of_limited = [np.flatnonzero(type_ == t) for t in limits]
        limited = np.concatenate([[], *of_limited]).astype(np.int64)
        limit_row = np.repeat(count + workloads + np.arange(len(limits)), [own.size for own in of_limited])
        rows = [way[at, slot], np.arange(count), count + serves[:, 1], limit_row]
        columns = [at, contents + np.arange(count), contents + serves[:, 0], limited]
        servers = np.array([own.item.servers for own in ways.ways], dtype=np.float64)
        values = [np.ones(at.size), -servers, np.ones(len(serves)), np.ones(limited.size)]
        shape = (count + workloads + len(limits), contents + count)
        place = np.concatenate(rows).astype(np.int64), np.concatenate(columns)
        once, enough = np.ones(workloads), np.zeros(count)
        most = np.array([float(n) for n in limits.values()])
        return IntegerProgram(
            np.concatenate([price[type_], np.zeros(count)]),
            coo_array((np.concatenate(values), place), shape=shape).tocsr(),
            np.concatenate([enough, once, np.full(len(limits), -np.inf)]),
            np.concatenate([enough + np.inf, once, most]),
            count,
            workloads,
        )

    def relaxed(self, needed: BoolArray) -> tuple[float, IntArray | None]:
        """What no solution goes below, and the contents that nearly pay for themselves there.

        `needed` (contents,) are those that may be used. Infinite and None where there is no solution.
        """
        from scipy.optimize import linprog
        from scipy.sparse import vstack

        ways, last = self.ways, self.ways + self.workloads
        most = self._most(needed)
        found = linprog(
            self.cost,
            A_ub=vstack([-self.matrix[:ways], self.matrix[last:]]),
            b_ub=np.append(np.zeros(ways), self.high[last:]),
            A_eq=self.matrix[ways:last],
            b_eq=np.ones(self.workloads),
            bounds=np.column_stack([np.zeros(most.size), most]),
        )
        if found.status != 0:
            return (math.inf if found.status == 2 else 0.0), None
        over = np.where(needed, found.lower.marginals[:-ways], np.inf)
        # Those in use before others that are worth as much.
        order = np.lexsort((-found.x[:-ways], over))[:_AT_ONCE]
        return float(found.fun), order[over[order] <= _NEAR * self.cost[order]]

    def solved(self, needed: BoolArray) -> tuple[float, FloatArray | None]:
        """The same of whole GPUs, and the best: GPUs that hold each content, then whether a way is used.

        Infinite and None where there is none, None too where the tree grew too large.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp

        found = milp(
            self.cost,
            integrality=np.ones(self.cost.size),
            bounds=Bounds(0.0, self._most(needed)),
            constraints=LinearConstraint(self.matrix, self.low, self.high),
            options={"node_limit": _MOST_NODES, "mip_rel_gap": 0.0},
        )
        if found.status == 0:
            return float(found.fun), np.asarray(found.x)
        below = math.inf if found.status == 2 else found.mip_dual_bound
        return (0.0 if below is None else float(below)), None

    def _most(self, needed: BoolArray) -> FloatArray:
        """Of each variable: nothing of contents that are not needed."""
        return np.concatenate([np.where(needed, np.inf, 0.0), np.full(self.ways, np.inf)])
