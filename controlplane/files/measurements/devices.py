"""Files of GPUs that are in no catalogue: DIR/<device>.json, beside the folder of the device's profiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from controlplane.domain.device import Device, ShareGrid, ShareKind
from controlplane.domain.units import Name, Percent, Positive
from controlplane.files.documents import read, versioned
from controlplane.files.writing import write_json


@dataclass(frozen=True, slots=True)
class _Device:
    name: Name
    share_kind: ShareKind
    minimum_percent: Percent
    step_percent: Percent
    memory_mb: Positive | None = None
    hardware: Mapping[str, float] = field(default_factory=dict)


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
    grid = ShareGrid(parsed.minimum_percent, parsed.step_percent)
    return Device(name, parsed.share_kind, grid, parsed.memory_mb, hardware=parsed.hardware)


def write_device(directory: Path, device: Device) -> Path:
    """Write a device type's file; return its path."""
    path = device_path(directory, device.name)
    grid = device.grid
    written = _Device(
        device.name,
        device.share_kind,
        grid.minimum_percent,
        grid.step_percent,
        device.memory_mb,
        device.hardware,
    )
    write_json(path, versioned(written))
    return path
