"""Predicted against observed on a running fleet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from controlplane.latency.calibration import Seen
from controlplane.report.plan_table import number


def observed_table(seen: Sequence[Seen]) -> Table:
    """One line a partition and batch size."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("partition", no_wrap=True)
    for name in ("batch", "batches", "busy %", "predicted ms", "observed ms", "error %"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("beside")
    table.add_column("teaches")
    for row in seen:
        told = row.observation
        table.add_row(
            row.partition, str(row.batch), str(told.batches), f"{100 * row.busy:.0f}",
            f"{told.predicted_ms:.1f}", f"{told.observed_ms:.1f}",
            f"{100 * (told.predicted_ms / told.observed_ms - 1):+.0f}", ", ".join(told.neighbours) or "–",
            "yes" if row.refused is None else f"no: {row.refused}",
        )  # fmt: skip
    return table


@dataclass(frozen=True, slots=True)
class Kept:
    """How a workload's promise was kept on one partition, from the record. `p99_ms`: the median minute's."""

    workload: str
    partition: str
    minutes: int
    planned_rps: float
    rate_rps: float
    failed: int
    predicted_p99_ms: float | None
    p99_ms: float | None
    worst_p99_ms: float | None
    slo_ms: float


def kept_table(kept: Sequence[Kept]) -> Table:
    """One line a workload and partition."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("workload", "partition"):
        table.add_column(name, no_wrap=True)
    for name in (
        "minutes",
        "planned/s",
        "rate/s",
        "failed",
        "predicted P99 ms",
        "P99 ms",
        "worst minute",
        "SLO ms",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for row in kept:
        table.add_row(
            row.workload, row.partition, str(row.minutes), number(row.planned_rps), number(row.rate_rps),
            str(row.failed), number(row.predicted_p99_ms), number(row.p99_ms), number(row.worst_p99_ms),
            f"{row.slo_ms:g}",
        )  # fmt: skip
    return table


def observed_document(seen: Sequence[Seen], kept: Sequence[Kept]) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "promises": [asdict(row) for row in kept],
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
                "refused": row.refused,
            }
            for row in seen
        ],
    }
