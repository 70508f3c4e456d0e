"""What `ctl demo` measured, beside what was predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table


@dataclass(frozen=True, slots=True)
class DemoRow:
    """One workload. Execution latencies are of a full batch with all neighbours busy."""

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
    """One line a workload."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, right in (
        ("workload", False), ("model", False), ("share %", True), ("batch", True), ("predicted ms", True),
        ("observed ms", True), ("error %", True), ("rate/s", True), ("client", False), ("answered", True),
        ("failed", True), ("P50 ms", True), ("P99 ms", True), ("SLO ms", True), ("holds", False),
    ):  # fmt: skip
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
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
