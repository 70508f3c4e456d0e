"""iGniter's Alg 1 and 2 and its two first-fit baselines as one loop over arrays.

Written for numba and for plain Python alike: twelve workloads are planned before a compiled copy is loaded,
thousands need it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from controlplane.latency.models.igniter import SLOWEST_CLOCK, Hardware
from controlplane.latency.protocol import FloatArray, IntArray

COMPILED_FROM = 48
"""Loading the compiled loop costs about what plain Python takes for this many workloads."""


class Pick(IntEnum):
    """Which GPU a workload goes to."""

    LEAST_INCREASE = 0
    """The one whose shares grow least (Alg 1)."""
    FIRST_FIT = 1
    """The first where Alg 2 finds room (FFD++)."""
    FIRST_FLOOR = 2
    """The first with room for the lower bound; no share ever grows (FFD+)."""


NO_GPU = -1
"""Not even a GPU of its own holds it."""
NONE_LEFT = -2
"""All GPUs are taken."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What Eq 1-11 say of each workload at its batch, one row a workload.

    Columns: 0 the longest t_inf allowed (ms), 1 batch, 2 k1 b^2 + k2 b + k3, 3 k4, 4 k5, 5 k_sch n_k, 6 n_k,
    7 alpha_cache, 8 and 9 cache use over ability, 10 and 11 power over ability, 12 transfers (ms), 13 the
    lower bound of the share (%), 14 memory with its shadow (MB).
    """

    table: FloatArray
    step_percent: float
    memory_mb: float
    most_gpus: int

    @property
    def floor(self) -> FloatArray:
        """r_lower of each workload, in percent."""
        return np.asarray(self.table[:, 13])


@dataclass(frozen=True, slots=True)
class Placed:
    """`gpu` (workloads,) or NO_GPU or NONE_LEFT; `percent` (workloads,)."""

    gpu: IntArray
    percent: FloatArray


def place(needs: Needs, order: IntArray, hardware: Hardware, pick: Pick) -> Placed:
    """Place workloads in this order."""
    run = _compiled() if order.size > COMPILED_FROM else _place
    schedule, power = (hardware.alpha_sch, hardware.beta_sch), (hardware.idle_w, hardware.power_cap_w)
    clock = hardware.alpha_f / hardware.clock_mhz
    limits = needs.step_percent, needs.memory_mb, SLOWEST_CLOCK
    constants = np.array([*schedule, *power, clock, *limits])
    # One GPU holds at most so many partitions.
    smallest = float(needs.floor.min(initial=100.0))
    width = max(1, int(100.0 / max(smallest, 1.0) + 1e-9))
    gpu, percent = run(needs.table, order, constants, int(pick), needs.most_gpus, width)
    return Placed(gpu, percent)


@functools.cache
def _compiled() -> Callable[..., tuple[IntArray, FloatArray]]:
    from numba import njit

    compiled: Callable[..., tuple[IntArray, FloatArray]] = njit(cache=True)(_place)
    return compiled


def _place(
    needs: FloatArray, order: IntArray, constants: FloatArray, pick: int, most_gpus: int, width: int
) -> tuple[IntArray, FloatArray]:
    alpha_sch, beta_sch, idle_w, cap_w = constants[0], constants[1], constants[2], constants[3]
    alpha_clock, step, memory_mb, slowest = constants[4], constants[5], constants[6], constants[7]
    count = needs.shape[0]
    rows = min(count, most_gpus)
    gpu_of = np.full(count, -1, dtype=np.int64)
    percent = np.zeros(count)
    member = np.zeros((rows, width), dtype=np.int64)
    size = np.zeros(rows, dtype=np.int64)
    used, memory = np.zeros(rows), np.zeros(rows)
    trial, best = np.zeros(width), np.zeros(width)
    ability, active = np.zeros(width), np.zeros(width)
    opened = 0
    for w in order:
        floor = needs[w, 13]
        chosen = -1
        least = 1e9
        last = opened if opened < rows else opened - 1
        for g in range(last + 1):
            if g == opened and chosen >= 0:
                break
            n = size[g] + 1
            if n > width or used[g] + floor > 100.0 + 1e-9 or memory[g] + needs[w, 14] > memory_mb:
                continue
            member[g, n - 1] = w
            total = used[g] + floor
            for i in range(n - 1):
                trial[i] = percent[member[g, i]]
            trial[n - 1] = floor
            growing = pick != 2
            while growing and total <= 100.0 + 1e-9:
                # Eq 1-11 of all on this GPU, then Alg 2, line 7, for those that are too slow.
                cache = 0.0
                power = idle_w
                for i in range(n):
                    x = member[g, i]
                    active[i] = needs[x, 2] / (trial[i] + needs[x, 3]) + needs[x, 4]
                    ability[i] = 1000.0 * needs[x, 1] / active[i]
                    cache += needs[x, 8] * ability[i] + needs[x, 9]
                    power += needs[x, 10] * ability[i] + needs[x, 11]
                clock = max(1.0 + alpha_clock * max(power - cap_w, 0.0), slowest)
                added = alpha_sch * n + beta_sch if n > 1 else 0.0
                growing = False
                for i in range(n):
                    x = member[g, i]
                    others = cache - needs[x, 8] * ability[i] - needs[x, 9]
                    busy = needs[x, 5] + added * needs[x, 6] + active[i] * (1.0 + needs[x, 7] * others)
                    if busy / clock + needs[x, 12] > needs[x, 0]:
                        trial[i] += step
                        total += step
                        growing = True
            if total > 100.0 + 1e-9:
                continue
            if total - used[g] < least - 1e-9:
                least = total - used[g]
                chosen = g
                for i in range(n):
                    best[i] = trial[i]
                if pick != 0 or least <= floor + 1e-9:
                    break
        if chosen < 0:
            gpu_of[w] = -1 if opened < rows else -2
            continue
        if chosen == opened:
            opened += 1
        n = size[chosen] + 1
        member[chosen, n - 1] = w
        size[chosen] = n
        gpu_of[w] = chosen
        used[chosen] += least
        memory[chosen] += needs[w, 14]
        for i in range(n):
            percent[member[chosen, i]] = best[i]
    return gpu_of, percent
