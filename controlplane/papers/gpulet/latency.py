"""gpulet's model: a measured table L(b, p), interpolated, and a linear interference model, both directions.

    factor_1 = c1 L2_1 + c2 L2_2 + c3 DRAM_1 + c4 DRAM_2 + c5

with the utilisation of the slowed model (1) and of its neighbour (2), as parts of the GPU's peak: as measured
for batches on the whole GPU and scaled by the share, else as `Pressure` has it. The constants that the
authors published are for a 2080 Ti; they are fitted anew on a device with co-location points. The authors
place at most two models on a GPU; with more, the neighbours' utilisations add up. Their code slows one model
of a pair; here each is slowed by the others. The time in which a host assembles a batch is added; no
neighbour slows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.domain.device import Device
from controlplane.domain.profile import Profile
from controlplane.latency.adjusted import Adjusted, Change
from controlplane.latency.fitting.points import Points
from controlplane.latency.fitting.published import (
    Colocated,
    Published,
    fit_by_pressure,
    neighbours,
    sum_of_others,
)
from controlplane.latency.fitting.tables import Pressure, Tables
from controlplane.latency.protocol import BoolArray, FloatArray, Slots

NAME = "gpulet"
AUTHORS_CONSTANTS = np.array([0.112908, 0.715960, 0.354866, 0.088204, 0.895369])
"""(c1, c2, c3, c4, c5) of the published 2080 Ti fit."""
FEWEST_POINTS = 10
RIDGE = 1e-3


@dataclass(frozen=True, slots=True)
class MeasuredTable:
    """L(b, p): linear in the batch between measured ones, linear in 1 / p between measured shares.

    `inverse_percent` ascends; `time_ms` (shares, batches) holds each share's line over `batch`.
    """

    inverse_percent: FloatArray
    batch: FloatArray
    time_ms: FloatArray

    @staticmethod
    def fit(points: Points) -> MeasuredTable:
        """Interpolate each share over all measured batches.

        A share with one batch gets the curve of the share with the most batches, scaled through its point.
        """
        shares = np.unique(points.percent)
        sizes = np.array([np.count_nonzero(points.percent == p) for p in shares])
        batch = np.unique(points.batch)
        fullest = points.percent == shares[int(sizes.argmax())]
        shape = _line(batch, points.batch[fullest], points.time_ms[fullest])
        lines = []
        for share in shares:
            own = points.percent == share
            if np.count_nonzero(own) > 1:
                lines.append(_line(batch, points.batch[own], points.time_ms[own]))
            else:
                scale = points.time_ms[own][0] / np.interp(points.batch[own][0], batch, shape)
                lines.append(shape * scale)
        return MeasuredTable(1.0 / shares[::-1], batch, np.stack(lines[::-1]))

    def at(self, percent: FloatArray, batch: FloatArray) -> FloatArray:
        """Return times in ms; beyond the measured shares the outermost segment continues, within bounds."""
        inverse = 1.0 / percent
        along = np.stack([_line(batch, self.batch, line) for line in self.time_ms])
        if len(along) == 1:
            time: FloatArray = along[0] * inverse / self.inverse_percent[0]
            return time
        left = np.clip(np.searchsorted(self.inverse_percent, inverse, side="right") - 1, 0, len(along) - 2)
        low, high = self.inverse_percent[left], self.inverse_percent[left + 1]
        part = (inverse - low) / (high - low)
        column = np.arange(batch.size)
        value = (1.0 - part) * along[left, column] + part * along[left + 1, column]
        # A larger share helps at most in proportion, and never slows.
        nearest = np.where(part < 0.5, left, left + 1)
        ratio = inverse / self.inverse_percent[nearest]
        base = along[nearest, column]
        inside = (part >= 0) & (part <= 1)
        bounded = np.clip(value, base * np.minimum(ratio, 1.0), base * np.maximum(ratio, 1.0))
        return np.where(inside, value, bounded)


@dataclass(frozen=True, slots=True)
class Utilisation:
    """What models take of the L2 cache's and the memory's bandwidth, as parts of the GPU's peak.

    `measured` (models,) are those with a row in `l2` and `dram` (models, batches), at 100 %; `pressure`
    speaks for the others.
    """

    pressure: Pressure
    measured: BoolArray
    l2: FloatArray
    dram: FloatArray

    @staticmethod
    def of(profiles: Sequence[Profile], pressure: Pressure) -> Utilisation:
        """Interpolate the measured batch sizes linearly."""
        l2, dram = (_per_batch(profiles, field) / 100.0 for field in ("l2_pct", "dram_pct"))
        return Utilisation(pressure, np.any(l2 > 0, axis=1), l2, dram)

    def at(self, slots: Slots, alone_ms: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return (L2, DRAM) of each slot, of the shape of `slots`."""
        batch = np.clip(slots.batch.astype(np.int64), 1, self.l2.shape[1]) - 1
        share = slots.percent / 100.0
        known = self.measured[slots.model]
        modelled = self.pressure.at(slots.model, slots.batch, alone_ms)
        l2, dram = (
            np.where(known, table[slots.model, batch] * share, other / 100.0)
            for table, other in zip((self.l2, self.dram), modelled, strict=True)
        )
        return l2, dram


@dataclass(frozen=True, slots=True)
class LinearFactor:
    """The interference factor; `constants` is (c1..c5), utilisations as parts of 1."""

    utilisation: Utilisation
    constants: FloatArray

    @staticmethod
    def fit(utilisation: Utilisation, tables: Tables, colocated: Colocated) -> LinearFactor:
        """Fit with a ridge towards the authors' constants; fewer than ten points leave these as they are."""
        if colocated.measured_ms.size < FEWEST_POINTS:
            return LinearFactor(utilisation, AUTHORS_CONSTANTS)
        slots = colocated.slots
        alone, _, _ = tables.look_up(slots.model, slots.batch, slots.percent)
        columns = _factor_columns(utilisation, slots, alone)[:, 0, :]
        target = colocated.measured_ms / alone[:, 0] - columns @ AUTHORS_CONSTANTS
        system = np.vstack([columns, RIDGE * np.sqrt(len(columns)) * np.eye(5)])
        moved, *_ = np.linalg.lstsq(system, np.concatenate([target, np.zeros(5)]), rcond=None)
        return LinearFactor(utilisation, AUTHORS_CONSTANTS + moved)

    def parts(self, slots: Slots, alone_ms: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return what the (L2, DRAM) of each slot add to its own factor, and to a neighbour's; (..., 2)."""
        used = np.stack(self.utilisation.at(slots, alone_ms), axis=-1)
        return used * self.constants[[0, 2]], used * self.constants[[1, 3]]

    def slowdown(self, slots: Slots, alone_ms: FloatArray) -> FloatArray:
        """See `Contention.slowdown`; a factor below 1 counts as 1."""
        factor = _factor_columns(self.utilisation, slots, alone_ms) @ self.constants
        return np.where(neighbours(slots) > 0, np.maximum(factor - 1.0, 0.0), 0.0)


@dataclass(frozen=True, slots=True)
class Measured(Published):
    """Measured tables and the linear factor."""

    contention: LinearFactor


@dataclass(frozen=True, slots=True)
class Gpulet(Adjusted):
    """The whole model: `host_ms` (models, batches) is added to each time."""

    base: Measured
    host_ms: FloatArray

    def change(self, slots: Slots) -> Change:
        """Return the addition of what a host takes to assemble a batch."""
        batch = np.clip(slots.batch.astype(np.int64), 1, self.host_ms.shape[1]) - 1
        host = np.where(slots.mask, self.host_ms[slots.model, batch], 0.0)
        return lambda time_ms: time_ms + host


def fit(profiles: Mapping[str, Profile], device: Device) -> Gpulet:
    """Fit all models of one device. Raises InputError (see `check_profiles`)."""
    listed = list(profiles.values())

    def contention(pressure: Pressure, tables: Tables, colocated: Colocated) -> LinearFactor:
        return LinearFactor.fit(Utilisation.of(listed, pressure), tables, colocated)

    solo = fit_by_pressure(Measured, NAME, profiles, device, MeasuredTable.fit, contention)
    return Gpulet(solo, _per_batch(listed, "host_ms"))


def _per_batch(profiles: Sequence[Profile], field: str) -> FloatArray:
    """Return `field.1`, `field.2`, ... of gpulet's fits, (models, batches), 0 where there are none."""
    largest = max(profile.largest_batch for profile in profiles)
    table = np.zeros((len(profiles), largest))
    for m, profile in enumerate(profiles):
        named = profile.fits.get(NAME, {}).items()
        known = {int(key.rpartition(".")[2]): value for key, value in named if key.startswith(f"{field}.")}
        if known:
            sizes = sorted(known)
            table[m] = np.interp(np.arange(1, largest + 1), sizes, [known[size] for size in sizes])
    return table


def _line(batch: FloatArray, measured: FloatArray, time_ms: FloatArray) -> FloatArray:
    """Interpolate linearly; above the points in proportion to the batch, below them the first time."""
    inside = np.interp(batch, measured, time_ms)
    value: FloatArray = inside * np.maximum(batch / measured[-1], 1.0)
    return value


def _factor_columns(utilisation: Utilisation, slots: Slots, alone_ms: FloatArray) -> FloatArray:
    l2, dram = utilisation.at(slots, alone_ms)
    others = sum_of_others(slots, l2), sum_of_others(slots, dram)
    return np.stack([l2, others[0], dram, others[1], np.ones_like(l2)], axis=-1)


SOLO_FORM = MeasuredTable.fit
