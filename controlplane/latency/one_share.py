"""Models that were measured at one share only: nothing is known of a smaller one.

A form fitted on one share can be drawn through every other one, and each of them would be a guess: an
inference at 20 % of a core took 5.6 to 13.6 times that of the whole core (docs/results/real-models.md). So a
smaller share counts as one at which the model never answers, and a larger one as the measured share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from controlplane.domain.profile import Profile
from controlplane.latency.protocol import Estimate, FloatArray, LatencyModel, Slots

UNKNOWN_MS = 1e9
"""Above every SLO, and finite: sums and quantiles of it stay numbers."""
_SAME = 1e-6


@dataclass(frozen=True, slots=True)
class OneShare:
    """A latency model that does not guess; `percent` (models,) is a model's only share, else NaN."""

    base: LatencyModel
    percent: FloatArray

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
        only = np.where(slots.mask, self.percent[slots.model], np.nan)
        known = np.where(np.isnan(only), slots.percent, only)
        answer = self.base.estimate(replace(slots, percent=known), quantile)
        unknown = slots.percent < known - _SAME

        return answer.with_times(lambda time_ms: np.where(unknown, UNKNOWN_MS, time_ms))


def without_guesses(model: LatencyModel, profiles: Mapping[str, Profile]) -> LatencyModel:
    """The model, which knows nothing below the only share of a profile; else the same object."""
    percents = [profiles[name].only_percent for name in model.models]
    if all(percent is None for percent in percents):
        return model
    return OneShare(model, np.array([np.nan if p is None else p for p in percents]))
