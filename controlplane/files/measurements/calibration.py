"""The file DIR/calibration.json beside the profiles: factors between predicted and observed times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from controlplane.domain.profile import Factor
from controlplane.files.documents import SCHEMA_VERSION, Strict, read
from controlplane.files.writing import write_json

NAME = "calibration.json"


class _Factor(Strict):
    model: str
    device: str
    neighbours: list[str]
    factor: float
    batches: int
    at_s: float


class _Calibration(Strict):
    schema_version: int
    factors: list[_Factor]


def read_calibration(directory: Path) -> tuple[Factor, ...]:
    """Return the factors of the profiles in `directory`; none where there is no file.

    Raises InputError naming file and line for a broken file.
    """
    path = directory / NAME
    if not path.exists():
        return ()
    document = read(path)
    factors = []
    for i, parsed in enumerate(document.parse(_Calibration).factors):
        with document.at("factors", i):
            factors.append(Factor(**{**parsed.model_dump(), "neighbours": tuple(parsed.neighbours)}))
    return tuple(factors)


def write_calibration(directory: Path, factors: Iterable[Factor]) -> Path:
    """Replace the file in one step; return its path."""
    path = directory / NAME
    document = {"schema_version": SCHEMA_VERSION, "factors": [asdict(f) for f in factors]}
    write_json(path, document)
    return path
