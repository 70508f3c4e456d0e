"""What the spec demands of shadows: what they cover, at more GPUs where nothing less does; which are hot.

A model that is f times slower at a rate within an SLO waits as it does at f times the rate within an f-th of
the SLO. A workload that is planned with those has a share that covers f by itself. How much of a demand the
free part of its GPU covers is seen in a whole plan only: what is short there is planned for so much slower,
and all is planned again. Demands in full for all are the last try.

Which shadows are hot: all of them where that costs no GPU more. A hot shadow takes the memory of a second
server, a shared one that without a process, a warm one none for its models. A plan is packed with all shadows
hot; only where memory may keep it from being cheaper, it is packed with those hot, or shared, that must not
load. Then as many are hot as each GPU has memory for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from controlplane.domain.plan import Infeasible, Plan, memory_used_mb
from controlplane.domain.workload import ShadowPlace, ShadowPolicy, Workload
from controlplane.planning.judge.placements import load_s_of, memory_with_shadow
from controlplane.planning.judge.shadows import short_of_cover, stands_here
from controlplane.planning.protocol import PlanRequest
from controlplane.planning.replan.reuse import cost_of

_MOST_ROUNDS = 4

Factors = Mapping[str, float]
"""How many times slower than measured workloads are planned for, by name."""


def covering(plan: Plan, request: PlanRequest, plan_for: Callable[[Factors], Plan]) -> Plan:
    """The cheapest plan found whose shadows cover what is demanded, or most of it; `plan` is without."""
    demanded = {w.name: w.shadow.covers for w in request.workloads if w.shadow.covers is not None}
    if not demanded:
        return plan
    found, factor = [plan], dict.fromkeys(demanded, 1.0)
    for _ in range(_MOST_ROUNDS):
        plan, short = found[-1], short_of_cover(found[-1], {w.name: w.shadow for w in request.workloads})
        missing = {w.name: short[p.id] for _, p in plan.partitions() if p.id in short for w in p.workloads}
        grown = {n: min(f * missing.get(n, 1.0), demanded[n]) for n, f in factor.items()}
        if grown == factor:
            break
        factor = grown
        found.append(plan_for(factor))
    if len(found) > 1 and factor != demanded:
        found.append(plan_for(demanded))
    return min(found, key=lambda p: (len(p.infeasible), len(p.violations), cost_of(p.gpus)))


def undemanding(request: PlanRequest) -> PlanRequest:
    """The request with shadows beside their partitions, however long they load and whatever they cover.

    Itself where they are so.
    """
    return _decided(request, lambda _: True, within_s=None, place=ShadowPlace.SAME_GPU, covers=None)


def all_hot(request: PlanRequest) -> PlanRequest:
    """The request with every shadow hot that may be; itself where each is decided."""
    return _decided(request, _is_open, policy=ShadowPolicy.HOT)


def in_time_shared(request: PlanRequest) -> PlanRequest:
    """The request with every shadow shared that must not load and may be; itself where there is none."""

    def must(workload: Workload) -> bool:
        wish, known = workload.shadow, [d for d in request.devices.values() if workload.model in d.profiles]
        late = any(not wish.in_time(load_s_of([workload.model], d)) for d in known)
        return _is_open(workload) and wish.within_s is not None and late and stands_here(wish)

    return _decided(request, must, policy=ShadowPolicy.SHARED)


def _is_open(workload: Workload) -> bool:
    return workload.shadow.policy is ShadowPolicy.AUTO


def _decided(request: PlanRequest, chosen: Callable[[Workload], bool], **wish: Any) -> PlanRequest:
    """The request with another wish of each chosen shadow."""
    workloads = tuple(
        replace(w, shadow=replace(w.shadow, **wish)) if chosen(w) else w for w in request.workloads
    )
    return request if workloads == request.workloads else replace(request, workloads=workloads)


def slowed(request: PlanRequest, factors: Factors) -> PlanRequest:
    """The request as if models were so many times slower."""
    workloads = tuple(
        replace(w, rate_rps=w.rate_rps * f, slo_ms=w.slo_ms / f)
        for w in request.workloads
        for f in (factors.get(w.name, 1.0),)
    )
    return replace(request, workloads=workloads)


def at_speed(refused: Infeasible, factors: Factors) -> Infeasible:
    """A refusal of a slowed request's workload, in terms of the real one."""
    factor = factors.get(refused.workload, 1.0)
    slo_ms, rate_rps = refused.nearest_slo_ms, refused.nearest_rate_rps
    if factor == 1.0:
        return refused
    return Infeasible(
        refused.workload,
        f"planned for a model {factor:.3g} times slower, for `shadow: covers`: {refused.reason}",
        nearest_slo_ms=None if slo_ms is None else slo_ms * factor,
        nearest_rate_rps=None if rate_rps is None else rate_rps / factor,
    )


def memory_binds(plan: Plan, request: PlanRequest) -> bool:
    """Whether a GPU of a plan, or one more, might have no memory for a partition more and its shadow."""
    if plan.infeasible:
        return any(device.pool.device.memory_mb is not None for device in request.devices.values())
    used = memory_used_mb(plan.gpus)
    largest = {
        name: max(memory_with_shadow(w, d) for w in request.workloads if w.model in d.profiles)
        for name, d in request.devices.items()
        if any(w.model in d.profiles for w in request.workloads)
    }
    return any(
        gpu.memory_mb is not None and sum(used[gpu.id].values()) + largest.get(gpu.type, 0.0) > gpu.memory_mb
        for gpu in plan.gpus
    )
