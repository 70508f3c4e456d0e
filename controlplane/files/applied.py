"""The record of the models that were pinned with a fleet's plan, and with the plan before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from controlplane.files.content import Seen
from controlplane.files.documents import SCHEMA_VERSION, read_state
from controlplane.files.pinned import Pin
from controlplane.files.writing import to_compact_json, write_text


@dataclass(frozen=True, slots=True)
class Applied:
    """The pinned models of a plan, which is given by its hash, by name."""

    plan: str
    models: Mapping[str, Pin]

    def same_as(self, other: Applied | None) -> bool:
        """Return whether servers of the two serve the same."""
        return other is not None and self.plan == other.plan and self.repositories == other.repositories

    @property
    def repositories(self) -> dict[str, str]:
        """The pinned copies by model."""
        return {model: pin.repository for model, pin in self.models.items()}

    @property
    def files(self) -> dict[str, Seen]:
        """All files that were read, by path."""
        return {path: seen for pin in self.models.values() for path, seen in pin.files.items()}


@dataclass(frozen=True, slots=True)
class Record:
    """What was pinned with a fleet's present plan and with the previous one."""

    applied: Applied | None = None
    previous: Applied | None = None

    @property
    def known(self) -> dict[str, Seen]:
        """The digests of all files on record: the newest of each."""
        return {
            **(self.previous.files if self.previous is not None else {}),
            **(self.applied.files if self.applied is not None else {}),
        }

    def of_plan(self, plan: str) -> Applied | None:
        """Return what was pinned with a plan: an apply that was killed may have left one to be applied."""
        return next((one for one in (self.applied, self.previous) if one and one.plan == plan), None)


def read_record(path: Path) -> Record:
    """Read a record; an empty one where there is no file. Raises InputError for a damaged file."""
    return read_state(path, Record) or Record()


def write_record(path: Path, record: Record) -> None:
    """Replace a record. Raises EngineError where the disk refuses."""
    content = {"schema_version": SCHEMA_VERSION, "applied": record.applied, "previous": record.previous}
    write_text(path, to_compact_json(content))
