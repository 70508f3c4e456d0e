"""What a measured model came to, in one line."""

from __future__ import annotations

from pathlib import Path

from controlplane.report.plan_table import counted


def written_line(path: Path, points: int, seconds: float, error: float | None) -> str:
    """The file, what it holds and how long that took; `error`: Eq 11's on points left out (0.05 is 5 %)."""
    told = "" if error is None else f", Eq 11 errs by {100 * error:.1f} % on points left out"
    return f"{path}: {counted(points, 'point')} written after {seconds:.0f} s{told}"
