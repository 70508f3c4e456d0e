"""iGniter's model with Eq 11, alpha_cache and Delta_sch fitted on the device's own points.

k1..k5 come from the solo points, by relative residuals: the paper's absolute residuals leave errors of 3-12 %
at small batches, which plans use. alpha_cache of each model and Delta_sch (Eq 6, one for the device) come
from the co-location points; both are linear in Eq 1, so one non-negative least squares finds them. Transfers,
power and clocks keep the published coefficients, and so do alpha_cache and Delta_sch without co-location
points.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from controlplane.domain.device import Device
from controlplane.domain.profile import Measurement, Profile
from controlplane.latency.fitting.answers import PowerModel, check_profiles
from controlplane.latency.fitting.nonnegative import non_negative_fit
from controlplane.latency.fitting.published import Colocated
from controlplane.latency.models.igniter import NAME as PUBLISHED
from controlplane.latency.models.igniter import Coefficients, Curve, Hardware, Igniter, fit_curve
from controlplane.latency.protocol import FloatArray

NAME = "igniter-refit"
LEAST_PART = 0.1
"""The least part of a measured time that transfers and scheduling leave; else they are of another device."""


def fit(profiles: Mapping[str, Profile], device: Device) -> Igniter:
    """Fit all models of one device. Raises InputError as `check_profiles` and `fit_curve` do."""
    check_profiles(profiles, device)
    listed = list(profiles.values())
    hardware = Hardware.of(device)
    curves = [active_curve(p, hardware) for p in listed]
    coefficients = Coefficients.of(
        [{**p.fits.get(PUBLISHED, {}), **c.coefficients} for p, c in zip(listed, curves, strict=True)]
    )
    model = Igniter(
        models=tuple(profiles),
        coefficients=coefficients,
        hardware=hardware,
        alone_error=np.array([c.holdout_error for c in curves]),
        shared_error=0.0,
        power=PowerModel.of(listed, device),
        name=NAME,
    )
    colocated = Colocated.of(profiles)
    if not colocated.measured_ms.size:
        return model
    model = _with_interference(model, colocated)
    error = float(np.mean(np.abs(_times(model, colocated) / colocated.measured_ms - 1.0)))
    return replace(model, shared_error=error)


def active_curve(profile: Profile, hardware: Hardware) -> Curve:
    """Fit Eq 11 on the measured times without the transfers and scheduling that the profile has.

    Raises InputError as `fit_curve` does.
    """
    known = profile.fits.get(PUBLISHED, {})
    item_ms = (known.get("d_load", 0.0) + known.get("d_feedback", 0.0)) / hardware.pcie_bytes_per_ms
    fixed_ms = known.get("k_sch", 0.0) * known.get("n_k", 0.0)

    def active(point: Measurement) -> Measurement:
        left = point.execution_ms - item_ms * point.batch - fixed_ms
        return replace(point, execution_ms=max(left, LEAST_PART * point.execution_ms))

    return fit_curve([active(p) for p in profile.points], profile.model)


def _with_interference(model: Igniter, colocated: Colocated) -> Igniter:
    """Fit alpha_cache (models,) and Delta_sch for two workloads; the growth with more is `_changed`'s."""
    count = len(model.models)
    quiet = _changed(model, np.zeros(count), 0.0)
    base = _times(quiet, colocated)
    per_cache = _times(_changed(model, np.ones(count), 0.0), colocated) - base
    per_delay = _times(_changed(model, np.zeros(count), 1.0), colocated) - base
    own = colocated.slots.model[:, 0]
    columns = np.column_stack([np.where(own == m, per_cache, 0.0) for m in range(count)] + [per_delay])
    measured = colocated.measured_ms
    scale = np.maximum(np.linalg.norm(columns / measured[:, None], axis=0), 1e-12)
    solution = non_negative_fit(columns / measured[:, None] / scale, 1.0 - base / measured)
    found = solution / scale
    seen = np.isin(np.arange(count), own)
    return _changed(model, np.where(seen, found[:-1], model.coefficients.alpha_cache), float(found[-1]))


def _changed(model: Igniter, alpha_cache: FloatArray, delay: float) -> Igniter:
    """Return the model with this alpha_cache and Delta_sch(2) = `delay`.

    Delta_sch grows with further workloads as the device's alpha_sch says, else as with the second one.
    """
    hardware = model.hardware
    growth = hardware.alpha_sch or delay
    return replace(
        model,
        coefficients=replace(model.coefficients, alpha_cache=alpha_cache),
        hardware=replace(hardware, alpha_sch=growth, beta_sch=delay - 2.0 * growth),
    )


def _times(model: Igniter, colocated: Colocated) -> FloatArray:
    time: FloatArray = model.times(colocated.slots)[0][:, 0]
    return time
