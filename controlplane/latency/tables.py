"""Times alone of all models of a device in one table: one look-up answers for all slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.latency.protocol import FloatArray, IntArray
from controlplane.latency.surface import LOWEST_PERCENT, Surface


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
        """Bring all surfaces to the union of their knots, where each stays exact."""
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
        """Execution and cycle time in ms and the expected relative deviation; shapes as given."""
        largest = self.largest[model]
        # Outside the table time stays proportional: to 1 / share below its knots, to the batch above them.
        beyond = np.maximum(batch / largest, 1.0) * np.maximum(LOWEST_PERCENT / percent, 1.0)
        inside = np.minimum(batch, largest)
        row = np.minimum(inside.astype(np.int64), np.maximum(largest - 1, 1))
        part = (inside - row)[..., None]
        log_percent = np.maximum(np.log(percent), self.log_percent[0])
        width = self.log_percent.size
        knot = np.minimum(self.log_percent.searchsorted(log_percent, side="right") - 1, width - 2)
        left = self.log_percent[knot]
        x = ((log_percent - left) / (self.log_percent[knot + 1] - left))[..., None]
        # One gather for the four corners: a small question costs numpy's overhead, not its arithmetic.
        corner = (model * self.values.shape[1] + row - 1) * width + knot
        above = corner + width * (row < largest)
        found = self.values.reshape(-1, 3)[np.stack([corner, corner + 1, above, above + 1])]
        low, high = (1.0 - x) * found[0] + x * found[1], (1.0 - x) * found[2] + x * found[3]
        small, large = np.exp(low[..., :2]), np.exp(high[..., :2])
        time = beyond[..., None] * (small + part * (large - small))
        deviation = (1.0 - part[..., 0]) * low[..., 2] + part[..., 0] * high[..., 2]
        return time[..., 0], time[..., 1], deviation
