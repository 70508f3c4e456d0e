"""A latency model of given service times, for simulations whose results are known."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from controlplane.domain.errors import InputError
from controlplane.latency.protocol import Estimate, FloatArray, Slots


@dataclass(frozen=True, slots=True)
class KnownService:
    """Given service times t(k) by model, at any share; neighbours slow each other linearly.

    service_ms: by model, t(1), t(2), ...; larger batches take the last.
    slowdown: by (model, neighbour): the relative slowdown of a batch beside that neighbour (0.2 is 20 %).
    """

    service_ms: Mapping[str, tuple[float, ...]]
    slowdown: Mapping[tuple[str, str], float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name in reports."""
        return "known"

    @property
    def models(self) -> tuple[str, ...]:
        """The models with service times."""
        return tuple(self.service_ms)

    def estimate(self, slots: Slots, quantile: float = 0.95) -> Estimate:
        """Return exact times: the upper quantiles are the values themselves."""
        if np.any(slots.model >= len(self.service_ms)):
            raise InputError("names no model with known service times", field="model")
        longest = max(len(times) for times in self.service_ms.values())
        table = np.array([[*t, *[t[-1]] * (longest - len(t))] for t in self.service_ms.values()])
        alone = table[slots.model, np.minimum(slots.batch.astype(np.int64), longest) - 1]
        beside = np.array([[self.slowdown.get((a, b), 0.0) for b in self.models] for a in self.models])
        effect: FloatArray = beside[slots.model[:, :, None], slots.model[:, None, :]]
        effect = effect * slots.mask[:, None, :]
        own = np.diagonal(effect, axis1=1, axis2=2)
        times = np.where(slots.mask, alone * (1.0 + effect.sum(axis=2) - own), 0.0)
        return Estimate(times, times, times, times, np.zeros(len(times)))
