"""The handling of requests within a quota, which a batch of few large requests has less of.

A profile's t(b) is that of b requests of one inference: parsing, queueing and answering each of them takes
processor time of the same share. n requests that bring the same b inferences take

    t(b) - (b - n) c 100 / p

with c the profile's `request_ms` and p the share in percent of a core. Shares of a GPU hold no such work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from controlplane.domain.profile import Profile
from controlplane.latency.protocol import Estimate, FloatArray, LatencyModel, Slots


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """A latency model that counts requests too; `request_ms` (models,) is c of each model of `base`."""

    base: LatencyModel
    request_ms: FloatArray

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
        answer = self.base.estimate(slots, quantile)
        if slots.requests is None:
            return answer
        each_ms = np.where(slots.mask, self.request_ms[slots.model] * 100.0 / slots.percent, 0.0)
        saved_ms = each_ms * np.maximum(slots.batch - slots.requests, 0.0)

        def less(time_ms: FloatArray) -> FloatArray:
            # A batch takes its own requests' handling at least, whatever a fit says of it.
            return np.maximum(time_ms - saved_ms, np.minimum(each_ms * slots.requests, time_ms))

        return answer.with_times(less)


def with_request_times(model: LatencyModel, profiles: Mapping[str, Profile]) -> LatencyModel:
    """The model, counting requests where a profile says what one takes; else the same object."""
    known = [profiles[name].request_ms or 0.0 for name in model.models]
    return RequestTimes(model, np.array(known)) if any(known) else model
