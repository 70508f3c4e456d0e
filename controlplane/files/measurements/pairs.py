"""Measured pairs from a CSV: model1, model2, batch1, batch2, pct1, pct2, latency1_ms, latency2_ms."""

from __future__ import annotations

from pathlib import Path

from controlplane.domain.errors import InputError
from controlplane.files.measurements.elsewhere import Row, rows
from controlplane.latency.evaluate import Pair, Tenant

_COLUMNS = ("model1", "batch1", "pct1", "latency1_ms", "model2", "batch2", "pct2", "latency2_ms")


def read_pairs(path: Path) -> list[Pair]:
    """Read the rows of a file. Raises InputError naming file, line and column."""
    needs = f"it needs {', '.join(_COLUMNS)}"
    return [(_tenant(row, "1"), _tenant(row, "2")) for row in rows(path, _COLUMNS, needs)]


def _tenant(row: Row, which: str) -> Tenant:
    batch, percent = row.number(f"batch{which}"), row.number(f"pct{which}")
    latency_ms = row.number(f"latency{which}_ms")
    try:
        return Tenant(row.values[f"model{which}"], int(batch), percent, latency_ms)
    except InputError as error:
        column = "pct" if error.field == "percent" else error.field
        raise row.error(error.problem, f"{column}{which}") from None
