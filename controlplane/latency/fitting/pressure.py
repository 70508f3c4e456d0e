"""Utilisation of what MPS does not partition: the L2 cache and the memory bandwidth.

iGniter's utilisation model: a line in the model's throughput, c = alpha 1000 b / t + beta, in percent of the
GPU's peak (its `alpha_cacheutil`, `beta_cacheutil`; `alpha_dramutil`, `beta_dramutil` likewise for DRAM). A
model without these coefficients uses the cache in proportion to its throughput: 100 % at its own peak.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.domain.profile import Profile
from controlplane.latency.fitting.surface import Surface
from controlplane.latency.protocol import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Pressure:
    """Linear terms of all models, shape (models, 2): slope in percent per inference/ms, offset in percent."""

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
