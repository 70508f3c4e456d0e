"""The documents that the page draws, as plain values for JSON: of a plan, and of a running fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.domain import device
from controlplane.domain.observation import Event
from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Rule, memory_used_mb
from controlplane.files.documents import SCHEMA_VERSION, plain
from controlplane.planning.explain.explain import Explanation
from controlplane.planning.judge.evaluate import SLACK
from controlplane.report.tables.status_table import Status, StatusRow, WorkloadRow
from controlplane.report.words import at_quantile
from controlplane.simulate.result import SimulationResult, WorkloadOutcome

Json = dict[str, Any]
Reasons = Mapping[tuple[str, str], Explanation]
"""The explanation of each queue by its first partition and model."""
_Placed = tuple[PlannedGpu, Partition, Placement]


def plan_document(
    plan: Plan, reasons: Reasons | None = None, simulated: SimulationResult | None = None
) -> Json:
    """Return the document of a plan; with a simulation its P99s stand in place of the predicted ones."""
    outcomes = {w.name: w for w in simulated.workloads} if simulated is not None else {}
    used = memory_used_mb(plan.gpus)
    placed: dict[str, list[_Placed]] = {}
    for gpu, partition, placement in plan.placements():
        placed.setdefault(placement.name, []).append((gpu, partition, placement))
    return {
        "schema_version": SCHEMA_VERSION,
        "title": "Simulated plan" if simulated is not None else "Plan",
        "noun": device.noun(gpu.type for gpu in plan.gpus),
        "basis": _basis(plan, simulated),
        "strategy": plan.strategy,
        "violations": plain(plan.violations),
        "infeasible": plain(plan.infeasible),
        "totals": plain(plan.totals),
        "gpus": [_gpu(gpu, used[gpu.id]) for gpu in plan.gpus],
        "workloads": [_workload(plan, where, outcomes.get(name)) for name, where in placed.items()],
        "reasons": {
            f"{partition}/{model}": {
                "sentences": list(explanation.reasons),
                "alternatives": [
                    plain(a) | {"value_ms": a.execution_ms if plan.rule is Rule.HALF_SLO else a.p99_ms}
                    for a in explanation.alternatives
                ],
            }
            for (partition, model), explanation in (reasons or {}).items()
        },
    }


def _basis(plan: Plan, simulated: SimulationResult | None) -> Json:
    """Return what the latencies are: of what, from where, against which limit."""
    if simulated is not None:
        return {
            "kind": "simulated",
            "measure": "P99",
            "limit": "SLO",
            "source": f"a simulation of {simulated.seconds:g} s of traffic (seed {simulated.seed})",
        }
    source = f"the latency model {plan.latency_model!r}, fitted to measured times"
    if plan.rule is Rule.HALF_SLO:
        source += ", for a full batch with all neighbours busy"
        return {"kind": "predicted", "measure": "execution", "limit": "half the SLO", "source": source}
    if plan.quantile is not None:
        source += f", with execution times at their {at_quantile(plan.quantile)}"
    return {"kind": "predicted", "measure": "P99", "limit": "SLO", "source": source}


def _gpu(gpu: PlannedGpu, used: Mapping[str, float]) -> Json:
    partitions = [plain(p) | {"workloads": [w.name for w in p.workloads]} for p in gpu.partitions]
    for made, p in zip(partitions, gpu.partitions, strict=True):
        if p.shadow is not None:
            made["shadow"]["redirect_s"] = p.shadow.redirect_s
    return {**plain(gpu), "percent": gpu.percent, "partitions": partitions, "used_mb": dict(used)}


def _workload(plan: Plan, where: Sequence[_Placed], outcome: WorkloadOutcome | None) -> Json:
    """Return a workload's entry; of a pool the rates add up and the busiest server counts."""
    first = where[0][2]
    execution_ms = _largest(w.predicted.execution_ms for _, _, w in where)
    p99_ms = _largest(w.predicted.p99_ms for _, _, w in where)
    half = plan.rule is Rule.HALF_SLO
    value_ms, limit_ms = (execution_ms, first.slo_ms / 2.0) if half else (p99_ms, first.slo_ms)
    late_percent, holds = None, value_ms is not None and value_ms <= limit_ms * (1.0 + SLACK)
    if outcome is not None:
        value_ms = outcome.p99_ms if outcome.p99_ms == outcome.p99_ms else None
        limit_ms, late_percent, holds = first.slo_ms, outcome.violations_percent, outcome.holds
    sharing = dict.fromkeys(w.name for _, p, _ in where for w in p.workloads if w.model == first.model)
    return {
        "name": first.name,
        "model": first.model,
        "endpoint": first.endpoint,
        "rate_rps": sum(w.rate_rps for _, _, w in where),
        "client_batch": first.client_batch,
        "slo_ms": first.slo_ms,
        "limit_ms": limit_ms,
        "value_ms": value_ms,
        "late_percent": late_percent,
        "holds": holds,
        "utilisation": _largest(w.predicted.utilisation for _, _, w in where),
        "batch": max(m.batch for _, p, _ in where for m in p.models if m.model == first.model),
        "partitions": [p.id for _, p, _ in where],
        "gpus": list(dict.fromkeys(gpu.id for gpu, _, _ in where)),
        "companions": [name for name in sharing if name != first.name],
    }


def _largest(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return max(known, default=None)


@dataclass(frozen=True, slots=True)
class Point:
    """About a minute of one endpoint in one partition, until `at_s` (since the epoch)."""

    at_s: float
    endpoint: str
    partition: str
    percent: float
    requests: int
    failed: int
    p99_ms: float | None


def fleet_document(
    name: str,
    plan: Plan,
    status: Status,
    events: Sequence[Event],
    busy: Mapping[tuple[str, str], float],
) -> Json:
    """Return the document of a fleet as it is now: shares of the servers that serve, rates and P99s seen.

    `busy`: the part of the time in which a partition executed batches of an endpoint.
    """
    document = plan_document(plan)
    routed = {row.partition: row for row in status.servers if row.routed}
    seen = {row.workload: row for row in status.workloads}
    return document | {
        "title": f"Fleet {name}",
        "basis": {
            "kind": "observed",
            "measure": "P99",
            "limit": "SLO",
            "source": "the requests of the last minute, as clients saw them at the gateway",
        },
        "seen": True,
        "controller": status.controller is not None,
        "troubles": [one for one in (status.trouble, status.history_trouble) if one is not None],
        "gpus": [_gpu_seen(gpu, routed) for gpu in document["gpus"]],
        "workloads": [
            _workload_seen(one, seen.get(one["name"])) | {"busy": _busy(one, document["workloads"], busy)}
            for one in document["workloads"]
        ],
        "events": plain(events[::-1]),
    }


def with_timeline(document: Json, points: Sequence[Point]) -> Json:
    """Return the document with the record: a series for each endpoint, in the plan's order."""
    slos = {w["endpoint"]: w["limit_ms"] for w in document["workloads"]}
    by_endpoint: dict[str, list[Point]] = {endpoint: [] for endpoint in slos}
    for point in points:
        by_endpoint.setdefault(point.endpoint, []).append(point)
    return document | {
        "timeline": [
            {
                "endpoint": endpoint,
                "slo_ms": slos.get(endpoint),
                "partitions": sorted({p.partition for p in own}),
                "points": plain(own),
            }
            for endpoint, own in by_endpoint.items()
            if own
        ]
    }


def _gpu_seen(gpu: Json, routed: Mapping[str, StatusRow]) -> Json:
    partitions = []
    for one in gpu["partitions"]:
        serving, note = routed.get(one["id"]), None
        percent = one["percent"] if serving is None else serving.percent
        if serving is None:
            note = "no server has its traffic"
        elif percent != one["percent"]:
            note = f"redirected: {one['percent']:g} % was planned"
        partitions.append(one | {"percent": percent, "note": note})
    return gpu | {"partitions": partitions, "percent": sum(p["percent"] for p in partitions)}


def _workload_seen(workload: Json, seen: WorkloadRow | None) -> Json:
    p99_ms = seen.p99_ms if seen is not None else None
    return workload | {
        "limit_ms": workload["slo_ms"],
        "value_ms": p99_ms,
        "seen_rps": seen.rate_rps if seen is not None else None,
        "holds": p99_ms is not None and p99_ms <= workload["slo_ms"],
    }


def _busy(workload: Json, every: Sequence[Json], busy: Mapping[tuple[str, str], float]) -> float | None:
    """Return that of the busiest server; the executions of a shared queue count for one of its endpoints."""
    names = {workload["name"], *workload["companions"]}
    endpoints = {one["endpoint"] for one in every if one["name"] in names}
    own = [part for (at, name), part in busy.items() if at in workload["partitions"] and name in endpoints]
    return max(own, default=None)
