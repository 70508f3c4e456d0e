"""InSS's model of the GPU execution latency (its section 4.1).

    t = t_d + t_s + t_r + t_f
    t_d = p_d b / B, t_f = p_f b / B                       transfers over the bus
    t_s = (o_s + int) n_k, int = alpha_s n + beta_s        scheduling; int is 0 for a workload alone
    t_r = LWR(b, rho) (1 + alpha_cache sum_v l_v)          running time, slowed by the others' L2 utilisation
    l = alpha_u rho + beta_u                               L2 utilisation, a line in the share

LWR is locally weighted regression (Cleveland and Devlin) on the measured running times, here in logarithms,
where the surface is nearly a plane. alpha_cache comes from co-location points; coefficients that a profile or
device does not have count as no effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from controlplane.domain.device import Device
from controlplane.domain.profile import Profile
from controlplane.latency.fitting.answers import check_profiles
from controlplane.latency.fitting.points import Points
from controlplane.latency.fitting.published import (
    Colocated,
    Published,
    assemble,
    execution_points,
    neighbours,
    sum_of_others,
)
from controlplane.latency.fitting.surface import Surface
from controlplane.latency.fitting.tables import Pressure, Tables
from controlplane.latency.protocol import FloatArray, IntArray, Slots

NAME = "inss"
NEAREST = 8
RIDGE = 1e-4


@dataclass(frozen=True, slots=True)
class LocalRegression:
    """LWR: a plane in (1, ln b, ln rho), fitted around each predicted point with tricube weights."""

    points: Points

    def at(self, percent: FloatArray, batch: FloatArray) -> FloatArray:
        """Time in ms; the bandwidth reaches the eighth nearest point."""
        known = np.stack([np.log(self.points.batch), np.log(self.points.percent)], axis=-1)
        wanted = np.stack([np.log(batch), np.log(percent)], axis=-1)
        spread = np.maximum(known.std(axis=0), 0.1)
        distance = np.linalg.norm((wanted[:, None, :] - known) / spread, axis=-1)
        nearest = min(NEAREST, len(known))
        reach = 1.001 * np.maximum(np.partition(distance, nearest - 1, axis=1)[:, nearest - 1], 0.1)
        weight = np.maximum(1.0 - (distance / reach[:, None]) ** 3, 0.0) ** 3
        offset = known - wanted[:, None, :]
        design = np.concatenate([np.ones((*offset.shape[:2], 1)), offset], axis=-1)
        weighted = np.swapaxes(design, 1, 2) * weight[:, None, :]
        normal = weighted @ design
        # A weak prior (proportional to the batch, inversely to the share) keeps far points solvable.
        pull = RIDGE * np.diag([0.0, 1.0, 1.0])
        right = weighted @ np.log(self.points.time_ms) + pull @ np.array([0.0, 1.0, -1.0])
        solution = np.linalg.solve(normal + pull, right[..., None])[..., 0]
        time: FloatArray = np.exp(solution[:, 0])
        return time


@dataclass(frozen=True, slots=True)
class Coefficients:
    """All models' coefficients, shape (models,): ms an item, ms, ms, per percent; a line in the share."""

    transfer_ms: FloatArray
    kernels: FloatArray
    alone_schedule_ms: FloatArray
    cache: FloatArray
    utilisation: FloatArray
    schedule: tuple[float, float]

    @staticmethod
    def of(profiles: Sequence[Profile], device: Device, pressure: Pressure) -> Coefficients:
        """Take the profiles' and the device's coefficients; absent ones are 0."""
        fits = [p.fits.get("igniter", {}) for p in profiles]
        load, feedback, kernels, own, cache = (
            np.array([f.get(name, 0.0) for f in fits])
            for name in ("d_load", "d_feedback", "n_k", "k_sch", "alpha_cache")
        )
        hardware = device.hardware
        return Coefficients(
            transfer_ms=(load + feedback) / hardware.get("B_pcie", np.inf),
            kernels=kernels,
            alone_schedule_ms=own * kernels,
            cache=cache,
            utilisation=np.array([_utilisation_line(p, m, pressure) for m, p in enumerate(profiles)]),
            schedule=(hardware.get("alpha_sch", 0.0), hardware.get("beta_sch", 0.0)),
        )

    def fixed_ms(self, model: IntArray | int, batch: FloatArray) -> FloatArray:
        """Return t_d + t_f + o_s n_k of a workload without neighbours: all but the running time."""
        fixed: FloatArray = self.transfer_ms[model] * batch + self.alone_schedule_ms[model]
        return fixed


@dataclass(frozen=True, slots=True)
class SharedCache:
    """Interference by the L2 cache, on the running time, and by the scheduler, for each kernel."""

    coefficients: Coefficients

    def slowdown(self, slots: Slots, alone_ms: FloatArray) -> FloatArray:
        """See `Contention.slowdown`."""
        own = self.coefficients
        running = np.maximum(alone_ms - own.fixed_ms(slots.model, slots.batch), 0.0)
        delay = running * own.cache[slots.model] * self.pressed(slots) + self.scheduling_ms(slots)
        return np.where(neighbours(slots) > 0, delay / alone_ms, 0.0)

    def pressed(self, slots: Slots) -> FloatArray:
        """Return the neighbours' L2 utilisation, in percent."""
        line = self.coefficients.utilisation[slots.model]
        return sum_of_others(slots, np.clip(line[..., 0] * slots.percent + line[..., 1], 0.0, 100.0))

    def scheduling_ms(self, slots: Slots) -> FloatArray:
        """Return int n_k, never negative."""
        alpha, beta = self.coefficients.schedule
        count = neighbours(slots) + 1.0
        delay: FloatArray = np.maximum(alpha * count + beta, 0.0) * self.coefficients.kernels[slots.model]
        return np.where(count > 1, delay, 0.0)


@dataclass(frozen=True, slots=True)
class Inss(Published):
    """Tables of LWR, transfers and scheduling alone, slowed by `SharedCache`."""

    contention: SharedCache


def fit(profiles: Mapping[str, Profile], device: Device) -> Inss:
    """Fit all models of one device. Raises InputError (see `check_profiles`)."""
    check_profiles(profiles, device)
    listed = list(profiles.values())
    points = [execution_points(p.points) for p in listed]
    # Only the peak rates are needed: those of the whole GPU.
    rough = [
        Surface.of_curve(LocalRegression(q), np.array([100.0]), p.largest_batch)
        for q, p in zip(points, listed, strict=True)
    ]
    given = Coefficients.of(listed, device, Pressure.of(listed, rough))

    def contention(tables: Tables, _: Sequence[Surface], colocated: Colocated) -> SharedCache:
        return SharedCache(_with_cache(given, tables, colocated))

    forms = [partial(Running.fit, model=m, coefficients=given) for m in range(len(listed))]
    return assemble(Inss, NAME, profiles, device, forms, contention)


@dataclass(frozen=True, slots=True)
class Running:
    """The running time by LWR, plus transfers and scheduling."""

    local: LocalRegression
    model: int
    coefficients: Coefficients

    @staticmethod
    def fit(points: Points, model: int, coefficients: Coefficients) -> Running:
        """Fit LWR on the times without transfers; at least a tenth of each time is left."""
        fixed = coefficients.fixed_ms(model, points.batch)
        running = np.maximum(points.time_ms - fixed, 0.1 * points.time_ms)
        return Running(LocalRegression(Points(points.percent, points.batch, running)), model, coefficients)

    def at(self, percent: FloatArray, batch: FloatArray) -> FloatArray:
        """Time in ms; shapes (n,)."""
        return self.local.at(percent, batch) + self.coefficients.fixed_ms(self.model, batch)


def _utilisation_line(profile: Profile, model: int, pressure: Pressure) -> tuple[float, float]:
    """Return (alpha_u, beta_u): the profile's, or a line through the utilisation at its measured points."""
    own = profile.fits.get(NAME, {})
    if "alpha_u" in own:
        return own["alpha_u"], own.get("beta_u", 0.0)
    points = execution_points(profile.points)
    indices = np.full(points.batch.shape, model)
    l2, _ = pressure.at(indices, points.batch, points.time_ms)
    if np.unique(points.percent).size < 2:
        return 0.0, float(l2.mean())
    slope, offset = np.polyfit(points.percent, l2, 1)
    return float(slope), float(offset)


def _with_cache(given: Coefficients, tables: Tables, colocated: Colocated) -> Coefficients:
    """Fit alpha_cache of each model on its co-location points by least squares, at least 0."""
    slots = colocated.slots
    if not colocated.measured_ms.size:
        return given
    contention = SharedCache(given)
    alone, _, _ = tables.look_up(slots.model, slots.batch, slots.percent)
    first = slots.model[:, 0]
    running = np.maximum(alone - given.fixed_ms(slots.model, slots.batch), 0.0)[:, 0]
    feature = running * contention.pressed(slots)[:, 0] / colocated.measured_ms
    target = 1.0 - (alone + contention.scheduling_ms(slots))[:, 0] / colocated.measured_ms
    cache = given.cache.copy()
    for model in np.unique(first):
        own = first == model
        strength = float(feature[own] @ feature[own])
        if strength > 0:
            cache[model] = max(float(feature[own] @ target[own]) / strength, 0.0)
    return replace(given, cache=cache)


SOLO_FORM = LocalRegression
