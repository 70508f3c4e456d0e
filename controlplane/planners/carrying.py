"""What servers of a pool carry: the waiting table turned round, for all SLOs at once."""

from __future__ import annotations

import numpy as np

from controlplane.domain.plan import MOST_SERVERS, Rule
from controlplane.latency.protocol import FloatArray, IntArray
from controlplane.planners import waiting
from controlplane.planners.board import JITTER_P99
from controlplane.planners.menu import FULL_BATCH
from controlplane.planners.protocol import Device


def carried(
    device: Device, model: str, execution: FloatArray, cycle: FloatArray, slo_ms: FloatArray, rule: Rule,
    batches: IntArray | None = None,
) -> FloatArray:  # fmt: skip
    """Requests per second into each server of a pool: (SLOs, servers, parts).

    `execution` and `cycle` (batches, parts) are a model's times in ms; `batches` those that may be served,
    None for all.
    """
    known = execution.shape[0]
    if rule is not Rule.P99:
        every = 1000.0 * np.arange(1, known + 1)[:, None] / cycle
        most = np.array([np.where(execution <= d / 2.0, every, 0.0).max(axis=0) for d in slo_ms])
        return np.repeat(most[:, None], MOST_SERVERS, axis=1)
    from controlplane.planners.capacity_kernel import most_carried

    profile = device.profiles[model]
    first, found = execution[:1], np.zeros((slo_ms.size, MOST_SERVERS, execution.shape[1]))
    within = slo_ms - (profile.frontend_ms or 0.0)
    # The least wait at this load or any higher: what is carried grows with what may be waited.
    table = np.minimum.accumulate(waiting.pools()[..., ::-1], axis=-1)[..., ::-1]
    table = table + JITTER_P99 * (profile.jitter or 0.0)
    for k, size in enumerate(waiting.BATCHES):
        if size > known or (batches is not None and size not in batches):
            continue
        full = execution[size - 1][None]
        known_times = np.where(np.isfinite(full), full, 1.0)
        thin = (first / known_times - 1.0 / size) / max(1.0 - 1.0 / size, 0.5)
        most = most_carried(
            within, full[None], np.clip(thin, 0.0, 1.0)[None], first, table[:, k : k + 1],
            np.array([float(size)]), np.array(waiting.LOADS), np.array(waiting.SHAPES), np.ones(full.shape),
        )[:, :, 0]  # fmt: skip
        # The table says little of batches that hardly ever fill.
        fills = full <= FULL_BATCH * within[:, None]
        found = np.maximum(found, np.where(fills[:, None], most, 0.0) if size > 1 else most)
    return found
