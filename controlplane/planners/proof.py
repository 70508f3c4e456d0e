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
from controlplane.planners.contents import Options
from controlplane.planners.finish import Draft
from controlplane.planners.grouping import families
from controlplane.planners.kinds import Kind
from controlplane.planners.menu import Alone
from controlplane.planners.protocol import PlanRequest
from controlplane.planners.standby import held

OPTIMAL = "optimal"
"""`Totals.stopped_by` of a plan that is proven to be the cheapest."""
SAME_COST = 1e-6
WIDE_WORKLOADS = 4
"""So few are offered pools that do not look worthwhile, too."""


def proven(
    draft: Draft, workloads: Sequence[Workload], kinds: Sequence[Sequence[Kind]], request: PlanRequest,
    alone: Mapping[str, Alone], quantile: float | None, stop: Callable[[], bool],
) -> Draft:  # fmt: skip
    """The draft with its bound, or a better one; `kinds` are the ways to serve each of `workloads`."""
    lost = {i.workload for i in draft.infeasible}
    price = prices(request.devices)
    possible = [(w, ways) for w, ways in zip(workloads, kinds, strict=True) if ways]

    def options(chosen: Sequence[tuple[Workload, Sequence[Kind]]], wide: bool) -> Options:
        return Options.of(
            [w for w, _ in chosen], [k for _, k in chosen], request, alone, quantile, wide
        )  # fmt: skip

    missing = any(w.name in lost for w, _ in possible)
    if missing:
        # Perhaps they fit after all, placed otherwise.
        found = exact.solve(options(possible, False), request, math.inf, stop)
        if found is not None and found.gpus is not None and _holds(found.gpus, request, quantile):
            names = {w.name for w, _ in possible}
            refused = tuple(i for i in draft.infeasible if i.workload not in names)
            return _bounded(replace(draft, gpus=found.gpus, infeasible=refused), found.bound, True, request)
    placed = [(w, ways) for w, ways in possible if w.name not in lost]
    few = len(placed) <= WIDE_WORKLOADS
    cost = sum(price[g.type] for g in draft.gpus)
    bound = lower_bound([w for w, _ in placed], request.devices, alone, request.rule, quantile)
    if bound >= cost - SAME_COST:
        return _bounded(draft, bound, not missing, request)
    answer = exact.solve(options(placed, few), request, cost, stop)
    if answer is None and few:
        answer = exact.solve(options(placed, False), request, cost, stop)
    if answer is None:
        return _bounded(draft, bound, False, request)
    # The program serves every workload by itself: where some may meet, others may be cheaper.
    apart = all(len(f) == 1 for f in families([w for w, _ in placed], request.rule))
    optimal = answer.proven and not missing and apart
    if answer.gpus is not None:
        if _holds(answer.gpus, request, quantile):
            draft = replace(draft, gpus=answer.gpus)
        else:
            optimal = False
    if not answer.proven and stop():
        draft = replace(draft, stopped_by="budget")
    return _bounded(draft, max(bound, answer.bound) if apart else bound, optimal, request)


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
