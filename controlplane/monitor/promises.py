"""What the applied plan promises each endpoint, as the page of metrics needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controlplane.domain.plan import Plan


@dataclass(frozen=True, slots=True)
class Promise:
    """An endpoint's strictest SLO in seconds, and its planned requests per second."""

    slo_s: float
    planned_rps: float


@dataclass(frozen=True, slots=True)
class Promises:
    """The promises by endpoint, how the plan was made, and its GPUs by type."""

    by_endpoint: Mapping[str, Promise] = field(default_factory=dict)
    made_by: tuple[str, str, str] | None = None
    gpus: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(plan: Plan) -> Promises:
        """Return those of a plan; a pool's rates add up."""
        found: dict[str, Promise] = {}
        for _, _, placed in plan.placements():
            before = found.get(placed.endpoint, Promise(placed.slo_ms / 1e3, 0.0))
            found[placed.endpoint] = Promise(
                min(before.slo_s, placed.slo_ms / 1e3), before.planned_rps + placed.requests_rps
            )
        gpus: dict[str, int] = {}
        for gpu in plan.gpus:
            gpus[gpu.type] = gpus.get(gpu.type, 0) + 1
        return Promises(found, (plan.strategy, plan.rule.value, plan.latency_model), gpus)
