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
    present = groups >= 0
    item = np.where(present, groups, 0)
    last = menu.percents.size - 1
    share = np.where(present, menu.least[item], 0)
    fits = np.all(share <= last, axis=1)
    memory = menu.device.pool.device.memory_mb
    if memory is not None:
        fits &= np.where(present, menu.memory_mb[item], 0.0).sum(axis=1) <= memory
    share = np.minimum(share, last)
    total = np.where(present, menu.percents[share], 0.0).sum(axis=1)
    fits &= total <= 100.0 + SLACK
    slowdown = np.ones(groups.shape)
    live = np.flatnonzero(fits)
    while live.size:
        who, here, at = item[live], present[live], share[live]
        slots = Slots(
            model=np.where(here, menu.model[who], 0),
            batch=np.where(here, menu.batch[who, at], 1).astype(np.float64),
            percent=np.where(here, menu.percents[at], 100.0),
            mask=here,
        )
        execution, cycle = ask(menu.device.latency, slots, quantile)
        key = (slots.model, slots.batch.astype(np.int64) - 1, at)
        slow = np.where(here, execution / menu.alone.execution[key], 0.0) * (1.0 - SLACK)
        slow_cycle = np.where(here, cycle / menu.alone.cycle[key], 0.0) * (1.0 - SLACK)
        slowdown[live] = np.maximum(slow, slow_cycle)
        rises = here & (
            (menu.execution_tolerance[who, at] < slow) | (menu.cycle_tolerance[who, at] < slow_cycle)
        )
        rows, columns = np.nonzero(rises)
        if not rows.size:
            break
        its, now = who[rows, columns], at[rows, columns]
        enough = (
            (menu.execution_tolerance[its] >= slow[rows, columns][:, None])
            & (menu.cycle_tolerance[its] >= slow_cycle[rows, columns][:, None])
            & (np.arange(last + 1) > now[:, None])
        )
        found = enough.any(axis=1)
        share[live[rows], columns] = np.where(found, enough.argmax(axis=1), last)
        fits[live[rows[~found]]] = False
        total[live] = np.where(present[live], menu.percents[share[live]], 0.0).sum(axis=1)
        fits &= total <= 100.0 + SLACK
        # Rows where nothing rose are done.
        changed = np.unique(live[rows])
        live = changed[fits[changed]]
    return Grown(fits, share, total, slowdown)
