"""The frame of the published models: a table of solo times and a formula for interference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import numpy as np

from controlplane.domain.device import Device
from controlplane.domain.profile import Measurement, Profile
from controlplane.latency.fitting.answers import (
    PowerModel,
    check_profiles,
    check_question,
    make_estimate,
    normal_margin,
)
from controlplane.latency.fitting.points import FitCurve, Points, left_out_error
from controlplane.latency.fitting.surface import Surface, knots
from controlplane.latency.fitting.tables import Pressure, Tables
from controlplane.latency.protocol import Estimate, FloatArray, IntArray, Slots


class Contention(Protocol):
    """A model's formula for interference."""

    def slowdown(self, slots: Slots, alone_ms: FloatArray) -> FloatArray:
        """Return the relative slowdown of each slot, 0 without neighbours; shape (GPUs, slots)."""


@dataclass(frozen=True, slots=True)
class Published:
    """Solo times from `tables`, slowed by `contention`.

    The upper quantile assumes normal errors: `alone_error` (models,) is the mean relative error on points
    left out of the fit, `shared_error` that of the co-location points.
    """

    name: str
    models: tuple[str, ...]
    tables: Tables
    contention: Contention
    alone_error: FloatArray
    shared_error: float
    power: PowerModel

    def estimate(self, slots: Slots, quantile: float = 0.95) -> Estimate:
        """See `LatencyModel.estimate`."""
        check_question(slots, len(self.models), quantile)
        execution, cycle, _ = self.tables.look_up(slots.model, slots.batch, slots.percent)
        slowdown = self.contention.slowdown(slots, execution)
        shared = slots.mask.sum(axis=1, keepdims=True) > 1
        alone = self.alone_error[slots.model]
        margin = normal_margin(np.where(shared, np.hypot(alone, self.shared_error), alone), quantile)
        longer = 1.0 + slowdown
        return make_estimate(slots, execution * longer, cycle * longer, margin, self.power)


@dataclass(frozen=True, slots=True)
class Colocated:
    """Co-location points of all models as slots; slot 0 is the measured model."""

    slots: Slots
    measured_ms: FloatArray

    @staticmethod
    def of(profiles: Mapping[str, Profile]) -> Colocated:
        """Take the points whose neighbours all have a profile; shape (points, 1 + most neighbours)."""
        index = {name: i for i, name in enumerate(profiles)}
        usable = [
            (name, point)
            for name, profile in profiles.items()
            for point in profile.colocation
            if point.neighbours and all(n.model in index for n in point.neighbours)
        ]
        width = 1 + max((len(point.neighbours) for _, point in usable), default=1)
        shape = (len(usable), width)
        model, batch = np.zeros(shape, dtype=np.int64), np.ones(shape)
        percent, mask = np.full(shape, 100.0), np.zeros(shape, dtype=np.bool_)
        for row, (name, point) in enumerate(usable):
            model[row, 0], batch[row, 0], percent[row, 0] = index[name], point.batch, point.percent
            mask[row, : 1 + len(point.neighbours)] = True
            for column, other in enumerate(point.neighbours, start=1):
                model[row, column] = index[other.model]
                batch[row, column], percent[row, column] = other.batch, other.percent
        measured = np.array([point.execution_ms for _, point in usable])
        return Colocated(Slots.of(model, batch, percent, mask), measured)

    def error(self, tables: Tables, contention: Contention) -> float:
        """Return the mean absolute relative error of a fitted model on these points, 0 without points."""
        if not self.measured_ms.size:
            return 0.0
        alone, _, _ = tables.look_up(self.slots.model, self.slots.batch, self.slots.percent)
        predicted = (alone * (1.0 + contention.slowdown(self.slots, alone)))[:, 0]
        return float(np.mean(np.abs(predicted / self.measured_ms - 1.0)))


P = TypeVar("P", bound=Published)


def assemble(
    kind: type[P],
    name: str,
    profiles: Mapping[str, Profile],
    device: Device,
    forms: Sequence[FitCurve],
    contention: Callable[[Tables, Sequence[Surface], Colocated], Contention],
) -> P:
    """Fit a `kind`: `forms`, one for each model, on solo times, the contention on the co-location points."""
    listed = list(profiles.values())
    points = [execution_points(p.points) for p in listed]
    surfaces, tables = solo_tables(listed, [partial(_tabulated, form) for form in forms])
    colocated = Colocated.of(profiles)
    fitted = contention(tables, surfaces, colocated)
    return kind(
        name=name,
        models=tuple(profiles),
        tables=tables,
        contention=fitted,
        alone_error=np.array(
            [
                p.holdout_error[name] if name in p.holdout_error else left_out_error(f, q)
                for p, f, q in zip(listed, forms, points, strict=True)
            ]
        ),
        shared_error=colocated.error(tables, fitted),
        power=PowerModel.of(listed, device),
    )


def fit_by_pressure(
    kind: type[P],
    name: str,
    profiles: Mapping[str, Profile],
    device: Device,
    form: FitCurve,
    contention: Callable[[Pressure, Tables, Colocated], Contention],
) -> P:
    """Fit one form for all models, and a contention by their pressure on cache and memory.

    Raises InputError (see `check_profiles`).
    """
    check_profiles(profiles, device)
    listed = list(profiles.values())

    def fitted(tables: Tables, surfaces: Sequence[Surface], colocated: Colocated) -> Contention:
        return contention(Pressure.of(listed, surfaces), tables, colocated)

    return assemble(kind, name, profiles, device, [form] * len(listed), fitted)


def solo_tables(
    profiles: Sequence[Profile], fits: Sequence[Callable[[Points, int], Surface]]
) -> tuple[list[Surface], Tables]:
    """Return each model's surface of execution times, and a table of all with the measured cycles."""
    execution, cycle = [], []
    for fit, profile in zip(fits, profiles, strict=True):
        execution.append(fit(execution_points(profile.points), profile.largest_batch))
        measured = cycle_points(profile)
        cycle.append(execution[-1] if measured is None else fit(measured, profile.largest_batch))
    return execution, Tables.of(execution, cycle)


def execution_points(measured: Sequence[Measurement]) -> Points:
    """Return execution times at the lowest concurrency of each point: a higher one adds waiting."""
    lowest: dict[tuple[float, int], int] = {}
    for p in measured:
        key = (p.percent, p.batch)
        lowest[key] = min(p.concurrency, lowest.get(key, p.concurrency))
    quiet = [p for p in measured if p.concurrency == lowest[p.percent, p.batch]]
    return Points.of([p.percent for p in quiet], [p.batch for p in quiet], [p.execution_ms for p in quiet])


def cycle_points(profile: Profile) -> Points | None:
    """Return the time between the ends of batches at saturation, from each point's best capacity.

    None where no capacity was measured.
    """
    best: dict[tuple[float, int], float] = {}
    for p in profile.points:
        if p.capacity_rps is not None:
            key = (p.percent, p.batch)
            best[key] = max(p.capacity_rps, best.get(key, 0.0))
    if not best:
        return None
    cycle_ms = [1000.0 * batch / rate for (_, batch), rate in best.items()]
    return Points.of([k[0] for k in best], [k[1] for k in best], cycle_ms)


def sum_of_others(slots: Slots, value: FloatArray) -> FloatArray:
    """Return, for each slot, the sum of `value` over its neighbours; shape (GPUs, slots)."""
    present = np.where(slots.mask, value, 0.0)
    return np.where(slots.mask, present.sum(axis=1, keepdims=True) - present, 0.0)


def neighbours(slots: Slots) -> IntArray:
    """Return the number of neighbours of each slot, 0 for empty ones; shape (GPUs, slots)."""
    return np.where(slots.mask, slots.mask.sum(axis=1, keepdims=True) - 1, 0)


def _tabulated(form: FitCurve, points: Points, largest_batch: int) -> Surface:
    return Surface.of_curve(form(points), knots(points.percent), largest_batch)
