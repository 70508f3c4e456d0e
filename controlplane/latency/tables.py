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

    `log_percent` (K,); `largest` (models,) batches tabulated; `log_execution`, `log_cycle` and `deviation`
    (models, batches, K), rows above a model's largest batch repeat its last.
    """

    log_percent: FloatArray
    largest: IntArray
    log_execution: FloatArray
    log_cycle: FloatArray
    deviation: FloatArray

    @staticmethod
    def of(execution: Sequence[Surface], cycle: Sequence[Surface]) -> Tables:
        """Bring all surfaces to the union of their knots, where each stays exact."""
        percent = np.unique(np.concatenate([s.percent for s in (*execution, *cycle)]))
        height = max(s.time_ms.shape[0] for s in execution)
        log_percent = np.log(percent)

        def resampled(own: Surface, values: FloatArray) -> FloatArray:
            rows = np.stack([np.interp(log_percent, np.log(own.percent), row) for row in values])
            return np.pad(rows, ((0, height - rows.shape[0]), (0, 0)), mode="edge")

        times = [resampled(s, np.log(s.time_ms)) for s in execution]
        cycles = [resampled(s, np.log(s.time_ms)) for s in cycle]
        return Tables(
            log_percent=log_percent,
            largest=np.array([s.time_ms.shape[0] for s in execution]),
            log_execution=np.stack(times),
            log_cycle=np.minimum(np.stack(cycles), np.stack(times)),
            deviation=np.stack([resampled(s, s.deviation) for s in execution]),
        )

    def look_up(
        self, model: IntArray, batch: FloatArray, percent: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Execution and cycle time in ms and the expected relative deviation; shapes as given."""
        # Outside the table time stays proportional: to 1 / share below its knots, to the batch above them.
        beyond = np.maximum(batch / self.largest[model], 1.0) * np.maximum(LOWEST_PERCENT / percent, 1.0)
        inside = np.minimum(batch, self.largest[model])
        lower = np.minimum(np.floor(inside), np.maximum(self.largest[model] - 1, 1)).astype(np.int64)
        upper = np.minimum(lower + 1, self.largest[model])
        part = inside - lower
        log_percent = np.maximum(np.log(percent), self.log_percent[0])
        knot = np.clip(
            np.searchsorted(self.log_percent, log_percent, side="right") - 1, 0, len(self.log_percent) - 2
        )
        left = self.log_percent[knot]
        x = (log_percent - left) / (self.log_percent[knot + 1] - left)

        def along_share(table: FloatArray, row: IntArray) -> FloatArray:
            value: FloatArray = (1 - x) * table[model, row - 1, knot] + x * table[model, row - 1, knot + 1]
            return value

        def time(table: FloatArray) -> FloatArray:
            low, high = np.exp(along_share(table, lower)), np.exp(along_share(table, upper))
            value: FloatArray = beyond * (low + part * (high - low))
            return value

        deviation = (1 - part) * along_share(self.deviation, lower) + part * along_share(
            self.deviation, upper
        )
        return time(self.log_execution), time(self.log_cycle), deviation
