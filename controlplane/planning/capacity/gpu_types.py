"""One GPU type as planners see it: its latency model, the rule and the times of every model alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from controlplane.domain.plan import Rule
from controlplane.latency.protocol import FloatArray, IntArray, Slots
from controlplane.planning.judge.estimates import LARGEST_BATCH, ask
from controlplane.planning.protocol import Device


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """Times in ms of 1, 2, ... requests in a batch: (models, batches, shares), or of one model.

    Infinite for batches beyond a model's largest one.
    """

    execution: FloatArray
    cycle: FloatArray

    @staticmethod
    def alone(device: Device, quantile: float | None) -> BatchTimes:
        """Ask the latency model about every batch at every share; `quantile` None takes its means."""
        percents = device.pool.device.grid.percents()
        largest = [min(LARGEST_BATCH, device.profiles[m].largest_batch) for m in device.latency.models]
        shape = (len(largest), max(largest, default=1), len(percents))
        slots = Slots.every(shape[0], shape[1], percents)
        execution, cycle = (times.reshape(shape) for times in ask(device.latency, slots, quantile))
        # A larger batch is never faster, whatever a fit says.
        execution = np.maximum.accumulate(execution, axis=1)
        for m, most in enumerate(largest):
            execution[m, most:], cycle[m, most:] = np.inf, np.inf
        return BatchTimes(execution, cycle)

    def of_model(self, number: int, shares: IntArray) -> BatchTimes:
        """Those of one model at these shares, by index."""
        return BatchTimes(self.execution[number][:, shares], self.cycle[number][:, shares])

    def slowed(self, factor: FloatArray | float) -> BatchTimes:
        """The same, so many times longer."""
        return BatchTimes(self.execution * factor, self.cycle * factor)


@dataclass(frozen=True, slots=True)
class GpuType:
    """A GPU type in the question that a plan answers.

    `price` is what one GPU costs (1 each where all types are free, so that GPUs are counted). `quantile` is
    None where means count. `percents` (shares,) is the grid of shares.
    """

    name: str
    device: Device
    price: float
    rule: Rule
    quantile: float | None
    alone: BatchTimes
    percents: FloatArray

    @property
    def models(self) -> tuple[str, ...]:
        """The models it serves; arrays of models are in this order."""
        return self.device.latency.models

    def number_of(self, model: str) -> int:
        """A model's place among `models`; -1 where this type has no profile of it."""
        return self.models.index(model) if model in self.models else -1

    def floor(self, percent: FloatArray | float) -> IntArray:
        """The index of the largest share up to each of these; -1 where none is."""
        return np.asarray(np.searchsorted(self.percents, percent, side="right") - 1)

    def ask(self, slots: Slots) -> tuple[FloatArray, FloatArray]:
        """Execution and cycle in ms, with all slots busy, at the question's quantile."""
        return ask(self.device.latency, slots, self.quantile)


def gpu_types(devices: Mapping[str, Device], rule: Rule, quantile: float | None) -> dict[str, GpuType]:
    """All GPU types of a question, by name; the quantile counts under P99 only."""
    free = not any(device.pool.price_per_hour for device in devices.values())
    deciding = quantile if rule is Rule.P99 else None
    return {
        name: GpuType(
            name,
            device,
            1.0 if free else device.pool.price_per_hour,
            rule,
            deciding,
            BatchTimes.alone(device, deciding),
            np.array(device.pool.device.grid.percents()),
        )
        for name, device in devices.items()
    }
