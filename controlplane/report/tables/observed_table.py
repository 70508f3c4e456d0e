"""The tables of `ctl init` and `ctl validate`: models of a repository, and predicted beside measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from controlplane.domain.tensors import Finding
from controlplane.latency.calibration import Seen
from controlplane.report.tables.terminal import table_of
from controlplane.report.words import number


def survey_table(findings: Sequence[Finding]) -> RenderableType:
    """Return one line for each model, then the notes."""
    table = table_of("model, state, >batch, configuration, ~inputs")
    for one in findings:
        inputs = [
            f"{spec.name}{'?' if spec.optional else ''}:{spec.datatype}[{','.join(map(str, spec.dims))}]"
            for spec in one.inputs
        ]
        batch, configuration = "–", "–"
        if one.max_batch is not None:
            batch, configuration = str(one.max_batch), "completed" if one.completed else "written"
        table.add_row(one.model, one.state, batch, configuration, " ".join(inputs) or "–")
    notes = [f"{one.model}: {one.note}" for one in findings if one.note]
    return Group(table, *([Text()] if notes else []), *map(Text, notes))


@dataclass(frozen=True, slots=True)
class Unseen:
    """A partition without a measurement, and the reason."""

    partition: str
    unmeasured: str


def observed_table(seen: Sequence[Seen], unseen: Sequence[Unseen] = ()) -> Table:
    """Return a line for each model and batch size of a partition, and for each that was not measured."""
    table = table_of(
        "partition, model, >batch, >batches, >busy %, >predicted ms, >observed ms, >error %, ~beside, "
        "~teaches"
    )
    for row in seen:
        found = row.observation
        if row.unmeasured is None:
            error = f"{100 * (found.predicted_ms / found.observed_ms - 1):+.0f}"
            teaches = "yes" if row.refused is None else f"no: {row.refused}"
        else:
            error, teaches = "–", f"unmeasured: {row.unmeasured}"
        table.add_row(
            row.partition,
            found.model,
            str(row.batch),
            str(found.batches),
            f"{100 * row.busy:.0f}",
            f"{found.predicted_ms:.1f}",
            f"{found.observed_ms:.1f}",
            error,
            ", ".join(found.neighbours) or "–",
            teaches,
        )
    for one in unseen:
        table.add_row(one.partition, *["–"] * 8, f"unmeasured: {one.unmeasured}")
    return table


@dataclass(frozen=True, slots=True)
class Kept:
    """A workload's P99 on one partition, from the record. Rates count inferences.

    `p99_ms` is the median of the minutes that have enough answers for a P99, `worst_p99_ms` their maximum.
    `unmeasured` is the reason if no minute has enough.
    """

    workload: str
    partition: str
    minutes: int
    unmeasured: str | None
    planned_rps: float
    rate_rps: float | None
    failed: int
    predicted_p99_ms: float | None
    p99_ms: float | None
    worst_p99_ms: float | None
    slo_ms: float


def kept_table(kept: Sequence[Kept]) -> Table:
    """Return one line for each workload and partition."""
    table = table_of(
        "workload, partition, >minutes, >planned/s, >rate/s, >failed, >predicted P99 ms, >P99 ms, "
        ">worst minute, >SLO ms, ~"
    )
    for row in kept:
        table.add_row(
            row.workload,
            row.partition,
            str(row.minutes),
            number(row.planned_rps),
            number(row.rate_rps),
            str(row.failed),
            number(row.predicted_p99_ms),
            number(row.p99_ms),
            number(row.worst_p99_ms),
            f"{row.slo_ms:g}",
            "" if row.unmeasured is None else f"unmeasured: {row.unmeasured}",
        )
    return table


def observed_document(seen: Sequence[Seen], unseen: Sequence[Unseen], kept: Sequence[Kept]) -> dict[str, Any]:
    """Return both tables as JSON."""
    return {
        "promises": kept,
        "observed": [
            {
                "partition": row.partition,
                "model": row.observation.model,
                "batch": row.batch,
                "batches": row.observation.batches,
                "busy": row.busy,
                "neighbours": list(row.observation.neighbours),
                "predicted_ms": row.observation.predicted_ms,
                "observed_ms": row.observation.observed_ms,
                "unmeasured": row.unmeasured,
                "refused": row.refused,
            }
            for row in seen
        ],
        "unseen": unseen,
    }


KINDS = {
    "alone": "alone",
    "measured": "measured side by side",
    "batch": "new batch size",
    "share": "share outside",
    "pair": "new pair",
    "model": "new beside others",
}
"""How the kinds of points (`latency.fitting.kinds`) are called in a table."""

WORST_MODELS = 10
"""Shown for each latency model; the JSON has all."""


def validation_table(document: Mapping[str, Any]) -> Table:
    """Return the JSON of `ctl validate` as a table: all, the worst models and each kind, by latency model."""
    table = table_of("latency model, of, >n, >mean error %, >bias %, >95th %, >largest %, >below upper 95 %")
    for latency_model, assessed in document["latency_models"].items():
        kinds = {KINDS[kind]: figures for kind, figures in assessed["per_kind"].items()}
        worst = sorted(assessed["per_model"].items(), key=lambda one: -one[1]["mape_percent"])[:WORST_MODELS]
        for model, figures in {"all": assessed["overall"], **dict(worst), **kinds}.items():
            table.add_row(
                latency_model if model == "all" else "",
                model,
                str(figures["n"]),
                *(
                    f"{figures[key]:.2f}"
                    for key in ("mape_percent", "bias_percent", "p95_percent", "max_percent")
                ),
                f"{figures['coverage_95_percent']:.1f}",
            )
    return table
