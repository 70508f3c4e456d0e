"""Files of GPUs that are in no catalogue: DIR/<device>.json, beside the folder of the device's profiles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from controlplane.domain.device import Device, ShareGrid, ShareKind
from controlplane.files.documents import SCHEMA_VERSION, Strict, read
from controlplane.files.writing import write_json


class _Device(Strict):
    schema_version: int
    name: str
    share_kind: Annotated[ShareKind, Field(strict=False)]
    minimum_percent: float
    step_percent: float
    memory_mb: Annotated[float, Field(gt=0)] | None = None
    hardware: dict[str, float] = Field(default_factory=dict)


def device_path(directory: Path, name: str) -> Path:
    """Return the file of a device type."""
    return directory / f"{name}.json"


def read_device(directory: Path, name: str) -> Device | None:
    """Read a device type; None if it has no file. Raises InputError with file, line and field."""
    path = device_path(directory, name)
    if not path.is_file():
        return None
    document = read(path)
    parsed = document.parse(_Device)
    if parsed.name != name:
        document.fail(f"is {parsed.name!r}, and the file stands where {name!r} belongs", ("name",))
    with document.at():
        return Device(
            name=name,
            share_kind=parsed.share_kind,
            grid=ShareGrid(parsed.minimum_percent, parsed.step_percent),
            memory_mb=parsed.memory_mb,
            hardware=parsed.hardware,
        )


def write_device(directory: Path, device: Device) -> Path:
    """Write a device type's file; return its path."""
    path = device_path(directory, device.name)
    document = {
        "schema_version": SCHEMA_VERSION,
        "name": device.name,
        "share_kind": str(device.share_kind),
        "minimum_percent": device.grid.minimum_percent,
        "step_percent": device.grid.step_percent,
        "memory_mb": device.memory_mb,
        "hardware": dict(device.hardware),
    }
    write_json(path, document)
    return path
