"""Reading and writing of specs and plan files: their structure; `planning.judge` checks the promises."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from controlplane.domain.device import noun
from controlplane.domain.plan import Partition, Plan, PlannedGpu
from controlplane.domain.workload import ShadowPolicy, Spec
from controlplane.files.documents import Document, parsed_yaml, read, versioned
from controlplane.files.mistakes import Location
from controlplane.files.writing import to_json, write_json


def read_spec(path: Path) -> tuple[Spec, Document]:
    """Read a spec. Raises InputError naming file, line and field."""
    document = read(path)
    return parse_spec(document), document


def parse_spec(document: Document) -> Spec:
    """Return a document's spec. Raises InputError naming file, line and field."""
    content = document.content
    if isinstance(content, Mapping) and "strategy" in content and "workloads" not in content:
        document.fail("is a plan, not a spec: a spec lists `workloads`, and `ctl apply` runs a plan")
    spec = document.parse(Spec, numbers_are_names=True)
    _unique(document, "gpus", "type", (gpu.type for gpu in spec.gpus))
    _unique(document, "workloads", "name", (workload.name for workload in spec.workloads))
    _unique(document, "workloads", "endpoint", (workload.endpoint for workload in spec.workloads))
    return spec


def spec_of(plan: Plan) -> tuple[Spec, Document] | None:
    """Return the spec that a plan was made from; None in a plan without one. Raises InputError."""
    if plan.spec is None:
        return None
    document = parsed_yaml("the plan's copy of its spec", plan.spec)
    if document.sha256 != plan.spec_sha256:
        document.fail("is not the one that the plan was made from: `ctl plan` again")
    return parse_spec(document), document


def _unique(document: Document, section: str, field: str, names: Iterable[str | None]) -> None:
    first: dict[str | None, int] = {}
    for i, name in enumerate(names):
        if name in first:
            document.fail(
                f"{name!r} is already the {field} of {section}[{first[name]}]; each needs its own",
                (section, i, field),
            )
        first[name] = i


_OVER_MARGIN_PERCENT = 1e-6


def read_plan(path: Path) -> tuple[Plan, Document]:
    """Read a plan. Raises InputError naming file, line and field."""
    document = read(path)
    return plan_of(document), document


def plan_of(document: Document) -> Plan:
    """Return the plan of a document. Raises InputError naming file, line and field."""
    content = document.content
    if isinstance(content, Mapping) and "workloads" in content and "strategy" not in content:
        document.fail("is a spec, not a plan: `ctl plan SPEC --output plan.json` makes a plan of it")
    return _checked(document, document.parse(Plan))


def read_applied(path: Path) -> Plan:
    """Read the copy of a plan that an apply kept, perhaps one of a newer minor version. Raises InputError."""
    document = read(path)
    return _checked(document, document.parse(Plan, newer=True))


def _checked(document: Document, plan: Plan) -> Plan:
    """Check ids, sums and references, which must be right in every plan."""
    gpu_ids: set[str] = set()
    partition_ids: set[str] = set()
    endpoints: dict[str, str] = {}
    every_gpu = {g.id for g in plan.gpus}
    for g, gpu in enumerate(plan.gpus):
        _once(document, gpu.id, gpu_ids, ("gpus", g, "id"))
        if gpu.shared is not None:
            _once(document, gpu.shared.id, partition_ids, ("gpus", g, "shared", "id"))
        for p, partition in enumerate(gpu.partitions):
            here: Location = ("gpus", g, "partitions", p)
            _once(document, partition.id, partition_ids, (*here, "id"))
            _check_shadow(document, partition, gpu, here, every_gpu)
            _check_workloads(document, partition, here, endpoints)
        if gpu.percent > 100 + _OVER_MARGIN_PERCENT:
            document.fail(
                f"the partitions of {gpu.id} add up to {gpu.percent:g} percent; a {noun([gpu.type])} has 100",
                ("gpus", g, "partitions"),
            )
    return plan


def _check_shadow(
    document: Document, partition: Partition, gpu: PlannedGpu, here: Location, gpus: set[str]
) -> None:
    shadow = partition.shadow
    if shadow is None:
        return
    if shadow.gpu not in gpus:
        document.fail(f"{shadow.gpu!r} is not a GPU of this plan", (*here, "shadow", "gpu"))
    if shadow.policy is ShadowPolicy.SHARED:
        if gpu.shared is None or shadow.gpu != gpu.id:
            document.fail(f"there is no `shared` of {gpu.id}, its own GPU", (*here, "shadow", "policy"))
        elif shadow.percent != gpu.shared.percent:
            document.fail(f"is {gpu.shared.percent:g} in `shared` of {gpu.id}", (*here, "shadow", "percent"))
    if shadow.other_node and shadow.gpu == gpu.id:
        document.fail(f"{gpu.id!r} is the partition's own, on the same node", (*here, "shadow", "gpu"))


def _check_workloads(
    document: Document, partition: Partition, here: Location, endpoints: dict[str, str]
) -> None:
    served = {m.model for m in partition.models}
    for w, workload in enumerate(partition.workloads):
        there: Location = (*here, "workloads", w)
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


def write_plan(path: Path, plan: Plan) -> None:
    """Write the plan's file in one step."""
    write_json(path, versioned(plan))


def plan_hash(plan: Plan) -> str:
    """Return a hash (12 hex digits) of what a plan runs, without times, seeds and totals."""
    document = versioned(plan)
    runs = [document[key] for key in ("gpus", "triton_args", "env")] if plan.options else document["gpus"]
    return hashlib.sha256(to_json(runs).encode()).hexdigest()[:12]


API_VERSION = "trisect.dev/v1alpha1"


def fleet_manifest(fleet: str, plan: Plan, *, allow_violations: bool) -> dict[str, Any]:
    """Return the object that `ctl apply` writes and that a repository of manifests may hold."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Fleet",
        "metadata": {"name": fleet},
        "spec": {"plan": _without_nulls(versioned(plan)), "allowViolations": allow_violations},
    }


def _without_nulls(value: Any) -> Any:
    """Return a document without what is not set: an API server refuses null for a field of another type."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_without_nulls(one) for one in value]
    return value
