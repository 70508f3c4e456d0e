"""The one protocol of all latency models.

The input is a set of GPUs and the slots on each (`Slots`), the result arrays of the same shape (`Estimate`).
A latency model covers one device and the served models named in `models`, which `Slots.model` indexes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from controlplane.domain.errors import InputError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Slots:
    """The models that run on each GPU: one row a GPU, one column a slot; all arrays have shape (GPUs, slots).

    `model` indexes `LatencyModel.models`; `batch` is at least 1; `percent` is in (0, 100]. Slots where
    `mask` is False are empty; their values are ignored. All other slots are busy: the estimate is for a
    full batch of each with all its neighbours running. `requests` is the number of requests that carry a
    batch; None means one inference in each, as profiles are measured.
    """

    model: IntArray
    batch: FloatArray
    percent: FloatArray
    mask: BoolArray
    requests: FloatArray | None = None

    @staticmethod
    def of(model: ArrayLike, batch: ArrayLike, percent: ArrayLike, mask: ArrayLike | None = None) -> Slots:
        """Broadcast and check: raises InputError naming the field, ValueError for shapes that differ."""
        models, batches, percents, present = np.broadcast_arrays(
            np.asarray(model, dtype=np.int64),
            np.asarray(batch, dtype=np.float64),
            np.asarray(percent, dtype=np.float64),
            np.asarray(True if mask is None else mask, dtype=np.bool_),
        )
        if models.ndim != 2:
            raise ValueError(f"slots need the shape (GPUs, slots), not {models.shape}")
        if np.any(present & ~(np.isfinite(batches) & (batches >= 1))):
            raise InputError("must be a finite number of at least 1", field="batch")
        if np.any(present & ~((percents > 0) & (percents <= 100))):
            raise InputError("must be above 0 and at most 100", field="percent")
        if np.any(present & (models < 0)):
            raise InputError("must not be negative", field="model")
        return Slots(
            model=np.where(present, models, 0),
            batch=np.where(present, batches, 1.0),
            percent=np.where(present, percents, 100.0),
            mask=np.array(present),
        )

    @staticmethod
    def alone(model: ArrayLike, batch: ArrayLike, percent: ArrayLike) -> Slots:
        """Each element of three one-dimensional arrays alone on a GPU of its own: shape (n, 1)."""
        columns = np.broadcast_arrays(np.asarray(model), np.asarray(batch), np.asarray(percent))
        return Slots.of(*(np.atleast_1d(c)[:, None] for c in columns))

    @staticmethod
    def every(models: int, largest_batch: int, percents: Sequence[float]) -> Slots:
        """Each model with each batch from 1 on at each share, alone: shape (models x batches x shares, 1)."""
        model, batch, share = np.indices((models, largest_batch, len(percents))).reshape(3, -1)
        return Slots.alone(model, batch + 1, np.asarray(percents)[share])


@dataclass(frozen=True, slots=True)
class Estimate:
    """Predicted times, each with its upper quantile. Empty slots hold 0.

    execution_ms, execution_upper_ms: (GPUs, slots), a batch from data loading to its last result.
    cycle_ms, cycle_upper_ms: (GPUs, slots), time between the ends of two successive batches under load,
        at most the execution where loading overlaps with the batch before (iGniter Eq 2); the throughput
        is 1000 * batch / cycle_ms.
    power_w: (GPUs,); 0 where the device has no power model.
    """

    execution_ms: FloatArray
    execution_upper_ms: FloatArray
    cycle_ms: FloatArray
    cycle_upper_ms: FloatArray
    power_w: FloatArray


class LatencyModel(Protocol):
    """One device's latency model, fitted."""

    @property
    def name(self) -> str:
        """The name in plans and for `--set latency=`."""

    @property
    def models(self) -> tuple[str, ...]:
        """The served models that it covers; `Slots.model` indexes this."""

    def estimate(self, slots: Slots, quantile: float = 0.95) -> Estimate:
        """Predict the times of all GPUs at once.

        `quantile` in [0.5, 1): the upper values are not exceeded with this probability, judged by the errors
        on points left out of the fit; they are never below the mean. Raises InputError naming the field
        for a model index or quantile out of range.
        """
