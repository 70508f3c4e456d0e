"""Measured pairs from a CSV: model1, model2, batch1, batch2, pct1, pct2, latency1_ms, latency2_ms."""

from __future__ import annotations

import csv
from pathlib import Path

from controlplane.domain.errors import InputError
from controlplane.files.documents import read_text
from controlplane.latency.evaluate import Pair, Tenant

_COLUMNS = ("model", "batch", "pct", "latency")


def read_pairs(path: Path) -> list[Pair]:
    """Read the rows of a file. Raises InputError naming file, line and column."""
    file = str(path)
    reader = csv.DictReader(read_text(path).splitlines())
    wanted = [f"{c}{i}" + ("_ms" if c == "latency" else "") for i in (1, 2) for c in _COLUMNS]
    for column in wanted:
        if column not in (reader.fieldnames or ()):
            raise InputError(
                f"has no such column; it needs {', '.join(wanted)}", file=file, line=1, field=column
            )
    pairs = []
    for line, row in enumerate(reader, start=2):
        pairs.append((_tenant(row, "1", file, line), _tenant(row, "2", file, line)))
    return pairs


def _tenant(row: dict[str, str], which: str, file: str, line: int) -> Tenant:
    def number(column: str) -> float:
        try:
            return float(row[column])
        except (TypeError, ValueError):
            raise InputError(
                f"must be a number, not {row[column]!r}", file=file, line=line, field=column
            ) from None

    try:
        return Tenant(
            row[f"model{which}"],
            int(number(f"batch{which}")),
            number(f"pct{which}"),
            number(f"latency{which}_ms"),
        )
    except InputError as error:
        if error.file:
            raise
        column = "pct" if error.field == "percent" else error.field
        raise InputError(error.problem, file=file, line=line, field=f"{column}{which}") from None
