"""The table and the JSON of `ctl init`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from controlplane.domain.tensors import Finding, TensorSpec
from controlplane.report.tables.terminal import table_of


def survey_table(findings: Sequence[Finding]) -> RenderableType:
    """Return one line for each model, then the notes."""
    table = table_of("model, state, >batch, configuration, ~inputs")
    for one in findings:
        table.add_row(
            one.model,
            one.state,
            "–" if one.max_batch is None else str(one.max_batch),
            "–" if one.max_batch is None else "completed" if one.completed else "written",
            " ".join(map(_input, one.inputs)) or "–",
        )
    notes = [f"{one.model}: {one.note}" for one in findings if one.note]
    return Group(table, *([Text()] if notes else []), *map(Text, notes))


def _input(spec: TensorSpec) -> str:
    mark = "?" if spec.optional else ""
    return f"{spec.name}{mark}:{spec.datatype}[{','.join(map(str, spec.dims))}]"
