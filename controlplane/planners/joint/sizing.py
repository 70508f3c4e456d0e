"""Which items fit one GPU together, and the smallest shares that hold them.

Shares start where each item holds its SLO alone and rise where neighbours slow it by more than its share
tolerates (iGniter's Alg 2, in jumps instead of steps, and for any number of GPUs at once). A larger share
slows neighbours more, never less, so the first point where nothing rises is the smallest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.latency.protocol import BoolArray, FloatArray, IntArray, Slots
from controlplane.planners.serving.tolerance import ToleranceTable


@dataclass(frozen=True, slots=True)
class Sized:
    """One row a GPU: whether its items fit, each one's share by index, their sum, each one's slowdown."""

    fits: BoolArray
    share: IntArray
    total: FloatArray
    slowdown: FloatArray


def padded(groups: Sequence[Sequence[int]]) -> IntArray:
    """Item numbers as (GPUs, slots), -1 where empty."""
    width = max((len(g) for g in groups), default=1)
    rows = np.full((len(groups), max(width, 1)), -1, dtype=np.int64)
    for i, group in enumerate(groups):
        rows[i, : len(group)] = group
    return rows


def smallest_shares(table: ToleranceTable, groups: IntArray) -> Sized:
    """Smallest shares for each row of item numbers (GPUs, slots), -1 where empty."""
    from controlplane.planners.joint import sizing_kernel as kernel

    gpu_type = table.gpu_type
    memory = gpu_type.device.pool.device.memory_mb
    most_mb = np.inf if memory is None else float(memory)
    share, slowdown = np.zeros(groups.shape, dtype=np.int64), np.ones(groups.shape)
    total, fits = np.zeros(groups.shape[0]), np.zeros(groups.shape[0], dtype=np.bool_)
    kernel.begin(groups, table.smallest, gpu_type.percents, table.memory_mb, most_mb, share, total, fits)
    alone = gpu_type.alone.execution, gpu_type.alone.cycle
    tolerance = table.execution_tolerance, table.cycle_tolerance
    live = np.flatnonzero(fits)
    while live.size:
        own = table.model, table.batch, gpu_type.percents
        slowed = gpu_type.ask(Slots(*kernel.question(groups, share, live, *own)))
        live = kernel.rise(groups, live, slowed, alone, tolerance, *own, share, total, fits, slowdown)
    return Sized(fits, share, total, slowdown)
