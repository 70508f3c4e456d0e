"""How near each partition is to its limits. Values in, values out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from controlplane.domain.plan import PlannedGpu, Rule
from controlplane.planning.judge.evaluate import Terms, evaluate, kept, layouts_of
from controlplane.planning.protocol import PlanRequest


def pressure_of(gpus: Sequence[PlannedGpu], request: PlanRequest) -> dict[str, float]:
    """What each partition is expected to need of its strictest limit: above 1 a promise breaks."""
    layouts = layouts_of(gpus, request.devices)
    terms = Terms(request.rule, request.deciding_quantile)
    found = evaluate(layouts, request.devices, terms)
    pressure: dict[str, float] = {}
    for name, layout in layouts.items():
        held = kept(layout, found[name], terms.rule)
        for (i, j), queue in layout.columns():
            taken = (
                found[name].p99_ms[i, j] if terms.rule is Rule.P99 else found[name].times.execution_ms[i, j]
            )
            limit = layout.slo_ms[i, j] * (1.0 if terms.rule is Rule.P99 else 0.5)
            own = min(taken / limit, 1.0) if held[i, j] else np.inf
            pressure[queue.partition.id] = max(pressure.get(queue.partition.id, 0.0), own)
    return pressure


def late_of(pressure: Mapping[str, float]) -> set[str]:
    """The partitions that break a promise."""
    return {name for name, own in pressure.items() if own > 1.0}
