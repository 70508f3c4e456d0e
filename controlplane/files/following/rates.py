"""The rates of a fleet's workloads for other commands: a small file, replaced every few seconds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from controlplane.domain.observation import RateSeen
from controlplane.files.documents import read_state
from controlplane.files.writing import fields_of, to_compact_json, write_derived

_VERSION = 1


@dataclass(frozen=True, slots=True)
class RatesSeen:
    """The rates at one time (seconds since the epoch).

    `following` says whether the plan follows them, and otherwise why not.
    """

    at_s: float
    following: str
    rates: tuple[RateSeen, ...]


def write_rates(path: Path, seen: RatesSeen) -> None:
    """Replace the file. Raises EngineError where the disk refuses."""
    write_derived(path, to_compact_json({"schema_version": _VERSION, **fields_of(seen)}))


def read_rates(path: Path) -> RatesSeen | None:
    """Read the file; None where there is none. Raises InputError if it is broken."""
    return read_state(path, RatesSeen)
