"""Reading and writing of profile files, DIR/<device>/<model>.json.

An unfinished measurement is in <model>.partial.json, in the same format.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from controlplane.domain.errors import InputError
from controlplane.domain.profile import Profile
from controlplane.files.documents import read, versioned
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
        for field, said, expected in (
            ("device", profile.device, device),
            ("model", profile.model, path.name.removesuffix(".json")),
        ):
            if said != expected:
                read(path).fail(f"is {said!r}, and the file stands where {expected!r} belongs", (field,))
        found[profile.model] = profile
    return found


def read_partial(directory: Path, device: str, model: str) -> Profile | None:
    """Read an unfinished measurement; None if there is none. Raises InputError as `read_profile` does."""
    path = partial_path(directory, device, model)
    return read_profile(path) if path.exists() else None


def write_partial(directory: Path, profile: Profile) -> None:
    """Write an unfinished measurement."""
    write_json(partial_path(directory, profile.device, profile.model), profile_document(profile))


def write_profile(directory: Path, profile: Profile, *, finished: bool = True) -> Path:
    """Replace a profile; once it is `finished`, remove its unfinished measurement. Return the file's path."""
    path = profile_path(directory, profile.device, profile.model)
    write_json(path, profile_document(profile))
    if finished:
        partial_path(directory, profile.device, profile.model).unlink(missing_ok=True)
    return path


def profile_document(profile: Profile) -> dict[str, Any]:
    """Return a profile as the JSON of its file."""
    return versioned(profile)
