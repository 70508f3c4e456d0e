"""Which shadows are hot: all of them where that costs no GPU more.

A hot shadow takes the memory of a second server, a warm one none for its models. A plan is packed with all
shadows hot; only where memory may keep it from being cheaper, it is packed without their memory too. Then as
many are hot as each GPU has memory for.
"""

from __future__ import annotations

from dataclasses import replace

from controlplane.domain.plan import Plan, memory_used_mb
from controlplane.domain.workload import ShadowPolicy
from controlplane.planning.judge.placements import memory_with_shadow
from controlplane.planning.protocol import PlanRequest


def all_hot(request: PlanRequest) -> PlanRequest:
    """The request with every shadow hot that may be; itself where each is decided."""
    workloads = tuple(
        replace(w, shadow=replace(w.shadow, policy=ShadowPolicy.HOT))
        if w.shadow.policy is ShadowPolicy.AUTO
        else w
        for w in request.workloads
    )
    return request if workloads == request.workloads else replace(request, workloads=workloads)


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
