"""The integer program of `prove` as matrices: columns are patterns, then services."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from controlplane.latency.protocol import BoolArray, FloatArray, IntArray
from controlplane.planning.exact.patterns import Patterns, Services

_MOST_NODES = 5000
"""Of one integer program's tree."""
_NEAR, _AT_ONCE = 0.05, 40
"""Patterns that cost so little more than they are worth, of a GPU's price, are asked about early."""


@dataclass(frozen=True, slots=True)
class IntegerProgram:
    """Minimise `cost` x; x are GPUs of each pattern, then services in use.

    `stands` x >= 0: each server of a service in use stands somewhere; `serves` x = 1: each workload is served
    once; `limits` x <= `most`: over the patterns of each GPU type with a limited count.
    """

    cost: FloatArray
    stands: Any
    serves: Any
    limits: Any
    most: FloatArray

    @staticmethod
    def of(services: Services, patterns: Patterns, type_: IntArray) -> IntegerProgram:
        """Of patterns on the GPU types numbered `type_` (patterns,)."""
        from scipy.sparse import coo_array, csr_array, hstack

        types = [table.gpu_type for table in services.tables.values()]
        count, shape = len(services.services), (len(services.services), type_.size)
        pattern, slot = np.nonzero(patterns.service >= 0)
        holds = coo_array((np.ones(pattern.size), (patterns.service[pattern, slot], pattern)), shape=shape)
        servers = np.array([own.item.servers for own in services.services], dtype=np.float64)
        serves = [
            [float(own.owners >> w & 1) for own in services.services] for w in range(services.workloads)
        ]
        limited = {t: n for t, own in enumerate(types) if (n := own.device.pool.count) is not None}
        limits = np.array([type_ == t for t in limited], dtype=np.float64).reshape(len(limited), type_.size)
        return IntegerProgram(
            np.concatenate([np.array([own.price for own in types])[type_], np.zeros(count)]),
            hstack([holds.tocsr(), csr_array(np.diag(-servers))]).tocsr(),
            hstack([csr_array((len(serves), type_.size)), csr_array(serves)]).tocsr(),
            hstack([csr_array(limits), csr_array((len(limited), count))]).tocsr(),
            np.array([float(n) for n in limited.values()]),
        )

    def relaxed(self, allowed: BoolArray) -> tuple[float, IntArray | None]:
        """What no solution goes below, and the patterns that nearly pay for themselves there.

        `allowed` (patterns,) are those that may be used. Infinite and None where there is no solution.
        """
        from scipy.optimize import linprog
        from scipy.sparse import vstack

        bounds = self._bounds(allowed)
        found = linprog(
            self.cost,
            A_ub=vstack([-self.stands, self.limits]),
            b_ub=np.append(np.zeros(self.stands.shape[0]), self.most),
            A_eq=self.serves,
            b_eq=np.ones(self.serves.shape[0]),
            bounds=np.column_stack([np.zeros(bounds.size), bounds]),
        )
        if found.status != 0:
            return (math.inf if found.status == 2 else 0.0), None
        over = np.where(allowed, found.lower.marginals[: allowed.size], np.inf)
        # Those in use before others that are worth as much.
        order = np.lexsort((-found.x[: allowed.size], over))[:_AT_ONCE]
        return float(found.fun), order[over[order] <= _NEAR * self.cost[order]]

    def solved(self, allowed: BoolArray) -> tuple[float, FloatArray | None]:
        """The same of whole GPUs, and the best: GPUs that hold each pattern, then whether a service is used.

        Infinite and None where there is none, None too where the tree grew too large.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp

        found = milp(
            self.cost,
            integrality=np.ones(self.cost.size),
            bounds=Bounds(0.0, self._bounds(allowed)),
            constraints=[
                LinearConstraint(self.stands, 0.0, np.inf),
                LinearConstraint(self.serves, 1.0, 1.0),
                LinearConstraint(self.limits, -np.inf, self.most),
            ],
            options={"node_limit": _MOST_NODES, "mip_rel_gap": 0.0},
        )
        if found.status == 0:
            return float(found.fun), np.asarray(found.x)
        below = math.inf if found.status == 2 else found.mip_dual_bound
        return (0.0 if below is None else float(below)), None

    def _bounds(self, allowed: BoolArray) -> FloatArray:
        """The most of each variable: nothing of patterns that are not allowed."""
        services = np.full(self.cost.size - allowed.size, np.inf)
        return np.concatenate([np.where(allowed, np.inf, 0.0), services])
