"""Files of measurements: DIR/<device>/<model>.json, DIR/<device>.json and DIR/calibration.json.

A profile's unfinished measurement is in <model>.partial.json, in the same format. A device's own file is for
GPUs that are in no catalogue. The calibration has factors between predicted and observed times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from controlplane.domain.device import Device, ShareGrid, ShareKind
from controlplane.domain.errors import InputError
from controlplane.domain.profile import Factor, Profile
from controlplane.domain.units import Name, Percent, Positive
from controlplane.files.documents import read, versioned
from controlplane.files.reading import exists
from controlplane.files.writing import write_json

_PARTIAL = ".partial.json"


def profile_path(directory: Path, device: str, model: str) -> Path:
    """Return the file of a model's profile on a device type."""
    return directory / device / f"{model}.json"


def partial_path(directory: Path, device: str, model: str) -> Path:
    """Return the file of an unfinished measurement."""
    return directory / device / f"{model}{_PARTIAL}"


def read_profile(path: Path) -> Profile:
    """Read a profile. Raises InputError with file, line and field of the first mistake."""
    document = read(path)
    profile = document.parse(Profile)
    if not profile.points:
        document.fail("needs at least 1 point", ("points",))
    seen: set[tuple[float, int, int]] = set()
    for i, point in enumerate(profile.points):
        key = (point.percent, point.batch, point.concurrency)
        if key in seen:
            document.fail("stands twice: same percent, batch and concurrency", ("points", i))
        seen.add(key)
    return profile


def read_profiles(directory: Path, device: str) -> dict[str, Profile]:
    """Return the profiles of one device type by model; empty if there are none.

    Raises InputError for a broken file, for one whose device or model is not that of its path, and where
    `directory` is a file.
    """
    if directory.exists() and not directory.is_dir():
        raise InputError("is not a directory of profiles", file=str(directory), field="--profiles")
    found = {}
    for path in sorted((directory / device).glob("*.json")):
        if path.name.endswith(_PARTIAL):
            continue
        profile = read_profile(path)
        for key, said, expected in (
            ("device", profile.device, device),
            ("model", profile.model, path.name.removesuffix(".json")),
        ):
            if said != expected:
                read(path).fail(f"is {said!r}, and the file stands where {expected!r} belongs", (key,))
        found[profile.model] = profile
    return found


def read_partial(directory: Path, device: str, model: str) -> Profile | None:
    """Read an unfinished measurement; None if there is none. Raises InputError as `read_profile` does."""
    path = partial_path(directory, device, model)
    return read_profile(path) if exists(path) else None


def write_partial(directory: Path, profile: Profile) -> None:
    """Write an unfinished measurement."""
    write_json(partial_path(directory, profile.device, profile.model), versioned(profile))


def write_profile(directory: Path, profile: Profile, *, finished: bool = True) -> Path:
    """Replace a profile; once it is `finished`, remove its unfinished measurement. Return the file's path."""
    path = profile_path(directory, profile.device, profile.model)
    write_json(path, versioned(profile))
    if finished:
        partial_path(directory, profile.device, profile.model).unlink(missing_ok=True)
    return path


NAME = "calibration.json"


@dataclass(frozen=True, slots=True)
class _Calibration:
    factors: tuple[Factor, ...]


def read_calibration(directory: Path) -> tuple[Factor, ...]:
    """Return the factors of the profiles in `directory`; none where there is no file.

    Raises InputError naming file and line for a broken file.
    """
    path = directory / NAME
    return read(path).parse(_Calibration).factors if exists(path) else ()


def write_calibration(directory: Path, factors: Iterable[Factor]) -> Path:
    """Replace the file in one step; return its path."""
    path = directory / NAME
    write_json(path, versioned(_Calibration(tuple(factors))))
    return path


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
