"""How far a running plan's execution times are from those predicted by now. Values in, values out."""

from __future__ import annotations

from collections.abc import Mapping

from controlplane.domain.plan import Plan
from controlplane.planning.judge.evaluate import Terms, evaluate, layouts_of
from controlplane.planning.protocol import Device


def prediction_error(plan: Plan, devices: Mapping[str, Device]) -> float:
    """The largest relative difference of an execution time; 0 for a plan without predictions."""
    gpus = [gpu for gpu in plan.gpus if gpu.type in devices]
    layouts = layouts_of(gpus, devices)
    found = evaluate(layouts, devices, Terms.of(plan))
    worst = 0.0
    for name, layout in layouts.items():
        for at, queue in layout.columns():
            before_ms = queue.workloads[0].predicted.execution_ms if queue.workloads else None
            if before_ms:
                worst = max(worst, abs(float(found[name].times.execution_ms[at]) / before_ms - 1.0))
    return worst
