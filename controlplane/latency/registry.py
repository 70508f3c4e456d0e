"""Latency models by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib import import_module

from controlplane.domain.device import Device
from controlplane.domain.errors import InputError
from controlplane.domain.profile import Profile
from controlplane.latency.one_share import without_guesses
from controlplane.latency.protocol import LatencyModel
from controlplane.latency.request_times import with_request_times

Fit = Callable[[Mapping[str, Profile], Device], LatencyModel]


def _fit_of(module: str) -> Fit:
    """Return the `fit` of a module of `models`, which is imported at the first call: each costs time."""

    def fit(profiles: Mapping[str, Profile], device: Device) -> LatencyModel:
        fitted: LatencyModel = import_module(f"controlplane.latency.models.{module}").fit(profiles, device)
        return fitted

    return fit


FITS: Mapping[str, Fit] = {
    "ours": _fit_of("ours"),
    "igniter": _fit_of("igniter"),
    "igniter-refit": _fit_of("igniter_refit"),
    "inss": _fit_of("inss"),
    "latency-aware": _fit_of("latency_aware"),
    "gpulet": _fit_of("gpulet"),
}
DEFAULT = "ours"


def build(name: str, device: Device, profiles: Mapping[str, Profile]) -> LatencyModel:
    """Fit the latency model called `name` on the profiles of one device.

    Raises InputError for an unknown name, with the nearest known one, and for profiles that do not suffice.
    """
    fit = FITS.get(name)
    if fit is None:
        near = get_close_matches(name, FITS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(FITS)}"
        raise InputError(f"there is no latency model {name!r}; {hint}", field="latency")
    return with_request_times(without_guesses(fit(profiles, device), profiles), profiles)
