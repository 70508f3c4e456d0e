"""Reading of specs, from files (YAML or JSON) and from the plans that were made from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from controlplane.domain.plan import Plan
from controlplane.domain.spec import Spec
from controlplane.files.documents import Document, parsed_yaml, read


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
