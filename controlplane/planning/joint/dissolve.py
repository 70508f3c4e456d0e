"""Fewer GPUs for the same items: GPUs are emptied one by one, their items placed on the others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from controlplane.planning.joint.packing import Packing

_REPEATS = 3
"""Attempts on GPUs that failed before: only the order among equal swaps differs then."""

Stop = Callable[[], bool]


def dissolve(packing: Packing, attempts: int, chance: np.random.Generator, stop: Stop) -> Packing:
    """Empty GPUs one by one; returns the best packing found, and changes nothing.

    Each attempt takes one of the emptiest GPUs away and places its items on the others, with at most three
    times as many swaps as it had items.
    """
    best = packing
    failed: set[tuple[int, ...]] = set()
    again = 0
    for attempt in range(attempts):
        if stop() or len(best.groups) < 2:
            break
        order = sorted(range(len(best.groups)), key=lambda g: (best.totals[g], g))[: 8 + attempt]
        candidates = [g for g in order if _room_for(best, g)]
        gpu = next((g for g in candidates if tuple(best.groups[g]) not in failed), None)
        if gpu is None:
            again += 1
            if not candidates or again > _REPEATS:
                break
            gpu = candidates[chance.integers(len(candidates))]
        failed.add(tuple(best.groups[gpu]))
        trial = best.copy()
        if _place_all(trial, list(trial.remove(gpu)), chance, stop):
            best = trial
    return best


def _room_for(packing: Packing, gpu: int) -> bool:
    """Whether the others have, all together, the room that a GPU's items take at least."""
    others = 100.0 * (len(packing.groups) - 1) - sum(packing.totals) + packing.totals[gpu]
    return bool(others >= packing.table.smallest_percent[packing.groups[gpu]].sum())


def _place_all(trial: Packing, queue: list[int], chance: np.random.Generator, stop: Stop) -> bool:
    swaps = 3 * len(queue) + 3
    while queue:
        queue.sort(key=trial.smallest_percent)
        item = queue.pop()
        if trial.squeeze(item):
            continue
        if swaps <= 0 or stop():
            return False
        swaps -= 1
        out = trial.swap(item, chance)
        if out is None:
            return False
        queue.append(out)
    return True
