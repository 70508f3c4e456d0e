"""Solo times of all models of a device in one table, and their pressure on what is not partitioned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.domain.profile import Profile
from controlplane.latency.fitting.surface import LOWEST_PERCENT, Surface
from controlplane.latency.protocol import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Tables:
    """The surfaces of all models on common knots, for one look-up of all slots.

    `log_percent` (K,); `largest` (models,) batches tabulated; `values` (models, batches, K, 3) holds
    ln of execution and cycle, and the deviation; rows above a model's largest batch repeat its last.
    """

    log_percent: FloatArray
    largest: IntArray
    values: FloatArray

    @staticmethod
    def of(execution: Sequence[Surface], cycle: Sequence[Surface]) -> Tables:
        """Tabulate all surfaces at the union of their knots, where each stays exact."""
        percent = np.unique(np.concatenate([s.percent for s in (*execution, *cycle)]))
        height = max(s.time_ms.shape[0] for s in execution)
        log_percent = np.log(percent)

        def resampled(own: Surface, values: FloatArray) -> FloatArray:
            rows = np.stack([np.interp(log_percent, np.log(own.percent), row) for row in values])
            return np.pad(rows, ((0, height - rows.shape[0]), (0, 0)), mode="edge")

        layers = [
            np.stack(
                [
                    (time := resampled(e, np.log(e.time_ms))),
                    np.minimum(resampled(c, np.log(c.time_ms)), time),
                    resampled(e, e.deviation),
                ],
                axis=-1,
            )
            for e, c in zip(execution, cycle, strict=True)
        ]
        return Tables(log_percent, np.array([e.time_ms.shape[0] for e in execution]), np.stack(layers))

    def look_up(
        self, model: IntArray, batch: FloatArray, percent: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return execution and cycle time in ms and the expected relative deviation; shapes as given."""
        most = self.largest[model]
        # Outside the table time stays proportional: to 1 / share below its knots, to the batch above them.
        beyond = np.maximum(batch / most, 1.0) * np.maximum(LOWEST_PERCENT / percent, 1.0)
        inside = np.minimum(batch, most)
        row = np.minimum(inside.astype(np.int64), np.maximum(most - 1, 1))
        part = inside - row
        knot, x = cell_of(self.log_percent, np.maximum(np.log(percent), self.log_percent[0]))
        x = x[..., None]
        small, large = (
            (1.0 - x) * self.values[model, at, knot] + x * self.values[model, at, knot + 1]
            for at in (row - 1, np.minimum(row, most - 1))
        )
        low, high = np.exp(small[..., :2]), np.exp(large[..., :2])
        times = beyond[..., None] * (low + part[..., None] * (high - low))
        deviation = (1.0 - part) * small[..., 2] + part * large[..., 2]
        return times[..., 0], times[..., 1], deviation


@dataclass(frozen=True, slots=True)
class Pressure:
    """Utilisation of what MPS does not partition: the L2 cache and the memory bandwidth.

    iGniter's utilisation model: a line in the model's throughput, c = alpha 1000 b / t + beta, in percent of
    the GPU's peak (its `alpha_cacheutil`, `beta_cacheutil`; `alpha_dramutil`, `beta_dramutil` likewise for
    DRAM). A model without these coefficients uses the cache in proportion to its throughput: 100 % at its own
    peak.

    Linear terms of all models, shape (models, 2): slope in percent per inference/ms, offset in percent.
    """

    l2: FloatArray
    dram: FloatArray

    @staticmethod
    def of(profiles: Sequence[Profile], surfaces: Sequence[Surface]) -> Pressure:
        """Read the profiles' coefficients; DRAM is 0 where only the cache's were measured."""
        l2, dram = np.zeros((len(profiles), 2)), np.zeros((len(profiles), 2))
        for m, (profile, surface) in enumerate(zip(profiles, surfaces, strict=True)):
            fit = profile.fits.get("igniter", {})
            if "alpha_cacheutil" in fit:
                # The paper's slope is per inference/s.
                l2[m] = 1000.0 * fit["alpha_cacheutil"], fit.get("beta_cacheutil", 0.0)
            else:
                l2[m] = 100.0 / surface.peak_rate(), 0.0
            if "alpha_dramutil" in fit:
                dram[m] = 1000.0 * fit["alpha_dramutil"], fit.get("beta_dramutil", 0.0)
        return Pressure(l2, dram)

    def at(self, model: IntArray, batch: FloatArray, time_ms: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the (L2, DRAM) utilisation in percent at this throughput; shapes as given."""
        rate = batch / time_ms
        l2 = np.clip(self.l2[model, 0] * rate + self.l2[model, 1], 0.0, 100.0)
        dram = np.clip(self.dram[model, 0] * rate + self.dram[model, 1], 0.0, 100.0)
        return l2, dram


def cell_of(knots: FloatArray, value: FloatArray) -> tuple[IntArray, FloatArray]:
    """The cell that holds each value, or the nearest; where in it: 0 at its lower knot, 1 at its upper."""
    cell = np.clip(np.searchsorted(knots, value, side="right") - 1, 0, knots.size - 2)
    return cell, (value - knots[cell]) / (knots[cell + 1] - knots[cell])
