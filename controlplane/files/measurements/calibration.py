"""The file DIR/calibration.json beside the profiles: factors between predicted and observed times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from controlplane.domain.profile import Factor
from controlplane.files.documents import read, versioned
from controlplane.files.writing import write_json

NAME = "calibration.json"


@dataclass(frozen=True, slots=True)
class _Calibration:
    factors: tuple[Factor, ...]


def read_calibration(directory: Path) -> tuple[Factor, ...]:
    """Return the factors of the profiles in `directory`; none where there is no file.

    Raises InputError naming file and line for a broken file.
    """
    path = directory / NAME
    return read(path).parse(_Calibration).factors if path.exists() else ()


def write_calibration(directory: Path, factors: Iterable[Factor]) -> Path:
    """Replace the file in one step; return its path."""
    path = directory / NAME
    write_json(path, versioned(_Calibration(tuple(factors))))
    return path
