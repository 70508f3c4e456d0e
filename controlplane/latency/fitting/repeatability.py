"""How far the same point lies apart in two sessions: the floor of the upper quantile.

All points of one session share its clocks, temperature, driver and host load, and a plan runs in another
session than its profiles were measured in. No point left out of a session can show that difference; only
points measured in two of them do:

    deviation of ln(second / first) = alone w(p)

with w(p) = 1 for a share of a GPU's processors. A quota of a core has w(p) = 100 / p: what the host takes
from a core is the same time for every share, and counts the more the smaller the share is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.domain.device import ShareKind
from controlplane.domain.profile import Repeat
from controlplane.latency.fitting.answers import Scores
from controlplane.latency.protocol import FloatArray

USUAL_ALONE: Mapping[ShareKind, float] = {ShareKind.CPU_QUOTA: 0.04}
"""Of a device profiled once: that of the sample models on a virtual machine (docs/results/latency.md)."""
USUAL_ALONE_GPU = 0.004
"""Two runs of the same points on a V100 (catalogue/v100/repeats.csv)."""
USUAL_WEIGHT = 5
"""As many repeats as the usual values count for."""


@dataclass(frozen=True, slots=True)
class Repeatability:
    """`alone` and `quota` as in the module; `scores`: differences seen, over those expected."""

    alone: float
    quota: bool
    scores: Scores

    @staticmethod
    def fit(repeats: Sequence[Repeat], share_kind: ShareKind) -> Repeatability:
        """From all repeats of a device, and the usual value where there are few."""
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
        """The relative distance to the upper quantile of another session; shape as given."""
        distance: FloatArray = self.scores.at(quantile) * self.alone * _weight(percent, self.quota)
        return distance


def _weight(percent: FloatArray, quota: bool) -> FloatArray:
    """w(p), by which a share's time alone differs more than a whole device's."""
    return 100.0 / percent if quota else np.ones_like(percent)
