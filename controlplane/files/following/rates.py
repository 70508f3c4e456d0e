"""The rates of a fleet's workloads for other commands: a small file, replaced every few seconds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from controlplane.domain.observation import RateSeen
from controlplane.files.documents import State, read
from controlplane.files.writing import to_json, write_derived

_VERSION = 1


@dataclass(frozen=True, slots=True)
class RatesSeen:
    """The rates at one time (seconds since the epoch).

    `following` says whether the plan follows them, and otherwise why not.
    """

    at_s: float
    following: str
    rates: tuple[RateSeen, ...]


class _Rate(State):
    workload: str
    planned_rps: float
    level_rps: float | None
    lower_rps: float | None
    upper_rps: float | None
    dispersion: float
    bursty: bool


class _File(State):
    schema_version: Literal[1]
    at_s: float
    following: str
    rates: list[_Rate]


def write_rates(path: Path, seen: RatesSeen) -> None:
    """Replace the file. Raises EngineError where the disk refuses."""
    write_derived(path, to_json({"schema_version": _VERSION, **asdict(seen)}))


def read_rates(path: Path) -> RatesSeen | None:
    """Read the file; None where there is none. Raises InputError if it is broken."""
    if not path.exists():
        return None
    parsed = read(path).parse(_File)
    return RatesSeen(parsed.at_s, parsed.following, tuple(RateSeen(**r.model_dump()) for r in parsed.rates))
