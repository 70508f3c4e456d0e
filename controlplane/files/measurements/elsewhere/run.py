"""One batch measured by another tool, and what is common to the formats."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from controlplane.domain.errors import InputError
from controlplane.domain.units import Checked, Count, Positive
from controlplane.files.documents import read_text

_P99_OF_NORMAL = 2.326
"""Standard deviations between the median and the P99."""


@dataclass(frozen=True, slots=True)
class Run(Checked):
    """One batch, one request at a time.

    `execution_ms` is the batch's time in the server where `split`, else the whole latency of its request.
    `frontend_ms` is what a request spends outside queue and execution, `spread_ms` the standard deviation of
    a latency; None where the format does not say.
    """

    batch: Count
    execution_ms: Positive
    split: bool = True
    frontend_ms: float | None = None
    spread_ms: float | None = None
    max_batch: int | None = None


def spread_of(p50_ms: float, p99_ms: float) -> float:
    """Return the standard deviation of a normal with these percentiles."""
    return max(0.0, p99_ms - p50_ms) / _P99_OF_NORMAL


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a CSV."""

    file: str
    line: int
    values: Mapping[str, str]

    def number(self, column: str) -> float:
        """Return a column's value. Raises InputError, naming file, line and column, if it is no number."""
        text = self.values.get(column) or ""
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < 0:
            raise self.error(f"must be a number of at least 0, not {text!r}", column)
        return value

    def optional(self, column: str) -> float | None:
        """Return a column's value; None where the file has no such column or no value there."""
        return self.number(column) if self.values.get(column) else None

    def error(self, problem: str, column: str | None = None) -> InputError:
        """Return the error about a value."""
        return InputError(problem, file=self.file, line=self.line, field=column)


def rows(path: Path, needed: Sequence[str], made_by: str) -> Iterator[Row]:
    """Yield the lines of the first table of a CSV.

    An empty line ends the table, since perf_analyzer adds others below it. Raises InputError for a file
    without the columns `needed`; `made_by` says how it is made.
    """
    file, lines = str(path), read_text(path).splitlines()
    table = lines[: next((i for i, line in enumerate(lines) if not line.strip()), len(lines))]
    reader = csv.DictReader(table)
    for column in needed:
        if column not in (reader.fieldnames or ()):
            raise InputError(f"has no such column; {made_by}", file=file, line=1, field=column)
    found = False
    for values in reader:
        found = True
        yield Row(file, reader.line_num, values)
    if not found:
        raise InputError(f"has no measurement; {made_by}", file=file)
