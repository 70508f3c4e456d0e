"""How near a running plan is to its limits by what is known now, and how far it is from its predictions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from controlplane.domain.plan import Plan, PlannedGpu, Rule
from controlplane.planning.judge.evaluate import Terms, judge
from controlplane.planning.protocol import Device, PlanRequest


def pressure_of(gpus: Sequence[PlannedGpu], request: PlanRequest) -> dict[str, float]:
    """What each partition is expected to need of its strictest limit: above 1 a promise breaks."""
    pressure: dict[str, float] = {}
    by_p99 = request.rule is Rule.P99
    for one in judge(gpus, request.devices, Terms(request.rule, request.deciding_quantile)):
        used = one.p99_ms / one.slo_ms if by_p99 else one.execution_ms / (one.slo_ms * 0.5)
        own = min(used, 1.0) if one.meets_slo else math.inf
        pressure[one.partition.id] = max(pressure.get(one.partition.id, 0.0), own)
    return pressure


def late_of(pressure: Mapping[str, float]) -> set[str]:
    """The partitions that break a promise."""
    return {name for name, own in pressure.items() if own > 1.0}


def prediction_error(plan: Plan, devices: Mapping[str, Device]) -> float:
    """The largest relative difference of an execution time; 0 for a plan without predictions."""
    return max((abs(ratio - 1.0) for _, ratio in _changed(plan.gpus, plan, devices)), default=0.0)


def changed_times(plan: Plan, devices: Mapping[str, Device], model: str, gpu_type: str) -> float:
    """The mean execution time of a model by what is known now, as a multiple of the plan's; 1 without one."""
    gpus = [gpu for gpu in plan.gpus if gpu.type == gpu_type]
    ratios = [ratio for name, ratio in _changed(gpus, plan, devices) if name == model]
    return sum(ratios) / len(ratios) if ratios else 1.0


def _changed(
    gpus: Sequence[PlannedGpu], plan: Plan, devices: Mapping[str, Device]
) -> Iterator[tuple[str, float]]:
    """Yield the model of each queue, and its execution time as a multiple of the plan's."""
    for one in judge([gpu for gpu in gpus if gpu.type in devices], devices, Terms.of(plan)):
        before_ms = one.workloads[0].predicted.execution_ms if one.workloads else None
        if before_ms:
            yield one.workloads[0].model, one.execution_ms / before_ms
