"""Times of every batch beside the least harmful neighbours that there can be: no plan's are shorter."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.latency.protocol import FloatArray, IntArray, Slots
from controlplane.planners.evaluation.evaluate import SLACK
from controlplane.planners.serving.gpu_types import GpuType
from controlplane.planners.serving.largest_rate import BatchTimes
from controlplane.planners.serving.lower_bound import bound_batches, calibration_spread

NEIGHBOURS = 3
"""Numbers of neighbours that are distinguished; further ones speed up nothing."""
FEW_MODELS = 6
"""With more models only one neighbour is looked at: there are too many sets of them to ask about."""
_NEIGHBOUR_PERCENTS = (0.0, 10.0, 30.0, 60.0)
"""Shares of neighbours: a fitted model does not always call the least share the least harmful."""
_HARM_ERROR = 0.008
"""By how much those not asked about may be less harmful; on the V100 catalogue 0.7 %."""


@dataclass(frozen=True, slots=True)
class FastestTimes:
    """Times in ms by number of neighbours: `execution` and `cycle` (neighbours, models, batches, shares).

    The last number of neighbours stands for all beyond it. Infinite where that many neighbours leave no such
    share, and where a batch alone takes too long. `first` (neighbours, models, shares) is t(1).
    """

    batch: IntArray
    execution: FloatArray
    cycle: FloatArray
    first: FloatArray

    @staticmethod
    def of(gpu_type: GpuType, limit_ms: Mapping[int, float], neighbours: int = NEIGHBOURS) -> FastestTimes:
        """Up to so many neighbours are distinguished.

        `limit_ms`: models that may be placed on this GPU type, by number, with the longest time of a batch.
        """
        alone, batch, models = gpu_type.alone, bound_batches(gpu_type), sorted(limit_ms)
        most = neighbours if len(models) <= FEW_MODELS else min(neighbours, 1)
        shape = (most + 1, len(alone.execution), batch.size, alone.execution.shape[2])
        execution, cycle = np.full(shape, np.inf), np.full(shape, np.inf)
        for m, limit in limit_ms.items():
            in_time = alone.execution[m, batch - 1] <= limit
            execution[0, m] = np.where(in_time, alone.execution[m, batch - 1], np.inf)
            cycle[0, m] = np.where(in_time, alone.cycle[m, batch - 1], np.inf)
        asked = np.nonzero(np.isfinite(execution[0]))
        for k in range(1, most + 1):
            for beside in itertools.combinations_with_replacement(models, k):
                _lower(gpu_type, asked, beside, batch, execution[k], cycle[k])
            execution[k] = np.maximum(execution[k] * (1.0 - _HARM_ERROR), execution[k - 1])
            cycle[k] = np.maximum(cycle[k] * (1.0 - _HARM_ERROR), cycle[k - 1])
        spread = calibration_spread(gpu_type.device.latency)
        return FastestTimes(batch, execution / spread, cycle / spread, execution[:, :, 0] / spread)

    def of_model(self, model: int) -> BatchTimes:
        """One model's times; cases are numbers of neighbours."""
        return BatchTimes(self.batch, self.execution[:, model], self.cycle[:, model], self.first[:, model])


def _lower(
    gpu_type: GpuType,
    asked: tuple[IntArray, ...],
    beside: Sequence[int],
    batch: IntArray,
    execution: FloatArray,
    cycle: FloatArray,
) -> None:
    """Lower both (models, batches, shares) to what they are beside these models, where `asked`."""
    percents = gpu_type.percents
    least = {float(percents[np.searchsorted(percents, p)]) for p in _NEIGHBOUR_PERCENTS}
    for percent in sorted(least):
        fits = percents[asked[2]] + len(beside) * percent <= 100.0 + SLACK
        if not fits.any():
            break
        m, b, s = (index[fits] for index in asked)
        width = (m.size, len(beside))
        models = np.column_stack([m, np.broadcast_to(beside, width)])
        sizes = np.column_stack([batch[b], np.ones(width)])
        shares = np.column_stack([percents[s], np.full(width, percent)])
        slowed, slowed_cycle = gpu_type.ask(Slots.of(models, sizes, shares))
        execution[m, b, s] = np.minimum(execution[m, b, s], slowed[:, 0])
        cycle[m, b, s] = np.minimum(cycle[m, b, s], slowed_cycle[:, 0])
