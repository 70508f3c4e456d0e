"""Latency models whose times are changed: the frame, and what the profiles say of every model.

* `OneShare`: a model that was measured at one share only. A form fitted on one share can be drawn through
  every other one, and each of them would be a guess: an inference at 20 % of a core took 5.6 to 13.6 times
  that of the whole core (docs/results/real-models.md). So a smaller share counts as one at which the model
  never answers, and a larger one as the measured share.
* `RequestTimes`: the handling of requests within a quota, which a batch of few large requests has less of. A
  profile's t(b) is that of b requests of one inference: parsing, queueing and answering each of them takes
  processor time of the same share. n requests that bring the same b inferences take t(b) - (b - n) c 100 / p,
  with c the profile's `request_ms` and p the share in percent of a core. Shares of a GPU hold no such work.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from controlplane.domain.profile import Profile
from controlplane.latency.protocol import Estimate, FloatArray, LatencyModel, Slots

UNKNOWN_MS = 1e9
"""Above every SLO, and finite: sums and quantiles of it stay numbers."""
_SAME = 1e-6

Change = Callable[[FloatArray], FloatArray]
"""What becomes of times of the shape (GPUs, slots)."""


@dataclass(frozen=True, slots=True)
class Adjusted(ABC):
    """The latency model `base`, with all its times changed by `change`."""

    base: LatencyModel

    @property
    def name(self) -> str:
        """The base's name: its plans are judged by this model."""
        return self.base.name

    @property
    def models(self) -> tuple[str, ...]:
        """See `LatencyModel.models`."""
        return self.base.models

    def estimate(self, slots: Slots, quantile: float = 0.95) -> Estimate:
        """See `LatencyModel.estimate`."""
        found, change = self.base.estimate(self.asked(slots), quantile), self.change(slots)
        return Estimate(
            change(found.execution_ms),
            change(found.execution_upper_ms),
            change(found.cycle_ms),
            change(found.cycle_upper_ms),
            found.power_w,
        )

    def asked(self, slots: Slots) -> Slots:
        """Return what the base is asked for."""
        return slots

    @abstractmethod
    def change(self, slots: Slots) -> Change:
        """Return what becomes of each time at these slots."""


@dataclass(frozen=True, slots=True)
class OneShare(Adjusted):
    """A latency model that does not guess; `percent` (models,) is a model's only share, else NaN."""

    percent: FloatArray

    def asked(self, slots: Slots) -> Slots:
        """Return the slots at the shares that are known."""
        only = np.where(slots.mask, self.percent[slots.model], np.nan)
        return replace(slots, percent=np.where(np.isnan(only), slots.percent, only))

    def change(self, slots: Slots) -> Change:
        """Return what makes times below the only share unknown."""
        unknown = slots.percent < self.asked(slots).percent - _SAME
        return lambda time_ms: np.where(unknown, UNKNOWN_MS, time_ms)


@dataclass(frozen=True, slots=True)
class RequestTimes(Adjusted):
    """A latency model that counts requests too; `request_ms` (models,) is c of each model of `base`."""

    request_ms: FloatArray

    def change(self, slots: Slots) -> Change:
        """Return what takes the handling of the requests that a batch does not have from its times."""
        if slots.requests is None:
            return lambda time_ms: time_ms
        each_ms = np.where(slots.mask, self.request_ms[slots.model] * 100.0 / slots.percent, 0.0)
        saved_ms = each_ms * np.maximum(slots.batch - slots.requests, 0.0)
        own_ms = each_ms * slots.requests
        # A batch takes its own requests' handling at least, whatever a fit says of it.
        return lambda time_ms: np.maximum(time_ms - saved_ms, np.minimum(own_ms, time_ms))


def without_guesses(model: LatencyModel, profiles: Mapping[str, Profile]) -> LatencyModel:
    """The model, which knows nothing below the only share of a profile; else the same object."""
    percents = [profiles[name].only_percent for name in model.models]
    if all(percent is None for percent in percents):
        return model
    return OneShare(model, np.array([np.nan if p is None else p for p in percents]))


def with_request_times(model: LatencyModel, profiles: Mapping[str, Profile]) -> LatencyModel:
    """The model, counting requests where a profile says what one takes; else the same object."""
    known = [profiles[name].request_ms or 0.0 for name in model.models]
    return RequestTimes(model, np.array(known)) if any(known) else model
