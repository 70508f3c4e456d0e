"""The document of a running fleet: its plan with what is seen of it, its record and its events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controlplane.domain.observation import Event
from controlplane.domain.plan import Plan
from controlplane.files.documents import plain
from controlplane.report.page.document import Json, plan_document
from controlplane.report.tables.status_table import Status, StatusRow, WorkloadRow


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
        "gpus": [_gpu(gpu, routed) for gpu in document["gpus"]],
        "workloads": [
            _workload(one, seen.get(one["name"])) | {"busy": _busy(one, document["workloads"], busy)}
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


def _gpu(gpu: Json, routed: Mapping[str, StatusRow]) -> Json:
    partitions = [_partition(one, routed.get(one["id"])) for one in gpu["partitions"]]
    return gpu | {"partitions": partitions, "percent": sum(p["percent"] for p in partitions)}


def _partition(partition: Json, serving: StatusRow | None) -> Json:
    if serving is None:
        return partition | {"note": "no server has its traffic"}
    moved = serving.percent != partition["percent"]
    note = f"redirected: {partition['percent']:g} % was planned" if moved else None
    return partition | {"percent": serving.percent, "note": note}


def _workload(workload: Json, seen: WorkloadRow | None) -> Json:
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
