"""The controller's state for other processes: a small file, replaced at every change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from controlplane.domain.errors import InputError
from controlplane.domain.observation import Guarding
from controlplane.files.documents import SCHEMA_VERSION, State, read
from controlplane.files.writing import to_json, write_derived


class _Guarding(State):
    partition: str
    phase: str
    since_s: float
    standby: str | None
    standby_ready: bool
    failed_starts: int
    breaker_open: bool
    retry_at_s: float | None
    owned_gpu: str | None = None
    owned_percent: float | None = None


class _File(State):
    schema_version: int
    partitions: list[_Guarding]


def write_guarding(path: Path, partitions: Sequence[Guarding]) -> None:
    """Replace the file. Raises EngineError where the disk refuses."""
    content = {"schema_version": SCHEMA_VERSION, "partitions": [asdict(p) for p in partitions]}
    write_derived(path, to_json(content))


def read_guarding(path: Path) -> tuple[Guarding, ...]:
    """Read the file; nothing where there is none or a power cut damaged it: the next change renews it."""
    try:
        parsed = read(path).parse(_File)
    except InputError:
        return ()
    return tuple(Guarding(**partition.model_dump()) for partition in parsed.partitions)
