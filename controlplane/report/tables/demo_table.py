"""The tables of `ctl demo`: measured beside predicted, and a forced violation with its repair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from controlplane.report.tables.terminal import table_of
from controlplane.report.words import number


@dataclass(frozen=True, slots=True)
class DemoRow:
    """One workload. The execution times are of a full batch with all neighbours busy."""

    workload: str
    model: str
    percent: float
    batch: int
    predicted_ms: float
    observed_ms: float
    rate_rps: float
    answered: int
    failed: int
    p50_ms: float
    p99_ms: float
    slo_ms: float


def demo_table(rows: Sequence[DemoRow]) -> Table:
    """Return one line for each workload."""
    table = table_of(
        "workload, model, >share %, >batch, >predicted ms, >observed ms, >error %, >rate/s, "
        ">answered, >failed, >P50 ms, >P99 ms, >SLO ms, holds"
    )
    for row in rows:
        table.add_row(
            row.workload,
            row.model,
            f"{row.percent:g}",
            str(row.batch),
            f"{row.predicted_ms:.1f}",
            f"{row.observed_ms:.1f}",
            f"{round(100 * (row.predicted_ms / row.observed_ms - 1)):+d}",
            f"{row.rate_rps:g}",
            str(row.answered),
            str(row.failed),
            f"{row.p50_ms:.1f}",
            f"{row.p99_ms:.1f}",
            f"{row.slo_ms:g}",
            "yes" if row.p99_ms <= row.slo_ms else "no",
        )
    return table


@dataclass(frozen=True, slots=True)
class Span:
    """The requests that were due within one period; seconds count from the cut."""

    name: str
    begin_s: float
    end_s: float
    requests: int
    failed: int
    p50_ms: float | None
    p99_ms: float | None


@dataclass(frozen=True, slots=True)
class Cut:
    """A server is slowed down, as by a cut of its share to `percent`."""

    at_s: float
    percent: float


@dataclass(frozen=True, slots=True)
class Repair:
    """The guard's repair; seconds count from the first cut, to `cut_percent`.

    `served_s` is the first answer to a request that was due after the redirect. At `guarded_s` a new shadow
    was ready. `deeper` is the cut that the redirect followed where the first one left the server enough.
    """

    workload: str
    slo_ms: float
    percent: float
    cut_percent: float
    redirected_s: float
    reason: str
    served_s: float
    guarded_s: float
    shadow: str
    spans: tuple[Span, ...]
    deeper: Cut | None = None


def repair_lines(repair: Repair) -> Sequence[str]:
    """Return the events in order."""
    cuts = [
        f"   0.00 s  {repair.workload}: its server slowed down, as by a cut of its share from "
        f"{repair.percent:g} % to {repair.cut_percent:.1f} %"
    ]
    if repair.deeper is not None:
        cuts.append(f"{repair.deeper.at_s:7.2f} s  slowed down further, to {repair.deeper.percent:.1f} %")
    return (
        *cuts,
        f"{repair.redirected_s:7.2f} s  the guard redirected: {repair.reason}",
        f"{repair.served_s:7.2f} s  the shadow's first answer",
        f"{repair.guarded_s:7.2f} s  the next shadow stood by: {repair.shadow}",
    )


def repair_table(repair: Repair) -> Table:
    """Return one line for each period."""
    table = table_of("requests due, >from s, >to s, >requests, >failed, >P50 ms, >P99 ms, >SLO ms, holds")
    for span in repair.spans:
        holds = "–" if span.p99_ms is None else "yes" if span.p99_ms <= repair.slo_ms else "no"
        table.add_row(
            span.name,
            f"{span.begin_s:.1f}",
            f"{span.end_s:.1f}",
            str(span.requests),
            str(span.failed),
            number(span.p50_ms),
            number(span.p99_ms),
            f"{repair.slo_ms:g}",
            holds,
        )
    return table
