"""Latency models by name.

A model's module has `fit(profiles, device)`, and `SOLO_FORM` where it has a form of its own for a model
alone: `ctl profile` writes the form's error into the profile. Models of other distributions are entry points
of the group `trisect.latency_models`, each such a `fit`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Protocol, cast

from controlplane.domain.device import Device, DeviceLimits
from controlplane.domain.errors import InputError
from controlplane.domain.profile import Counters, Profile
from controlplane.extensions import Named, Registry
from controlplane.latency.adjusted import with_request_times, without_guesses
from controlplane.latency.fitting.points import FitCurve
from controlplane.latency.protocol import LatencyModel

Fit = Callable[[Mapping[str, Profile], Device], LatencyModel]

DEFAULT = "ours"
FITS = Registry(
    "trisect.latency_models",
    {
        DEFAULT: Named("controlplane.latency.default", "fit"),
        "igniter": Named("controlplane.papers.igniter.latency", "fit"),
        "igniter-refit": Named("controlplane.papers.igniter.latency", "refit"),
        "inss": Named("controlplane.papers.inss.latency", "fit"),
        "latency-aware": Named("controlplane.papers.latency_aware.latency", "fit"),
        "gpulet": Named("controlplane.papers.gpulet.latency", "fit"),
    },
)
_RECORDER = "controlplane.papers.igniter.profiling"
_latest: dict[tuple[str, str], tuple[object, LatencyModel]] = {}
"""The latest model by its name and device, and what it was fitted on: a fit takes half of a small search."""


def build(name: str, device: Device, profiles: Mapping[str, Profile]) -> LatencyModel:
    """Fit the latency model called `name` on the profiles of one device.

    Raises InputError for an unknown name, with the nearest known one, and for profiles that do not suffice.
    """
    if name not in FITS:
        raise InputError(f"there is no latency model {name!r}; {FITS.hint(name)}", field="latency")
    fit: Fit = FITS[name].load()
    of, latest = (fit, device, dict(profiles)), _latest.get((name, device.name))
    if latest is None or latest[0] != of:
        fitted = with_request_times(without_guesses(fit(profiles, device), profiles), profiles)
        latest = _latest[name, device.name] = of, fitted
    return latest[1]


def solo_forms() -> dict[str, FitCurve]:
    """Return the forms of models alone that latency models have of their own."""
    # Backwards by name, as in the profiles that were written so far.
    modules = {name: import_module(FITS[name].module) for name in sorted(FITS.names(), reverse=True)}
    return {name: module.SOLO_FORM for name, module in modules.items() if hasattr(module, "SOLO_FORM")}


class Recorder(Protocol):
    """What new profiles and device files hold of the published coefficients: a GPU's, and each model's."""

    def described(self, device: Device, limits: DeviceLimits) -> Device:
        """Return the device with what its driver says."""

    def with_fits(self, profile: Profile, counters: Counters, device: Device, *, counted: bool) -> Profile:
        """Return the profile with its coefficients; not `counted`: without the counters of this device."""

    def with_interference(
        self, device: Device, profiles: Mapping[str, Profile]
    ) -> tuple[Device, dict[str, Profile]]:
        """Return device and profiles with the coefficients of interference."""


def recorder() -> Recorder:
    """Import what writes the published coefficients."""
    return cast(Recorder, import_module(_RECORDER))
