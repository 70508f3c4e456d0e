"""Predicted against observed on a running fleet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from controlplane.latency.calibration import Seen


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


def observed_document(seen: Sequence[Seen]) -> dict[str, Any]:
    """The same as JSON."""
    return {
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
        ]
    }
