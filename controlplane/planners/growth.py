"""Which items fit one GPU together, and the smallest shares that hold them.

Shares start where each item holds alone and rise where neighbours slow it beyond what its share tolerates
(iGniter's Alg 2, in jumps instead of steps, and for any number of GPUs at once). A larger share slows
neighbours more, never less, so the first point where nothing rises is the least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.latency.protocol import BoolArray, FloatArray, IntArray, Slots
from controlplane.planners.board import ask
from controlplane.planners.menu import Menu

SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class Grown:
    """One row a GPU: whether its items fit, the index of each one's share and how neighbours slow it."""

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


def grow(menu: Menu, groups: IntArray, quantile: float | None) -> Grown:
    """Least shares for each row of item numbers (GPUs, slots), -1 where empty."""
    from controlplane.planners.growth_kernel import begin, question, rise

    memory = menu.device.pool.device.memory_mb
    shape = groups.shape
    share, slowdown = np.zeros(shape, dtype=np.int64), np.ones(shape)
    total, fits = np.zeros(shape[0]), np.zeros(shape[0], dtype=np.bool_)
    begin(
        groups, menu.least, menu.percents, menu.memory_mb, np.inf if memory is None else float(memory),
        share, total, fits,
    )  # fmt: skip
    live = np.flatnonzero(fits)
    while live.size:
        slots = Slots(*question(groups, share, live, menu.model, menu.batch, menu.percents))
        execution, cycle = ask(menu.device.latency, slots, quantile)
        live = rise(
            groups, live, execution, cycle, menu.model, menu.batch, menu.percents, menu.alone.execution,
            menu.alone.cycle, menu.execution_tolerance, menu.cycle_tolerance, SLACK, share, total, fits,
            slowdown,
        )  # fmt: skip
    return Grown(fits, share, total, slowdown)
