"""The table of `ctl demo`: measured beside predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from controlplane.report.tables.terminal import table_of


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
    client: str
    answered: int
    failed: int
    p50_ms: float
    p99_ms: float
    slo_ms: float


def demo_table(rows: Sequence[DemoRow]) -> Table:
    """Return one line for each workload."""
    table = table_of(
        "workload, model, >share %, >batch, >predicted ms, >observed ms, >error %, >rate/s, client, "
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
            row.client,
            str(row.answered),
            str(row.failed),
            f"{row.p50_ms:.1f}",
            f"{row.p99_ms:.1f}",
            f"{row.slo_ms:g}",
            "yes" if row.p99_ms <= row.slo_ms else "no",
        )
    return table
