"""Reading of spec files (YAML or JSON)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from controlplane.domain import units
from controlplane.domain.server_options import ServerOptions
from controlplane.domain.spec import GpuRequest, Spec
from controlplane.domain.workload import Arrivals, ShadowPlace, ShadowPolicy, ShadowWish, Workload
from controlplane.files.documents import Document, Strict, read


def _text(value: object) -> object:
    """Return a name as text: YAML reads an unquoted `name: 1` as a number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Name = Annotated[str, BeforeValidator(_text)]


class _Gpu(Strict):
    type: Name
    count: int | None = None
    price_per_hour: float | None = None
    node_selector: dict[str, Name] = Field(default_factory=dict)


class _Shadow(Strict):
    policy: Annotated[ShadowPolicy, Field(strict=False)] = ShadowPolicy.HOT
    place: Annotated[ShadowPlace, Field(strict=False)] = ShadowPlace.SAME_GPU


class _Workload(Strict):
    name: Name
    model: Name
    slo_ms: float
    rate_rps: float
    dispersion: float = 1.0
    arrivals: Annotated[Arrivals, Field(strict=False)] = Arrivals.POISSON
    endpoint: Name | None = None
    shadow: _Shadow = _Shadow()
    memory_mb: float | None = None
    client_batch: int = 1
    isolated: bool = False
    longest_ms: float | None = None


class _Spec(Strict):
    schema_version: Literal[1]
    gpus: Annotated[list[_Gpu], Field(min_length=1)]
    workloads: Annotated[list[_Workload], Field(min_length=1)]
    triton_args: list[str] = Field(default_factory=list)
    env: dict[str, Name] = Field(default_factory=dict)


SPEC: type[Strict] = _Spec
"""The content of a spec's file."""


def read_spec(path: Path) -> tuple[Spec, Document]:
    """Read a spec. Raises InputError naming file, line and field."""
    document = read(path)
    return parse_spec(document), document


def parse_spec(document: Document) -> Spec:
    """Return a document's spec. Raises InputError naming file, line and field."""
    content = document.content
    if isinstance(content, Mapping) and "strategy" in content and "workloads" not in content:
        document.fail("is a plan, not a spec: a spec lists `workloads`, and `ctl apply` runs a plan")
    parsed = document.parse(_Spec)
    gpus = []
    for i, gpu in enumerate(parsed.gpus):
        with document.at("gpus", i):
            gpus.append(_gpu(gpu))
    _unique(document, "gpus", "type", [g.type for g in gpus])
    models = Counter(w.model for w in parsed.workloads)
    workloads = []
    for i, workload in enumerate(parsed.workloads):
        with document.at("workloads", i):
            workloads.append(_workload(workload, alone=models[workload.model] == 1))
    _unique(document, "workloads", "name", [w.name for w in workloads])
    _unique(document, "workloads", "endpoint", [w.endpoint for w in workloads])
    with document.at():
        options = ServerOptions(tuple(parsed.triton_args), tuple(parsed.env.items()))
    return Spec(tuple(gpus), tuple(workloads), options)


def _gpu(parsed: _Gpu) -> GpuRequest:
    return GpuRequest(
        parsed.type, parsed.count, parsed.price_per_hour, tuple(sorted(parsed.node_selector.items()))
    )


def _workload(parsed: _Workload, *, alone: bool) -> Workload:
    units.at_most(parsed.slo_ms, units.LARGEST, "slo_ms")
    units.at_most(parsed.rate_rps, units.LARGEST, "rate_rps")
    return Workload(
        name=parsed.name,
        model=parsed.model,
        slo_ms=parsed.slo_ms,
        rate_rps=parsed.rate_rps,
        endpoint=parsed.endpoint or (parsed.model if alone else parsed.name),
        arrivals=parsed.arrivals,
        shadow=ShadowWish(parsed.shadow.policy, parsed.shadow.place),
        memory_mb=parsed.memory_mb,
        client_batch=parsed.client_batch,
        isolated=parsed.isolated,
        dispersion=parsed.dispersion,
        longest_ms=parsed.longest_ms,
    )


def _unique(document: Document, section: str, field: str, names: list[str]) -> None:
    first: dict[str, int] = {}
    for i, name in enumerate(names):
        if name in first:
            document.fail(
                f"{name!r} is already the {field} of {section}[{first[name]}]; each needs its own",
                (section, i, field),
            )
        first[name] = i
