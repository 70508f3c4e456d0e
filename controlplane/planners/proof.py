"""How far a draft is from the best possible: its lower bound, and in small cases the best plan itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from controlplane.domain.plan import PlannedGpu
from controlplane.domain.workload import Workload
from controlplane.planners import exact
from controlplane.planners.board import Board, loads
from controlplane.planners.bound import lower_bound, prices
from controlplane.planners.finish import Draft
from controlplane.planners.kinds import kinds_of
from controlplane.planners.menu import Alone
from controlplane.planners.protocol import PlanRequest
from controlplane.planners.standby import held

OPTIMAL = "optimal"
"""`Totals.stopped_by` of a plan that is proven to be the cheapest."""
SAME_COST = 1e-6


def proven(
    draft: Draft, workloads: Sequence[Workload], request: PlanRequest, alone: Mapping[str, Alone],
    quantile: float | None, stop: Callable[[], bool],
) -> Draft:  # fmt: skip
    """The draft with its bound, or a better one."""
    lost = {i.workload for i in draft.infeasible}
    price = prices(request.devices)
    missing = False
    if lost:
        kinds = kinds_of([(w,) for w in workloads], request.devices, alone, request.rule, quantile)
        possible = [w for w, ways in zip(workloads, kinds, strict=True) if ways]
        missing = any(w.name in lost for w in possible)
    if missing:
        # Perhaps they fit after all, placed otherwise.
        found = exact.solve(possible, request, alone, quantile, math.inf, stop)
        if found is not None and found.gpus is not None and _holds(found.gpus, request, quantile):
            names = {w.name for w in possible}
            refused = tuple(i for i in draft.infeasible if i.workload not in names)
            better = replace(draft, gpus=found.gpus, infeasible=refused)
            return _bounded(better, found.bound, found.proven, request)
    cost = sum(price[g.type] for g in draft.gpus)
    placed = [w for w in workloads if w.name not in lost]
    floor = lower_bound(placed, request.devices, alone, request.rule, quantile)
    if floor >= cost - SAME_COST:
        return _bounded(draft, floor, not missing, request)
    answer = exact.solve(placed, request, alone, quantile, cost, stop)
    if answer is None:
        return _bounded(draft, floor, False, request)
    optimal = answer.proven and not missing
    if answer.gpus is not None:
        if _holds(answer.gpus, request, quantile):
            draft = replace(draft, gpus=answer.gpus)
        else:
            optimal = False
    if not answer.proven and stop():
        draft = replace(draft, stopped_by="budget")
    return _bounded(draft, max(floor, answer.bound), optimal, request)


def _holds(gpus: Sequence[PlannedGpu], request: PlanRequest, quantile: float | None) -> bool:
    """Whether all promises are kept, pools judged as a whole: by the slowest of their servers."""
    devices = request.devices
    boards = {
        name: Board.of([g for g in gpus if g.type == name], devices[name])
        for name in dict.fromkeys(g.type for g in gpus)
    }
    found = loads(boards, devices, request.rule, quantile)
    return all(bool(held(board, found[name], request.rule).all()) for name, board in boards.items())


def _bounded(draft: Draft, bound: float, optimal: bool, request: PlanRequest) -> Draft:
    told = {d.pool.price_per_hour for d in request.devices.values()}
    one = next(iter(told)) if len(request.devices) == 1 else None
    gpus = None if one is None else round(bound / (one or 1.0))
    return replace(
        draft,
        stopped_by=OPTIMAL if optimal else draft.stopped_by,
        bound_cost_per_hour=bound if any(told) else 0.0,
        bound_gpus=gpus,
    )
