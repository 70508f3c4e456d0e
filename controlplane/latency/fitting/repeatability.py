"""The difference of one point between two sessions: the floor of the upper quantile.

All points of one session share its clocks, temperature, driver and host load, and a plan runs in another
session than its profiles were measured in. Points left out of one session do not
show that difference; only points measured in two sessions do:

    deviation of ln(second / first) = alone w(p)

with w(p) = 1 for a share of a GPU's processors. A quota of a core has w(p) = 100 / p: the host takes the
same time from every share, which matters more the smaller the share is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.domain.device import ShareKind
from controlplane.domain.profile import Repeat
from controlplane.latency.fitting.answers import Scores
from controlplane.latency.protocol import FloatArray

USUAL_ALONE: Mapping[ShareKind, float] = {ShareKind.CPU_QUOTA: 0.05}
"""For a device profiled once: the largest among three sessions of the sample models on a virtual machine
(docs/results/latency.md). Three are too few for their mean to be a floor."""
USUAL_ALONE_GPU = 0.004
"""Two runs of the same points on a V100 (catalogue/v100/repeats.csv)."""
USUAL_WEIGHT = 5
"""The number of repeats that the usual value counts for."""


@dataclass(frozen=True, slots=True)
class Repeatability:
    """`alone`: the deviation where w(p) = 1. `quota`: whether w(p) = 100 / p. `scores`: errors over it."""

    alone: float
    quota: bool
    scores: Scores

    @staticmethod
    def fit(repeats: Sequence[Repeat], share_kind: ShareKind) -> Repeatability:
        """Fit on all repeats of a device, drawn towards the usual value where there are few."""
        quota = share_kind is ShareKind.CPU_QUOTA
        weight = _weight(np.array([r.percent for r in repeats]), quota)
        apart = np.array([np.log(r.second_ms / r.first_ms) for r in repeats]) / weight
        alone = USUAL_WEIGHT * USUAL_ALONE.get(share_kind, USUAL_ALONE_GPU)
        if repeats:
            # The standard deviation of a normal with this mean absolute one: an outlier counts less.
            alone += len(repeats) * float(np.sqrt(np.pi / 2.0) * np.mean(np.abs(apart)))
        alone /= USUAL_WEIGHT + len(repeats)
        # Either session may be the slower one.
        return Repeatability(alone, quota, Scores.of(np.concatenate([apart, -apart]) / alone))

    def margin(self, percent: FloatArray, quantile: float) -> FloatArray:
        """Return the relative distance to the upper quantile of another session; shape as given."""
        distance: FloatArray = self.scores.at(quantile) * self.alone * _weight(percent, self.quota)
        return distance


def _weight(percent: FloatArray, quota: bool) -> FloatArray:
    """Return w(p): how much more a share's solo time differs than a whole device's."""
    return 100.0 / percent if quota else np.ones_like(percent)
