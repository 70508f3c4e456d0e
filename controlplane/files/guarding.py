"""The controller's state for other processes: a small file, replaced at every change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from controlplane.domain.errors import InputError
from controlplane.domain.observation import Guarding
from controlplane.files.documents import read_state, versioned
from controlplane.files.writing import to_json, write_derived


@dataclass(frozen=True, slots=True)
class _Partitions:
    partitions: tuple[Guarding, ...]


def write_guarding(path: Path, partitions: Sequence[Guarding]) -> None:
    """Replace the file. Raises EngineError where the disk refuses."""
    write_derived(path, to_json(versioned(_Partitions(tuple(partitions)))))


def read_guarding(path: Path) -> tuple[Guarding, ...]:
    """Read the file; nothing where there is none or a power cut damaged it: the next change renews it."""
    try:
        return (read_state(path, _Partitions) or _Partitions(())).partitions
    except InputError:
        return ()
