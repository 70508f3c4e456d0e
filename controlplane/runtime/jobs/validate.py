"""Comparison of latency models with measurements."""

from __future__ import annotations

from pathlib import Path

from controlplane.domain.errors import InputError
from controlplane.files import catalogue
from controlplane.files.measurements.elsewhere import read_alone
from controlplane.files.measurements.profiles import read_profile, read_profiles
from controlplane.files.mistakes import nearest
from controlplane.latency import evaluate
from controlplane.runtime.devices import known_device


def validation(device: str | None, profile: Path | None) -> dict[str, object]:
    """Return the JSON of `ctl validate`. Raises InputError for bad files and options."""
    if (device is None) == (profile is None):
        raise InputError("give one of --catalogue DEVICE, --profile FILE and --fleet NAME")
    if profile is not None:
        measured = read_profile(profile)
        return evaluate.leave_points_out(known_device(measured.device), measured)
    assert device is not None
    if device not in catalogue.devices():
        raise InputError(
            f"{device!r} is not built in{nearest(device, catalogue.devices())}", field="--catalogue"
        )
    known, profiles = known_device(device), catalogue.profiles(device)
    return evaluate.built_in(known, profiles)


def measured_alone(profiles: Path, measured: Path) -> dict[str, object]:
    """Return the JSON of `ctl validate --measured`: the profiles of a folder beside a CSV of other points.

    Raises InputError for bad files, and for profiles of no or of several devices.
    """
    kinds = sorted({path.parent.name for path in profiles.glob("*/*.json")})
    found = {kind: own for kind in kinds if (own := read_profiles(profiles, kind))}
    if len(found) != 1:
        said = f"of {', '.join(found)}: one device at a time" if found else "of no device"
        raise InputError(f"{profiles} has profiles {said}", field="--profiles")
    ((kind, own),) = found.items()
    rows = read_alone(measured, own)
    try:
        return evaluate.against_alone(known_device(kind, profiles), own, rows)
    except InputError as error:
        raise InputError(error.problem, file=str(measured)) from None
