"""JSON Schemas of the documents that `--json` prints: of dataclasses, and of the keys of other mappings.

Later versions add keys, so the schemas allow unknown ones. A changed meaning changes `schema_version`.
"""

from __future__ import annotations

from types import GenericAlias
from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, create_model

from controlplane.domain.observation import Event
from controlplane.domain.plan import Infeasible, Plan
from controlplane.domain.serving import Difference, Serving
from controlplane.domain.tensors import Finding
from controlplane.domain.workload import Spec
from controlplane.files.documents import SCHEMA_VERSION
from controlplane.files.gateway.access import Limit
from controlplane.planning.explain.explain import Explanation
from controlplane.planning.replan.differences import Ending, PartitionChange, ShadowChange, TermChange
from controlplane.ports import Capability
from controlplane.report.tables.comparison_table import Comparison
from controlplane.report.tables.demo_table import DemoRow, Repair
from controlplane.report.tables.observed_table import Kept, Unseen
from controlplane.report.tables.status_table import Status
from controlplane.simulate.result import GpuOutcome


def _mapping(title: str, **keys: Any) -> Any:
    """Return the type of a mapping that has all these keys."""
    fields: dict[str, Any] = {key: (kind, ...) for key, kind in keys.items()}
    return create_model(title, **fields)


def _all(kind: Any, keys: str) -> dict[str, Any]:
    return dict.fromkeys(keys.split(), kind)


def _list(kind: Any) -> Any:
    return GenericAlias(list, (kind,))


def _by_name(kind: Any) -> Any:
    return GenericAlias(dict, (str, kind))


def _document(title: str, **keys: Any) -> Any:
    return _mapping(title, schema_version=int, **keys)


_TEXT, _NUMBER = str | None, float | None
_FIGURES = _mapping(
    "Figures",
    n=int,
    **_all(float, "mape_percent bias_percent p95_percent max_percent coverage_95_percent"),
)
_LATENCY_MODEL = _mapping(
    "LatencyModel", overall=_FIGURES, per_model=_by_name(_FIGURES), per_kind=_by_name(_FIGURES)
)
_OBSERVED = _mapping(
    "Observed",
    **_all(str, "partition model"),
    **_all(int, "batch batches"),
    **_all(float, "busy predicted_ms observed_ms"),
    neighbours=list[str],
    **_all(_TEXT, "unmeasured refused"),
)
_PROFILE = _mapping(
    "ProfileWritten",
    **_all(str, "model file"),
    **_all(int, "points points_missing points_beside_others"),
    seconds=float,
    holdout_error=_NUMBER,
)
_SIMULATED = _mapping(
    "SimulatedWorkload",
    name=str,
    requests=int,
    **_all(_NUMBER, "p50_ms p99_ms mean_ms"),
    **_all(float, "slo_ms violations_percent drops_percent throughput_rps goodput_rps utilisation"),
    holds=bool,
)
_GUARDED = _mapping(
    "GuardedWorkload",
    name=str,
    requests=int,
    **_all(float, "slo_ms late_percent late_percent_without"),
    **_all(bool, "holds holds_without"),
)
_FAULT = _mapping("Fault", fault=str, at_s=float, redirected_s=_NUMBER, late_s=int, late_s_without=int)
_TOTALS = _mapping("SimulatedTotals", holds=int, breaks=int)
_EVENT = _mapping("GuardsEvent", at_s=float, subject=str, reason=str)
_RUN = {"seed": int, "seconds": float}
_STEPS = {"fleet": str, "steps": list[str], "terms": list[TermChange]}
_CONVERGED = {**_STEPS, "servers": list[str]}
_LISTENING = _mapping("Listening", host=str, http=int, grpc=int)
_COMMITTED = _document("Committed", fleet=str, generation=int, plan=str, partitions=int, message=str)
_MANIFEST = _document("Manifest", fleet=str, manifest=dict[str, Any])
_STATUS = _document("Status", fleet=str, **get_type_hints(Status))
_CLIENT = _mapping("Client", name=str, endpoints=list[str], certificate=_TEXT, operator=bool, limit=Limit)
_REFUSED = _mapping("Refused", endpoint=str, client=_TEXT, seconds_left=int)
_MISTAKE = _mapping("Mistake", kind=str, exit_code=int, message=str, file=_TEXT, line=int | None, field=_TEXT)
_DRY_RUN = _document("DryRun", **_STEPS, serve=list[Difference], commands=list[str])
_FLEET = _mapping(
    "Fleet", fleet=str, launcher=str, host=str, http=int, grpc=int, metrics=int, applied_s=_NUMBER
)
_DOCUMENTS: dict[str, Any] = {
    "spec": Spec,
    "error": _document("Error", error=_MISTAKE),
    "doctor": _document("Doctor", capabilities=list[Capability]),
    "init": _document("Init", repository=str, spec=str, models=list[Finding]),
    "demo": _document("Demo", workloads=list[DemoRow], repair=Repair | None, no_repair=_TEXT),
    "profile": _document("Profile", profiles=_list(_PROFILE)),
    "import": _document("Import", profiles=_list(_PROFILE)),
    "validate": _document("Validated", latency_models=_by_name(_LATENCY_MODEL))
    | _document("ValidatedFleet", promises=list[Kept], observed=_list(_OBSERVED), unseen=list[Unseen]),
    "train": _document("Train", policy=str, summary=str, curve=list[dict[str, float | None]]),
    "plan": Plan,
    "show": _document("Explained", workload=str, explained=list[Explanation], infeasible=Infeasible | None)
    | _document("Section", serve=Serving)
    | _document(
        "Changed",
        changes=list[PartitionChange],
        shadows=list[ShadowChange],
        endings=list[Ending],
        terms=list[TermChange],
    ),
    "simulate": _document(
        "Simulate", **_RUN, workloads=_list(_SIMULATED), gpus=list[GpuOutcome], totals=_TOTALS
    )
    | _document(
        "SimulateGuarded",
        **_RUN,
        workloads=_list(_GUARDED),
        faults=_list(_FAULT),
        events=_list(_EVENT),
        totals=_TOTALS,
    ),
    "compare": _document("Compare", **get_type_hints(Comparison)),
    "render": _document("Render", partitions=dict[str, str]) | _MANIFEST,
    "apply": _DRY_RUN | _document("Applied", **_CONVERGED, listening=_LISTENING) | _COMMITTED | _MANIFEST,
    "diff": _DRY_RUN | _MANIFEST,
    "list": _document("List", fleets=_list(_FLEET)),
    "status": _STATUS,
    "top": _STATUS,
    "wait": _document("Wait", fleet=str, problems=list[str]),
    "dashboard": _document("Dashboard", fleet=str, address=str),
    "report": _document("Report", fleet=str, file=str),
    "events": _document("Events", fleet=str, events=list[Event]),
    "redirect": _document("Redirect", fleet=str, routes=dict[str, list[str]]),
    "rollback": _document("Converged", **_CONVERGED) | _COMMITTED,
    "limit": _document("LimitSet", fleet=str, endpoint=str, limit=Limit)
    | _document("LimitList", fleet=str, limits=dict[str, Limit], refused=_list(_REFUSED))
    | _document("LimitRemoved", fleet=str, removed=str),
    "token": _document("TokenCreated", fleet=str, client=str, token=_TEXT)
    | _document("TokenList", fleet=str, clients=_list(_CLIENT))
    | _document("TokenRevoked", fleet=str, revoked=str),
    "controller": _document("Controller", **get_type_hints(Event)),
    "destroy": _document("Destroy", fleet=str, destroyed=bool),
}
NAMES = tuple(_DOCUMENTS)
"""`spec` is the input of `ctl plan`, `error` what any verb prints that fails; the others are verbs.
`ctl show` without an option prints the plan."""


def schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a document."""
    kind = _DOCUMENTS[name]
    made = _of_file(kind) if kind in (Spec, Plan) else TypeAdapter(kind).json_schema(mode="serialization")
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"trisect {name}"}
    return {**made, **about, "description": f"Version {SCHEMA_VERSION} of the document."}


def _of_file(kind: Any) -> dict[str, Any]:
    described = ConfigDict(extra="forbid", use_attribute_docstrings=True)
    parts = TypeAdapter(kind | None, config=described).json_schema(mode="serialization")["$defs"]
    whole = parts.pop(kind.__name__)
    version = {"const": SCHEMA_VERSION, "title": "Schema Version", "type": "integer"}
    return {
        **whole,
        "$defs": parts,
        "properties": {"schema_version": version, **whole["properties"]},
        "required": ["schema_version", *whole["required"]],
    }
