"""Times of batches as gpulet's scheduler asks for them: of one model, alone or beside others, with a margin.

Plain lists: the scheduler asks for single numbers, some thousand of them for a plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from controlplane.latency.models.gpulet import Gpulet as GpuletModel
from controlplane.latency.protocol import Slots

SIZES = (20, 40, 50, 60, 80, 100)
"""The shares in percent that a gpulet may have; with each its complement."""
MARGIN = 1.1
"""The authors' latency ratio: every time counts as a tenth longer."""

Runs = tuple[int, int, int]
"""A model, its share in percent and its batch."""


@dataclass(frozen=True, slots=True)
class Times:
    """`solo`, `l2` and `dram` by model, size and batch - 1, `host` by model and batch - 1; ms, parts of 1."""

    solo: list[list[list[float]]]
    host: list[list[float]]
    l2: list[list[list[float]]]
    dram: list[list[list[float]]]
    constants: tuple[float, ...]
    sizes: tuple[int, ...] = SIZES
    margin: float = MARGIN

    @staticmethod
    def of(model: GpuletModel, largest_batch: int, margin: float = MARGIN) -> Times:
        """Tabulate what the model says, for batches of 1 to `largest_batch`."""
        models = np.arange(len(model.models))[:, None, None]
        percent = np.array(SIZES, dtype=np.float64)[None, :, None]
        batch = np.arange(1.0, largest_batch + 1)[None, None, :]
        shape = np.broadcast_shapes(models.shape, percent.shape, batch.shape)
        flat = [np.broadcast_to(a, shape).reshape(-1, 1) for a in (models, batch, percent)]
        slots = Slots.of(*flat)
        solo, _, _ = model.solo.tables.look_up(slots.model, slots.batch, slots.percent)
        l2, dram = model.factor.utilisation.at(slots, solo)
        solo, l2, dram = (a.reshape(shape).tolist() for a in (solo, l2, dram))
        host = model.host_ms[:, :largest_batch].tolist()
        return Times(solo, host, l2, dram, tuple(model.factor.constants.tolist()), margin=margin)

    def alone(self, model: int, percent: int, batch: int) -> float:
        """Time of a batch without neighbours, with the margin."""
        solo = self.solo[model][self.sizes.index(percent)][batch - 1]
        return self.margin * (solo + self.host[model][batch - 1])

    def beside(self, own: Runs, others: Iterable[Runs]) -> float:
        """Time of a batch beside the neighbour that slows it most, with the margin."""
        model, percent, batch = own
        at = self.sizes.index(percent)
        solo = self.solo[model][at][batch - 1]
        slowest = max((self._factor(own, other) for other in others), default=1.0)
        return self.margin * (solo * slowest + self.host[model][batch - 1])

    def _factor(self, own: Runs, other: Runs) -> float:
        """Interference of one neighbour, at least 1."""
        (m1, p1, b1), (m2, p2, b2) = own, other
        i, j = self.sizes.index(p1), self.sizes.index(p2)
        c1, c2, c3, c4, c5 = self.constants
        l2 = c1 * self.l2[m1][i][b1 - 1] + c2 * self.l2[m2][j][b2 - 1]
        dram = c3 * self.dram[m1][i][b1 - 1] + c4 * self.dram[m2][j][b2 - 1]
        return max(l2 + dram + c5, 1.0)
