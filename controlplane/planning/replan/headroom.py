"""What the GPUs of a plan hold beyond the rates it was asked for. Values in, values out.

Capacity comes in steps, of a batch or a GPU. What a step holds beyond the rates costs nothing, and a plan
that is for it needs no change before it is used up.
"""

from __future__ import annotations

import math
from dataclasses import replace

from controlplane.domain.plan import Plan
from controlplane.planning.protocol import PlanRequest, Strategy
from controlplane.planning.replan.reuse import cost_of, reused
from controlplane.planning.replan.smallest_change import (
    Changed,
    Extent,
    holds,
    judged,
    moved_cost,
    smallest_change,
)

_MULTIPLES = (1.5, 1.2, 1.1, 1.05)
"""Tried when servers start anyway; each takes as long as a plan."""
_LARGEST = 2.0
_HALVINGS = 5


def with_headroom(
    strategy: Strategy,
    request: PlanRequest,
    changed: Changed,
    *,
    cheaper: bool = False,
    move_price: float = 1.0,
) -> tuple[Changed, float]:
    """The change for a common multiple of the rates, at no higher cost, and the multiple.

    Where servers start anyway, other shares are tried; of those, the plan that holds most for what it moves.
    Where none starts, what runs stays as it is.
    """
    previous = request.previous
    assert previous is not None
    options = [(changed, 1.0)]
    if changed.extent is Extent.SERVERS and moved_cost(previous, changed.plan) > 0.0:
        for multiple in _MULTIPLES:
            scaled = _scaled(request, multiple)
            more = smallest_change(strategy, scaled, cheaper=cheaper, move_price=move_price)
            if holds(more.plan) and cost_of(more.plan.gpus) <= cost_of(changed.plan.gpus):
                options.append((more, multiple))
    found = []
    for option, multiple in options:
        plan, further = _stretched(strategy, _scaled(request, multiple), option.plan)
        found.append((replace(option, plan=plan), multiple * further))
    return max(found, key=lambda one: _held_for_moves(previous, *one))


def _held_for_moves(before: Plan, changed: Changed, multiple: float) -> float:
    """How far the rates may grow until the next change, for each share that starts anew."""
    moved = moved_cost(before, changed.plan)
    return math.log(multiple) / moved if moved > 0.0 else math.inf


def _stretched(strategy: Strategy, request: PlanRequest, plan: Plan) -> tuple[Plan, float]:
    """The plan at the highest multiple that its servers hold as they are, to a thirtieth; the multiple."""
    low, best = 1.0, plan
    step = _LARGEST - low
    for _ in range(_HALVINGS):
        step /= 2.0
        scaled = _scaled(request, low + step)
        gpus = reused(plan, scaled)
        tried = None if gpus is None else judged(strategy, scaled, gpus)
        if tried is not None and tried.verified:
            low, best = low + step, tried
    return best, low


def _scaled(request: PlanRequest, multiple: float) -> PlanRequest:
    workloads = tuple(replace(w, rate_rps=multiple * w.rate_rps) for w in request.workloads)
    return replace(request, workloads=workloads)
