"""The learning curve of `ctl train` as CSV, one row a check."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from controlplane.files.writing import write_text
from controlplane.papers.inss.training.curve import Check


def write_curve(path: Path, curve: Sequence[Check]) -> None:
    """Replace the file in one step. Raises EngineError where the disk refuses."""
    text = io.StringIO()
    table = csv.DictWriter(text, [f.name for f in fields(Check)], lineterminator="\n")
    table.writeheader()
    table.writerows({name: f"{value:.6g}" for name, value in asdict(check).items()} for check in curve)
    write_text(path, text.getvalue())
