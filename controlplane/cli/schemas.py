"""Types of the documents that `--json` prints, from which `ctl schema` makes JSON Schemas.

Later versions add keys, so the schemas allow unknown ones. A changed meaning changes `schema_version`.
"""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from controlplane.domain.observation import RateSeen
from controlplane.domain.plan import Plan
from controlplane.domain.spec import Spec
from controlplane.domain.tensors import Finding
from controlplane.files.documents import SCHEMA_VERSION, adapter
from controlplane.files.limits import Limit
from controlplane.planning.replan.differences import TermChange
from controlplane.ports import Capability
from controlplane.report.tables.demo_table import DemoRow
from controlplane.report.tables.observed_table import Kept, Unseen
from controlplane.report.tables.repair_table import Repair
from controlplane.report.tables.status_table import GuardRow, StatusRow, WorkloadRow
from controlplane.runtime.fleet.history import Event


class _Versioned(TypedDict):
    schema_version: int


class _Mistake(TypedDict):
    kind: str
    exit_code: int
    message: str
    file: str | None
    line: int | None
    field: str | None


class _Error(_Versioned):
    error: _Mistake


class _Doctor(_Versioned):
    capabilities: list[Capability]


class _Demo(_Versioned):
    workloads: list[DemoRow]
    repair: Repair | None
    no_repair: str | None


class _Init(_Versioned):
    repository: str
    spec: str
    models: list[Finding]


class _ProfileWritten(TypedDict):
    model: str
    file: str
    points: int
    points_missing: int
    points_beside_others: int
    seconds: float
    holdout_error: float | None


class _Profile(_Versioned):
    profiles: list[_ProfileWritten]


class _Figures(TypedDict):
    n: int
    mape_percent: float
    bias_percent: float
    p95_percent: float
    max_percent: float
    coverage_95_percent: float


class _LatencyModel(TypedDict):
    overall: _Figures
    per_model: dict[str, _Figures]
    per_kind: dict[str, _Figures]


class _Validated(_Versioned):
    latency_models: dict[str, _LatencyModel]


class _Observed(TypedDict):
    partition: str
    model: str
    batch: int
    batches: int
    busy: float
    neighbours: list[str]
    predicted_ms: float
    observed_ms: float
    unmeasured: str | None
    refused: str | None


class _ValidatedFleet(_Versioned):
    promises: list[Kept]
    observed: list[_Observed]
    unseen: list[Unseen]


class _Train(_Versioned):
    policy: str
    summary: str
    curve: list[dict[str, float | None]]


class _SimulatedWorkload(TypedDict):
    name: str
    requests: int
    p50_ms: float | None
    p99_ms: float | None
    mean_ms: float | None
    slo_ms: float
    violations_percent: float
    drops_percent: float
    throughput_rps: float
    goodput_rps: float
    utilisation: float
    holds: bool


class _SimulatedPartition(TypedDict):
    id: str
    model: str
    busy_percent: float
    mean_batch: float


class _SimulatedGpu(TypedDict):
    id: str
    busy_percent: float
    power_w: float
    partitions: list[_SimulatedPartition]


class _SimulatedTotals(TypedDict):
    holds: int
    breaks: int


class _Simulate(_Versioned):
    seed: int
    seconds: float
    workloads: list[_SimulatedWorkload]
    gpus: list[_SimulatedGpu]
    totals: _SimulatedTotals


class _GuardedWorkload(TypedDict):
    name: str
    slo_ms: float
    requests: int
    late_percent: float
    late_percent_without: float
    holds: bool
    holds_without: bool


class _Fault(TypedDict):
    fault: str
    at_s: float
    redirected_s: float | None
    late_s: int
    late_s_without: int


class _GuardsEvent(TypedDict):
    at_s: float
    subject: str
    reason: str


class _SimulateGuarded(_Versioned):
    seed: int
    seconds: float
    workloads: list[_GuardedWorkload]
    faults: list[_Fault]
    events: list[_GuardsEvent]
    totals: _SimulatedTotals


class _Truth(TypedDict):
    name: str
    title: str
    meaning: str


class _UnderTruth(TypedDict):
    late: list[str]
    late_percent: float
    power_w: float | None


class _Utilisation(TypedDict):
    median: float
    largest: float


class _Compared(TypedDict):
    name: str
    gpus: int
    cost_per_hour: float
    share_percent: float
    planning_ms: float
    infeasible: list[str]
    predicted_late: list[str]
    utilisation: _Utilisation | None
    truths: dict[str, _UnderTruth]


class _RefusedStrategy(TypedDict):
    name: str
    reason: str


class _Compare(_Versioned):
    workloads: int
    noun: str
    priced: bool
    seconds: float
    seed: int
    truths: list[_Truth]
    strategies: list[_Compared]
    refused: list[_RefusedStrategy]


class _Render(_Versioned):
    partitions: dict[str, str]


class _Steps(_Versioned):
    fleet: str
    steps: list[str]
    terms: list[TermChange]


class _DryRun(_Steps):
    commands: list[str]


class _Converged(_Steps):
    servers: list[str]


class _Listening(TypedDict):
    host: str
    http: int
    grpc: int


class _Applied(_Converged):
    listening: _Listening


class _Committed(_Versioned):
    fleet: str
    generation: int
    plan: str
    partitions: int
    message: str


class _Manifest(_Versioned):
    fleet: str
    manifest: dict[str, Any]


class _Restart(TypedDict):
    seconds_ago: float
    reason: str


class _Load(TypedDict):
    following: str
    workloads: list[RateSeen]


class _Status(_Versioned):
    fleet: str
    controller: int | None
    trouble: str | None
    history_trouble: str | None
    gateway_missing: list[str]
    restarts: list[_Restart]
    servers: list[StatusRow]
    workloads: list[WorkloadRow]
    guard: list[GuardRow]
    load: _Load | None


class _Wait(_Versioned):
    fleet: str
    problems: list[str]


class _Dashboard(_Versioned):
    fleet: str
    address: str


class _Report(_Versioned):
    fleet: str
    file: str


class _Events(_Versioned):
    fleet: str
    events: list[Event]


class _Redirect(_Versioned):
    fleet: str
    routes: dict[str, list[str]]


class _TokenCreated(_Versioned):
    fleet: str
    client: str
    token: str | None


class _Client(TypedDict):
    name: str
    endpoints: list[str]
    certificate: str | None
    operator: bool
    limit: Limit


class _TokenList(_Versioned):
    fleet: str
    clients: list[_Client]


class _LimitSet(_Versioned):
    fleet: str
    endpoint: str
    limit: Limit


class _Refused(TypedDict):
    endpoint: str
    client: str | None
    seconds_left: int


class _LimitList(_Versioned):
    fleet: str
    limits: dict[str, Limit]
    refused: list[_Refused]


class _LimitRemoved(_Versioned):
    fleet: str
    removed: str


class _TokenRevoked(_Versioned):
    fleet: str
    revoked: str


class _Serve(_Versioned):
    at_s: float
    level: str
    kind: str
    subject: str
    reason: str


class _Destroy(_Versioned):
    fleet: str
    destroyed: bool


_DOCUMENTS: dict[str, Any] = {
    "spec": Spec,
    "error": _Error,
    "doctor": _Doctor,
    "init": _Init,
    "demo": _Demo,
    "profile": _Profile,
    "validate": _Validated | _ValidatedFleet,
    "train": _Train,
    "plan": Plan,
    "simulate": _Simulate | _SimulateGuarded,
    "compare": _Compare,
    "render": _Render | _Manifest,
    "apply": _DryRun | _Applied | _Committed | _Manifest,
    "status": _Status,
    "top": _Status,
    "wait": _Wait,
    "dashboard": _Dashboard,
    "report": _Report,
    "events": _Events,
    "redirect": _Redirect,
    "rollback": _Converged | _Committed,
    "limit": _LimitSet | _LimitList | _LimitRemoved,
    "token": _TokenCreated | _TokenList | _TokenRevoked,
    "serve": _Serve,
    "destroy": _Destroy,
}
NAMES = tuple(_DOCUMENTS)
"""`spec` is the input of `ctl plan`, `error` what any verb prints that fails; the others are verbs."""


def schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a document."""
    kind = _DOCUMENTS[name]
    made = _of_file(kind) if kind in (Spec, Plan) else TypeAdapter(kind).json_schema(mode="serialization")
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"trisect {name}"}
    return {**made, **about, "description": f"Version {SCHEMA_VERSION} of the document."}


def _of_file(kind: Any) -> dict[str, Any]:
    parts = adapter(kind).json_schema(mode="serialization")["$defs"]
    whole = parts.pop(kind.__name__)
    version = {"const": SCHEMA_VERSION, "title": "Schema Version", "type": "integer"}
    return {
        **whole,
        "$defs": parts,
        "properties": {"schema_version": version, **whole["properties"]},
        "required": ["schema_version", *whole["required"]],
    }
