"""Latency models by the names that plans and `--latency` call them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches

from controlplane.domain.device import Device
from controlplane.domain.errors import InputError
from controlplane.domain.profile import Profile
from controlplane.latency import gpulet, igniter, igniter_refit, inss, latency_aware, ours
from controlplane.latency.protocol import LatencyModel

Fit = Callable[[Mapping[str, Profile], Device], LatencyModel]

FITS: Mapping[str, Fit] = {
    ours.NAME: ours.fit,
    igniter.NAME: igniter.fit,
    igniter_refit.NAME: igniter_refit.fit,
    inss.NAME: inss.fit,
    latency_aware.NAME: latency_aware.fit,
    gpulet.NAME: gpulet.fit,
}
DEFAULT = ours.NAME


def build(name: str, device: Device, profiles: Mapping[str, Profile]) -> LatencyModel:
    """Fit the latency model called `name` on the profiles of one device.

    Raises InputError for a name that is none, with the nearest that is one, and for profiles it cannot be
    fitted on.
    """
    fit = FITS.get(name)
    if fit is None:
        near = get_close_matches(name, FITS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(FITS)}"
        raise InputError(f"no latency model is called {name}; {hint}", field="latency")
    return fit(profiles, device)
