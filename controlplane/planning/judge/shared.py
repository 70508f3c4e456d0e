"""One shadow for several partitions of a GPU: which of them, with what share and memory.

It takes one context where each hot shadow takes its own, and has one share whichever partition it serves. So
it holds only partitions of like shares: at least the largest one's, and no more than the smallest one leaves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from controlplane.domain.plan import Partition, PlannedGpu, SharedShadow
from controlplane.planning.judge.evaluate import Evaluation, Terms
from controlplane.planning.judge.extras import harmless
from controlplane.planning.judge.placements import PROCESS, common_step
from controlplane.planning.protocol import Device

_ROUNDING = 1e-9


def shared_shadow(
    gpu: PlannedGpu, wishing: Sequence[Partition], base: Evaluation, device: Device, terms: Terms
) -> tuple[SharedShadow, tuple[Partition, ...]] | None:
    """Return the shadow that most of these partitions can share, and them; None where no two can.

    `base` is what is expected of all GPUs of this type with no shadow active.
    """
    members = _alike(_in_one_server(wishing, device), 100.0 - gpu.percent)
    if len(members) < 2:
        return None
    step = device.pool.device.grid.step_percent
    room = 100.0 - gpu.percent + members[0].percent
    most = 100.0 if room >= 100.0 else math.floor(room / step + _ROUNDING) * step
    asked = {p.id: max(most - p.percent, 0.0) for p in members}
    extras = harmless(base, asked, device, terms)
    percent = min(p.percent + extras[p.id] for p in members)
    if percent < members[-1].percent - _ROUNDING:
        return None
    known = [p.memory_mb for p in members if p.memory_mb is not None]
    # What a process takes without a model is there once.
    again_mb = device.pool.device.hardware.get(PROCESS, 0.0) * (len(members) - 1)
    memory_mb = sum(known) - again_mb if len(known) == len(members) else None
    return SharedShadow(f"{gpu.id}.shared", percent, memory_mb), members


def _alike(partitions: Sequence[Partition], room: float) -> tuple[Partition, ...]:
    """Return the most partitions whose shares differ by no more than `room`, the smallest first."""
    ordered = sorted(partitions, key=lambda p: p.percent)
    windows = (
        tuple(p for p in ordered[i:] if p.percent <= first.percent + room + _ROUNDING)
        for i, first in enumerate(ordered)
    )
    return max(windows, key=len, default=())


def _in_one_server(partitions: Sequence[Partition], device: Device) -> list[Partition]:
    """Return one partition of each pool, without those that execute a model with another batch.

    A server has an endpoint and a model once.
    """
    kept: list[Partition] = []
    for one in {frozenset(w.endpoint for w in p.workloads): p for p in partitions}.values():
        if common_step((*kept, one), device.profiles) is None:
            kept.append(one)
    return kept
