"""What the GPUs of a plan hold beyond the rates it was asked for. Values in, values out.

Capacity comes in steps, of a batch or a GPU. What a step holds beyond the rates costs nothing, and a plan
that is for it needs no change before it is used up.
"""

from __future__ import annotations

from dataclasses import replace

from controlplane.domain.plan import Plan
from controlplane.planners.evaluation.finalise import Draft, finalise
from controlplane.planners.protocol import PlanRequest, Strategy
from controlplane.planners.replan.reuse import cost_of, reused
from controlplane.planners.replan.smallest_change import Changed, Extent, moved_cost, smallest_change

_MULTIPLES = (1.5, 1.2, 1.1, 1.05)
"""Tried when servers start anyway; each takes as long as a plan."""
_LARGEST = 2.0
_HALVINGS = 5


def with_headroom(
    strategy: Strategy, request: PlanRequest, changed: Changed, *, cheaper: bool = False
) -> tuple[Changed, float]:
    """The change for a common multiple of the rates, at no higher cost, and the multiple.

    Where servers start anyway, other shares are tried; where none does, what runs stays as it is.
    """
    multiple = 1.0
    assert request.previous is not None
    if changed.extent is Extent.SERVERS and moved_cost(request.previous, changed.plan) > 0.0:
        for tried in _MULTIPLES:
            more = smallest_change(strategy, _scaled(request, tried), cheaper=cheaper)
            holds = more.plan.verified and not more.plan.infeasible
            if holds and cost_of(more.plan.gpus) <= cost_of(changed.plan.gpus):
                changed, multiple = more, tried
                break
    plan, further = _stretched(strategy, _scaled(request, multiple), changed.plan)
    return replace(changed, plan=plan), multiple * further


def _stretched(strategy: Strategy, request: PlanRequest, plan: Plan) -> tuple[Plan, float]:
    """The plan at the highest multiple that its servers hold as they are, to a thirtieth; the multiple."""
    low, best = 1.0, plan
    step = _LARGEST - low
    for _ in range(_HALVINGS):
        step /= 2.0
        tried = _same_servers(strategy, _scaled(request, low + step), plan)
        if tried is not None and tried.verified:
            low, best = low + step, tried
    return best, low


def _same_servers(strategy: Strategy, request: PlanRequest, plan: Plan) -> Plan | None:
    gpus = reused(plan, request)
    return None if gpus is None else finalise(strategy.name, request, Draft(gpus), request.clock.monotonic())


def _scaled(request: PlanRequest, multiple: float) -> PlanRequest:
    workloads = tuple(replace(w, rate_rps=multiple * w.rate_rps) for w in request.workloads)
    return replace(request, workloads=workloads)
