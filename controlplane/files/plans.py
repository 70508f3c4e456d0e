"""Reading and writing of plan files. This module checks the structure, `planners.verify` the promises."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from controlplane.domain import units
from controlplane.domain.device import noun
from controlplane.domain.order import MOST_RANKS
from controlplane.domain.plan import (
    Infeasible,
    Partition,
    Placement,
    Plan,
    PlannedGpu,
    Prediction,
    ProfileUse,
    Rule,
    ServedModel,
    Shadow,
    Source,
    Totals,
    Violation,
)
from controlplane.domain.server_options import ServerOptions
from controlplane.domain.workload import MAX_DISPERSION, Arrivals, ShadowPolicy
from controlplane.files.documents import SCHEMA_VERSION, Document, Location, Strict, read
from controlplane.files.writing import finite_or_none, to_json, write_json

_OVER_MARGIN_PERCENT = 1e-6
_LARGEST_BATCH = 4096
"""Above any model's limit. Bounds the work: latencies are computed for every batch up to the planned one."""


class _Prediction(Strict):
    execution_ms: float | None = None
    mean_ms: float | None = None
    p99_ms: float | None = None
    capacity_rps: float | None = None
    utilisation: float | None = None
    source: Annotated[Source | None, Field(strict=False)] = None


class _Placement(Strict):
    name: str
    endpoint: str
    model: str
    rate_rps: float
    slo_ms: float
    arrivals: Annotated[Arrivals, Field(strict=False)] = Arrivals.POISSON
    predicted: _Prediction = _Prediction()
    client_batch: int = 1
    isolated: bool = False
    dispersion: Annotated[float, Field(ge=1.0, le=MAX_DISPERSION)] = 1.0
    longest_ms: Annotated[float | None, Field(gt=0.0)] = None


class _ServedModel(Strict):
    model: str
    batch: int
    instances: int = 1
    max_queue_delay_us: int = 0
    rank: Annotated[int | None, Field(ge=0, lt=MOST_RANKS)] = None


class _Shadow(Strict):
    policy: Annotated[ShadowPolicy, Field(strict=False)]
    gpu: str
    extra_percent: float
    percent: float
    memory_mb: float | None = None
    other_node: bool = False


class _Partition(Strict):
    id: str
    percent: float
    memory_mb: float | None = None
    memory_limit_mb: Annotated[float | None, Field(gt=0)] = None
    shadow: _Shadow | None = None
    models: Annotated[list[_ServedModel], Field(min_length=1)]
    workloads: Annotated[list[_Placement], Field(min_length=1)]


class _Gpu(Strict):
    id: str
    type: str
    price_per_hour: float = 0.0
    memory_mb: float | None = None
    node_selector: dict[str, str] = Field(default_factory=dict)
    partitions: list[_Partition]


class _ProfileUse(Strict):
    model: str
    device: str
    sha256: str


class _Infeasible(Strict):
    workload: str
    reason: str
    nearest_slo_ms: float | None = None
    nearest_rate_rps: float | None = None


class _Violation(Strict):
    subject: str
    reason: str


class _Totals(Strict):
    gpus: int
    percent: float
    cost_per_hour: float
    lower_bound_cost_per_hour: float | None = None
    lower_bound_gpus: int | None = None
    planning_ms: float | None = None
    stopped_by: str | None = None
    phases_ms: dict[str, float] = Field(default_factory=dict)


class _Plan(Strict):
    schema_version: Literal[1]
    strategy: str
    rule: Annotated[Rule, Field(strict=False)]
    latency_model: str
    quantile: float | None = None
    seed: int | None = None
    verified: bool = False
    violations: tuple[_Violation, ...] = Field((), strict=False)
    spec_sha256: str | None = None
    profiles: tuple[_ProfileUse, ...] = Field((), strict=False)
    gpus: list[_Gpu]
    infeasible: tuple[_Infeasible, ...] = Field((), strict=False)
    totals: _Totals | None = None
    triton_args: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)


PLAN: type[Strict] = _Plan
"""The content of a plan's file."""


def read_plan(path: Path) -> tuple[Plan, Document]:
    """Read a plan. Raises InputError naming file, line and field."""
    document = read(path)
    return plan_of(document), document


def plan_of(document: Document) -> Plan:
    """Return the plan of a document. Raises InputError naming file, line and field."""
    content = document.content
    if isinstance(content, Mapping) and "workloads" in content and "strategy" not in content:
        document.fail("is a spec, not a plan: `ctl plan SPEC --output plan.json` makes a plan of it")
    parsed = document.parse(_Plan)
    _check(document, parsed)
    return _plan(parsed)


def read_applied(path: Path) -> Plan:
    """Read the copy of a plan that an apply kept, perhaps one of a newer minor version. Raises InputError."""
    document = read(path)
    parsed = document.parse_newer(_Plan)
    _check(document, parsed)
    return _plan(parsed)


def _plan(parsed: _Plan) -> Plan:
    return Plan(
        strategy=parsed.strategy,
        rule=parsed.rule,
        latency_model=parsed.latency_model,
        gpus=tuple(_gpu(g) for g in parsed.gpus),
        quantile=parsed.quantile,
        seed=parsed.seed,
        verified=parsed.verified,
        violations=tuple(Violation(v.subject, v.reason) for v in parsed.violations),
        spec_sha256=parsed.spec_sha256,
        profiles=tuple(ProfileUse(p.model, p.device, p.sha256) for p in parsed.profiles),
        infeasible=tuple(Infeasible(**i.model_dump()) for i in parsed.infeasible),
        totals=None if parsed.totals is None else _totals(parsed.totals),
        options=_options(parsed),
    )


def _options(parsed: _Plan) -> ServerOptions:
    return ServerOptions(tuple(parsed.triton_args), tuple(parsed.env.items()))


def _gpu(parsed: _Gpu) -> PlannedGpu:
    return PlannedGpu(
        id=parsed.id,
        type=parsed.type,
        price_per_hour=parsed.price_per_hour,
        memory_mb=parsed.memory_mb,
        node_selector=tuple(sorted(parsed.node_selector.items())),
        partitions=tuple(
            Partition(
                id=p.id,
                percent=p.percent,
                memory_mb=p.memory_mb,
                memory_limit_mb=p.memory_limit_mb,
                shadow=None if p.shadow is None else Shadow(**p.shadow.model_dump()),
                models=tuple(ServedModel(**m.model_dump()) for m in p.models),
                workloads=tuple(
                    Placement(
                        name=w.name,
                        endpoint=w.endpoint,
                        model=w.model,
                        rate_rps=w.rate_rps,
                        slo_ms=w.slo_ms,
                        arrivals=w.arrivals,
                        predicted=Prediction(**w.predicted.model_dump()),
                        client_batch=w.client_batch,
                        isolated=w.isolated,
                        dispersion=w.dispersion,
                        longest_ms=w.longest_ms,
                    )
                    for w in p.workloads
                ),
            )
            for p in parsed.partitions
        ),
    )


def _check(document: Document, plan: _Plan) -> None:
    """Check ids, ranges, sums and references, which must be right in every plan."""
    with document.at():
        _options(plan)
    gpu_ids: set[str] = set()
    partition_ids: set[str] = set()
    endpoints: dict[str, str] = {}
    every_gpu = {g.id for g in plan.gpus}
    if plan.quantile is not None and not 0.5 <= plan.quantile < 1:
        document.fail(f"must be at least 0.5 and below 1, not {plan.quantile:g}", ("quantile",))
    for g, gpu in enumerate(plan.gpus):
        with document.at("gpus", g):
            units.safe_name(gpu.id, "id")
        _once(document, gpu.id, gpu_ids, ("gpus", g, "id"))
        for p, partition in enumerate(gpu.partitions):
            here: Location = ("gpus", g, "partitions", p)
            with document.at(*here):
                units.safe_name(partition.id, "id")
                units.percent(partition.percent, "percent")
            _once(document, partition.id, partition_ids, (*here, "id"))
            _check_shadow(document, partition, gpu.id, here, every_gpu)
            _check_models(document, partition, here)
            _check_workloads(document, partition, here, endpoints)
        total = sum(p.percent for p in gpu.partitions)
        if total > 100 + _OVER_MARGIN_PERCENT:
            document.fail(
                f"the partitions of {gpu.id} add up to {total:g} percent; a {noun([gpu.type])} has 100",
                ("gpus", g, "partitions"),
            )


def _check_shadow(
    document: Document, partition: _Partition, gpu: str, here: Location, gpus: set[str]
) -> None:
    if partition.shadow is None:
        return
    with document.at(*here, "shadow"):
        units.percent(partition.shadow.percent, "percent")
    if partition.shadow.gpu not in gpus:
        document.fail(f"{partition.shadow.gpu!r} is not a GPU of this plan", (*here, "shadow", "gpu"))
    if partition.shadow.other_node and partition.shadow.gpu == gpu:
        document.fail(f"{gpu!r} is the partition's own, on the same node", (*here, "shadow", "gpu"))


def _check_models(document: Document, partition: _Partition, here: Location) -> None:
    for m, model in enumerate(partition.models):
        with document.at(*here, "models", m):
            units.safe_name(model.model, "model")
            units.at_least_one(model.batch, "batch")
            units.at_most(model.batch, _LARGEST_BATCH, "batch")
            units.at_least_one(model.instances, "instances")
            units.non_negative(model.max_queue_delay_us, "max_queue_delay_us")


def _check_workloads(
    document: Document, partition: _Partition, here: Location, endpoints: dict[str, str]
) -> None:
    served = {m.model for m in partition.models}
    for w, workload in enumerate(partition.workloads):
        there: Location = (*here, "workloads", w)
        with document.at(*there):
            units.safe_name(workload.name, "name")
            units.safe_name(workload.endpoint, "endpoint")
            units.positive(workload.slo_ms, "slo_ms")
            units.positive(workload.rate_rps, "rate_rps")
            units.at_most(workload.slo_ms, units.LARGEST, "slo_ms")
            units.at_most(workload.rate_rps, units.LARGEST, "rate_rps")
            units.at_least_one(workload.client_batch, "client_batch")
        if workload.model not in served:
            document.fail(f"{workload.model!r} is not among this partition's models", (*there, "model"))
        if endpoints.setdefault(workload.endpoint, workload.name) != workload.name:
            document.fail(
                f"{workload.endpoint!r} is already the endpoint of {endpoints[workload.endpoint]!r}",
                (*there, "endpoint"),
            )


def _once(document: Document, name: str, seen: set[str], location: Location) -> None:
    if name in seen:
        document.fail(f"duplicate id {name!r}", location)
    seen.add(name)


def plan_document(plan: Plan) -> dict[str, Any]:
    """Return a plan as the JSON of its file."""
    return {
        "schema_version": SCHEMA_VERSION,
        "strategy": plan.strategy,
        "rule": plan.rule.value,
        "latency_model": plan.latency_model,
        "quantile": plan.quantile,
        "seed": plan.seed,
        "verified": plan.verified,
        "violations": [{"subject": v.subject, "reason": v.reason} for v in plan.violations],
        "spec_sha256": plan.spec_sha256,
        "profiles": [{"model": p.model, "device": p.device, "sha256": p.sha256} for p in plan.profiles],
        "gpus": [_gpu_document(g) for g in plan.gpus],
        "infeasible": [
            {
                "workload": i.workload,
                "reason": i.reason,
                "nearest_slo_ms": finite_or_none(i.nearest_slo_ms),
                "nearest_rate_rps": finite_or_none(i.nearest_rate_rps),
            }
            for i in plan.infeasible
        ],
        "totals": None if plan.totals is None else _totals_document(plan.totals),
        "triton_args": list(plan.options.triton_args),
        "env": dict(plan.options.env),
    }


def _gpu_document(gpu: PlannedGpu) -> dict[str, Any]:
    return {
        "id": gpu.id,
        "type": gpu.type,
        "price_per_hour": gpu.price_per_hour,
        "memory_mb": gpu.memory_mb,
        # Left out where there is none: a plan that needs no cluster has the hash that it always had.
        **({"node_selector": dict(gpu.node_selector)} if gpu.node_selector else {}),
        "partitions": [
            {
                "id": p.id,
                "percent": p.percent,
                "memory_mb": p.memory_mb,
                **({} if p.memory_limit_mb is None else {"memory_limit_mb": p.memory_limit_mb}),
                "shadow": None if p.shadow is None else _shadow_document(p.shadow),
                "models": [
                    {
                        "model": m.model,
                        "batch": m.batch,
                        "instances": m.instances,
                        "max_queue_delay_us": m.max_queue_delay_us,
                        **({} if m.rank is None else {"rank": m.rank}),
                    }
                    for m in p.models
                ],
                "workloads": [_placement_document(w) for w in p.workloads],
            }
            for p in gpu.partitions
        ],
    }


def _shadow_document(shadow: Shadow) -> dict[str, Any]:
    return {
        "policy": shadow.policy.value,
        "gpu": shadow.gpu,
        "extra_percent": shadow.extra_percent,
        "percent": shadow.percent,
        "memory_mb": shadow.memory_mb,
        **({"other_node": True} if shadow.other_node else {}),
    }


def _placement_document(placement: Placement) -> dict[str, Any]:
    predicted = placement.predicted
    return {
        "name": placement.name,
        "endpoint": placement.endpoint,
        "model": placement.model,
        "rate_rps": placement.rate_rps,
        "arrivals": placement.arrivals.value,
        "slo_ms": placement.slo_ms,
        "client_batch": placement.client_batch,
        "isolated": placement.isolated,
        **({"dispersion": placement.dispersion} if placement.dispersion > 1.0 else {}),
        **({"longest_ms": placement.longest_ms} if placement.longest_ms is not None else {}),
        "predicted": {
            "execution_ms": finite_or_none(predicted.execution_ms),
            "mean_ms": finite_or_none(predicted.mean_ms),
            "p99_ms": finite_or_none(predicted.p99_ms),
            "capacity_rps": finite_or_none(predicted.capacity_rps),
            "utilisation": finite_or_none(predicted.utilisation),
            **({} if predicted.source is None else {"source": predicted.source.value}),
        },
    }


def _totals(parsed: _Totals) -> Totals:
    fields = parsed.model_dump()
    return Totals(**{**fields, "phases_ms": tuple(fields["phases_ms"].items())})


def _totals_document(totals: Totals) -> dict[str, Any]:
    return {
        "gpus": totals.gpus,
        "percent": totals.percent,
        "cost_per_hour": totals.cost_per_hour,
        "lower_bound_cost_per_hour": finite_or_none(totals.lower_bound_cost_per_hour),
        "lower_bound_gpus": totals.lower_bound_gpus,
        "planning_ms": totals.planning_ms,
        "stopped_by": totals.stopped_by,
        "phases_ms": dict(totals.phases_ms),
    }


def write_plan(path: Path, plan: Plan) -> None:
    """Write the plan's file in one step."""
    write_json(path, plan_document(plan))


def plan_hash(plan: Plan) -> str:
    """Return a hash (12 hex digits) of what a plan runs, without times, seeds and totals."""
    document = plan_document(plan)
    runs = [document[key] for key in ("gpus", "triton_args", "env")] if plan.options else document["gpus"]
    return hashlib.sha256(to_json(runs).encode()).hexdigest()[:12]
